//! Giving back what a burst of connections needed.
//!
//! An allocator keeps what a thread frees until that thread comes by again, and an idle thread does
//! not. So each worker counts what lives on it. When most of that has gone, or one that carried
//! much, and little came after it, the worker asks the allocator to let go. Nothing is looked at
//! while nothing changes: an idle proxy does not wake up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use leno_tunnel::timers::sleep;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

/// Connections that are worth looking for their memory: some hundred KiB.
const BURST: usize = 64;

/// Gone is a burst of which a quarter is left; over it is when fewer than that came or went in a
/// lull.
const LEFT: usize = 4;

/// Bytes of one connection after whose end memory is looked for as after a burst. More may have
/// waited here for a program that did not read, up to a stream's window of 4 MiB; and before
/// anything waits here, the kernel has taken more than this.
const MUCH: u64 = 256 << 10;

/// How long few connections must have come or gone before the allocator is asked: the worker does
/// nothing else meanwhile (0.4 ms after 2000 connections), and would soon need the memory again.
const LULL: Duration = Duration::from_secs(3);

/// The tunnels that carried them go later, and each holds on to pages it shares with what has gone:
/// those beyond the first after ten seconds, one that carried many streams after thirty, the last
/// after sixty ([`leno_tunnel::Settings`]), and up to ten seconds later, as that is how often they
/// are looked for. Waits from one look to the next, the first of them [`LULL`] after the burst's end.
const TUNNELS: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(30)];

/// Bytes of configuration after which the thread that takes it in looks for memory, if they came within a
/// [`LULL`]. What comes bit by bit needs the same memory again and again.
const MUCH_CONFIGURATION: u64 = 1 << 20;

/// Gives back by `trim` what taking in configuration has needed: a moment after so much has come that
/// it is worth a look. `heard` counts its bytes. For the control thread.
#[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
pub(crate) async fn after_configuration(mut heard: watch::Receiver<u64>, trim: fn()) {
    let mut burst = Burst::after(0);
    while heard.wait_for(|bytes| burst.is_much_with(*bytes)).await.is_ok() {
        // More is likely to come, and the snapshot that it replaces is likely to be in use.
        tokio::time::sleep(LULL).await;
        burst = Burst::after(*heard.borrow());
        trim();
    }
}

/// Configuration that comes in one [`LULL`].
struct Burst {
    since: Instant,
    /// What was heard before.
    before: u64,
    heard: u64,
}

impl Burst {
    fn after(heard: u64) -> Self {
        Self { since: Instant::now(), before: heard, heard }
    }

    /// Whether it is much, now that so much has been heard.
    fn is_much_with(&mut self, heard: u64) -> bool {
        if self.since.elapsed() >= LULL {
            *self = Self::after(self.heard);
        }
        self.heard = heard;
        heard.wrapping_sub(self.before) >= MUCH_CONFIGURATION
    }
}

/// What lives on one thread. Counted by that thread, but for what is handed over to it.
pub(crate) struct Memory {
    thread: Handle,
    /// Lets go of memory that the thread has freed.
    trim: fn(),
    live: AtomicUsize,
    /// Most at once since memory was given back.
    peak: AtomicUsize,
    /// How many have ever begun, and ended.
    changes: AtomicUsize,
    /// One that had carried [`MUCH`] has ended since memory was given back.
    much: AtomicBool,
    /// Somebody waits for the lull.
    watched: AtomicBool,
}

/// A connection or a tunnel that lives on a worker, from its first moment to its last: what
/// fails before it stands, or never gets as far, has needed memory as well.
pub struct Lives(Arc<Memory>);

impl Lives {
    /// One that is about to end has carried so many bytes.
    pub fn carried(&self, bytes: u64) {
        if bytes >= MUCH {
            self.0.much.store(true, Relaxed);
        }
    }
}

impl Drop for Lives {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Memory {
    /// Of the thread that runs `thread`, which gives it back by `trim`.
    pub(crate) fn new(thread: Handle, trim: fn()) -> Arc<Self> {
        Arc::new(Self {
            thread,
            trim,
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            changes: AtomicUsize::new(0),
            much: AtomicBool::new(false),
            watched: AtomicBool::new(false),
        })
    }

    /// Counts one that begins.
    pub(crate) fn begun(self: &Arc<Self>) -> Lives {
        let live = self.live.fetch_add(1, Relaxed) + 1;
        self.peak.fetch_max(live, Relaxed);
        self.changes.fetch_add(1, Relaxed);
        Lives(self.clone())
    }

    fn ended(self: &Arc<Self>) {
        self.live.fetch_sub(1, Relaxed);
        self.changes.fetch_add(1, Relaxed);
        if !self.watched.load(Relaxed) && self.is_worth_a_look() && !self.watched.swap(true, Relaxed) {
            self.thread.spawn(watch(self.clone()));
        }
    }

    fn burst_is_gone(&self) -> bool {
        let peak = self.peak.load(Relaxed);
        peak >= BURST && self.live.load(Relaxed) <= peak / LEFT
    }

    fn is_worth_a_look(&self) -> bool {
        self.burst_is_gone() || self.much.load(Relaxed)
    }

    /// To be called on its thread: that is whose memory it is.
    fn give_back(&self) {
        let started = std::time::Instant::now();
        leno_tls::buffer::release();
        (self.trim)();
        let live = self.live.load(Relaxed);
        self.peak.store(live, Relaxed);
        self.much.store(false, Relaxed);
        tracing::debug!(took = ?started.elapsed(), live, "gave back memory");
    }

    /// Whether there is something to give back; returns when nothing takes its place, or so much that
    /// there isn't.
    async fn lull(&self) -> bool {
        while self.is_worth_a_look() {
            if self.quiet().await && self.is_worth_a_look() {
                return true;
            }
        }
        false
    }

    /// Whether few came or went in the time of a lull, which begins now.
    async fn quiet(&self) -> bool {
        let before = self.changes.load(Relaxed);
        sleep(LULL).await;
        self.changes.load(Relaxed).wrapping_sub(before) <= self.peak.load(Relaxed).max(BURST) / LEFT
    }
}

/// Gives back memory once the burst is over, and again when its tunnels have gone.
async fn watch(memory: Arc<Memory>) {
    while memory.lull().await {
        memory.give_back();
        for wait in TUNNELS {
            let kept = memory.live.load(Relaxed);
            sleep(wait - LULL).await;
            let quiet = memory.quiet().await;
            // Another burst: it gets its own lull.
            if memory.peak.load(Relaxed) >= kept + BURST {
                break;
            }
            if quiet {
                memory.give_back();
            }
        }
    }
    memory.watched.store(false, Relaxed);
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
