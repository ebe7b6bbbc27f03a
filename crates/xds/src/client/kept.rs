//! The last good state of discovery in a file, for a proxy that starts while no control plane can be reached.
//!
//! A thread of its own writes it, so that no disk ever delays the control thread. It writes to a [`journal`] of this
//! process, which takes the place of the one before once everything has been sent.

mod journal;
mod place;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use prost::Message as _;

use super::response::Response;
use journal::{Entries, Journal};
use place::{Holder, Place};

/// Oldest state that is used. Certificates of that age have ended, too.
const OLDEST: Duration = Duration::from_secs(24 * 3600);
/// How far ahead of the clock the time of a journal may be.
const AHEAD: Duration = Duration::from_secs(300);
/// How often the file's time is renewed while the control plane is connected and nothing changes.
const STILL_TRUE: Duration = Duration::from_secs(600);
/// Growth before a journal is written anew, bytes, beside its own size.
const GROWTH: u64 = 1 << 20;

/// Bytes that may wait to be written. More wait only if the disk is stuck, or if a process that was stopped keeps the
/// directory locked; and then memory counts more than the saved state.
const WAITING: usize = 128 << 20;

/// A journal of this process.
pub(super) struct Kept {
    place: Place,
    waiting: Waiting,
    writer: Option<mpsc::Sender<Order>>,
    /// Whether everything has been sent once.
    complete: bool,
    /// Whether a control plane says what has changed.
    connected: Arc<AtomicBool>,
}

/// What waits to be written, in the eyes of both threads.
#[derive(Clone, Default)]
struct Waiting {
    bytes: Arc<AtomicUsize>,
    /// It was too much: nothing is written any more.
    given_up: Arc<AtomicBool>,
}

enum Order {
    Write(Response),
    /// Go on from what the process before has left. Nothing that was written before counts.
    Continue(Saved),
    /// Everything has been sent once: the journal replaces the one of the process before.
    Complete,
}

/// A journal of the process before: checked as a whole, and not too old.
#[derive(Clone)]
pub(super) struct Saved {
    file: Arc<std::fs::File>,
    /// Where its last whole response ends.
    end: u64,
    /// When it was last known to be true.
    pub(super) written: SystemTime,
}

impl Kept {
    pub(super) fn new(path: PathBuf) -> Self {
        let (place, waiting) = (Place::new(path), Waiting::default());
        Self { place, waiting, writer: None, complete: false, connected: Arc::default() }
    }

    /// Notes a response that was applied.
    pub(super) fn applied(&mut self, response: Response) {
        let length = response.encoded_len();
        // A single response may be larger, and is in memory anyway.
        let waiting = self.waiting.bytes.load(Relaxed);
        if waiting > 0 && waiting + length > WAITING {
            return self.give_up(waiting);
        }
        self.waiting.bytes.fetch_add(length, Relaxed);
        self.order(Order::Write(response));
    }

    /// Lets go of what waits. The thread removes what is outdated as soon as it can.
    fn give_up(&mut self, waiting: usize) {
        if !self.waiting.given_up.swap(true, Relaxed) {
            tracing::warn!(
                path = %self.place.path().display(),
                waiting,
                "the state of the mesh is no longer saved, because what is to be saved piles up: the disk is stuck, or a process \
                 that was stopped keeps the directory locked. A proxy that starts without a control plane will carry nothing; \
                 restart this proxy once the cause is mended"
            );
            self.writer = None;
        }
    }

    /// Everything has been sent once.
    pub(super) fn complete(&mut self) {
        if !std::mem::replace(&mut self.complete, true) {
            self.order(Order::Complete);
        }
    }

    /// What the process before has left is this process's state now.
    pub(super) fn go_on_from(&mut self, saved: Saved) {
        self.order(Order::Continue(saved));
        self.complete = true;
    }

    /// Whether a control plane is connected. While it is, the state is true even if nothing changes.
    pub(super) fn connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
    }

    /// What the process before has left.
    pub(super) fn saved(&self) -> Option<Saved> {
        match self.place.open().and_then(|found| found.map(Saved::check).transpose()) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!(
                    path = %self.place.path().display(), %error,
                    "the saved state of the mesh is not used: until a control plane answers, nothing is carried"
                );
                None
            }
        }
    }

    fn order(&mut self, order: Order) {
        if self.waiting.given_up.load(Relaxed) {
            return;
        }
        if self.writer.is_none() {
            self.writer = start(self.place.clone(), self.waiting.clone(), self.connected.clone());
        }
        // Without a thread there is no journal, which was said.
        if let Some(writer) = &self.writer {
            let _ = writer.send(order);
        }
    }
}

impl Saved {
    /// Reads all of it, before any of it counts.
    fn check(file: std::fs::File) -> io::Result<Self> {
        let written = file.metadata()?.modified()?;
        // A clock that went back says nothing about the age.
        if written.elapsed().is_err_and(|ahead| ahead.duration() > AHEAD) {
            return Err(io::Error::other("it was written in the future, by this machine's clock"));
        }
        if written.elapsed().is_ok_and(|age| age > OLDEST) {
            return Err(io::Error::other(format!("it is older than {} h", OLDEST.as_secs() / 3600)));
        }
        let end = journal::check(&file)?;
        Ok(Self { file: Arc::new(file), end, written })
    }

    /// Its responses, in their order. A long one comes in parts.
    pub(super) fn entries(&self) -> io::Result<Entries<'_>> {
        Entries::until(&self.file, self.end)
    }
}

fn start(place: Place, waiting: Waiting, connected: Arc<AtomicBool>) -> Option<mpsc::Sender<Order>> {
    let (writer, orders) = mpsc::channel();
    let path = place.path().display().to_string();
    let shown = path.clone();
    let started = std::thread::Builder::new().name("saved state".to_owned()).spawn(move || {
        let mut writing = Writing { place, waiting, journal: None, connected };
        if let Err(error) = writing.all(&orders) {
            tracing::warn!(
                path = shown, %error,
                "the state of the mesh is no longer saved: a proxy that starts without a control plane will carry \
                 nothing; restart this proxy once the cause is mended"
            );
            writing.place.abandon(writing.journal.as_ref());
        }
    });
    match started {
        Ok(_) => Some(writer),
        Err(error) => {
            tracing::warn!(path, %error, "the state of the mesh is not saved: no thread can be started");
            None
        }
    }
}

/// What the thread does.
struct Writing {
    place: Place,
    waiting: Waiting,
    journal: Option<Journal>,
    connected: Arc<AtomicBool>,
}

impl Writing {
    /// Carries out the orders until there is nobody to give any, or until somebody has removed the journal.
    fn all(&mut self, orders: &mpsc::Receiver<Order>) -> io::Result<()> {
        while self.burst(orders, STILL_TRUE)? {}
        Ok(())
    }

    /// Carries out the orders that are there, after waiting for one so long. Whether there may be more.
    fn burst(&mut self, orders: &mpsc::Receiver<Order>, patience: Duration) -> io::Result<bool> {
        let mut next = match orders.recv_timeout(patience) {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                if let Some(journal) = &self.journal {
                    self.place.remove_beside(journal);
                }
                return Ok(false);
            }
        };
        let idle = next.is_none();
        while let Some(order) = next {
            self.carry_out(order)?;
            next = orders.try_recv().ok();
        }
        let Some(journal) = &mut self.journal else { return Ok(true) };
        journal.flush()?;
        if !journal.complete {
            return Ok(true);
        }
        if idle && self.connected.load(Relaxed) {
            journal.is_true_at(SystemTime::now())?;
        }
        if journal.size > 2 * journal.base + GROWTH {
            *journal = journal.anew(self.place.beside()?)?;
            self.place.put_unless_followed(journal)?;
        }
        match self.place.holder(journal)? {
            Holder::This | Holder::Another => Ok(true),
            Holder::Dead => {
                *journal = journal.anew(self.place.beside()?)?;
                self.place.put(journal)?;
                tracing::info!(
                    path = %self.place.path().display(),
                    "the proxy that followed this one has ended; this one saves the state of the mesh again"
                );
                Ok(true)
            }
            Holder::Nobody => {
                tracing::info!(
                    path = %self.place.path().display(),
                    "somebody has removed the saved state; this proxy saves no more"
                );
                self.journal = None;
                Ok(false)
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> io::Result<()> {
        if self.waiting.given_up.load(Relaxed) {
            return Err(io::Error::other("too much was waiting to be written"));
        }
        match order {
            Order::Write(response) => {
                let length = response.encoded_len();
                begun(&mut self.journal, &self.place)?.append(response)?;
                self.waiting.bytes.fetch_sub(length, Relaxed);
                Ok(())
            }
            Order::Complete => {
                let journal = begun(&mut self.journal, &self.place)?;
                journal.mark_complete()?;
                self.place.put(journal)
            }
            Order::Continue(saved) => {
                if let Some(journal) = &self.journal {
                    self.place.remove_beside(journal);
                }
                let mut journal = Journal::from_saved(&saved.file, saved.end, self.place.beside()?)?;
                journal.mark_complete()?;
                // Its age is not that of the copy.
                journal.is_true_at(saved.written)?;
                self.place.put(&mut journal)?;
                self.journal = Some(journal);
                Ok(())
            }
        }
    }
}

/// The journal of this process, which is begun if there is none.
fn begun<'a>(journal: &'a mut Option<Journal>, place: &Place) -> io::Result<&'a mut Journal> {
    Ok(match journal {
        Some(journal) => journal,
        none => none.insert(Journal::create(place.beside()?)?),
    })
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
