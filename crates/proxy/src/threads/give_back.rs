//! Giving back what a burst of connections needed.
//!
//! An allocator keeps what a thread frees until that thread comes by again, and an idle thread does
//! not. So each worker counts what lives on it. When most of that has gone, or one that carried
//! much, and little came after it, the worker asks the allocator to let go. Nothing is looked at
//! while nothing changes: an idle proxy does not wake up.

use std::cell::Cell;
use std::time::Duration;

use leno_tunnel::timers::sleep;
use tokio::runtime::Handle;
use tokio::sync::watch;

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

/// What lives on this thread.
struct Load {
    /// Lets go of freed memory; only workers have it.
    trim: Cell<Option<fn()>>,
    live: Cell<usize>,
    /// Most at once since memory was given back.
    peak: Cell<usize>,
    /// How many have ever begun, and ended.
    changes: Cell<usize>,
    /// One that had carried [`MUCH`] has ended since memory was given back.
    much: Cell<bool>,
    /// Somebody waits for the lull.
    watched: Cell<bool>,
}

thread_local! {
    static LOAD: Load = const {
        Load {
            trim: Cell::new(None),
            live: Cell::new(0),
            peak: Cell::new(0),
            changes: Cell::new(0),
            much: Cell::new(false),
            watched: Cell::new(false),
        }
    };
}

/// Bytes of configuration after which the thread that takes it in looks for memory.
const MUCH_CONFIGURATION: u64 = 1 << 20;

/// Gives back by `trim` what taking in configuration has needed: a moment after so much has come that
/// it is worth a look. `heard` counts its bytes.
pub async fn after_configuration(mut heard: watch::Receiver<u64>, trim: fn()) {
    let mut before = 0;
    while heard.wait_for(|bytes| bytes.wrapping_sub(before) >= MUCH_CONFIGURATION).await.is_ok() {
        // More is likely to come, and the snapshot that it replaces is likely to be in use.
        tokio::time::sleep(LULL).await;
        before = *heard.borrow();
        trim();
    }
}

/// From now on this thread gives back its memory by `trim`.
pub fn by(trim: fn()) {
    LOAD.with(|load| load.trim.set(Some(trim)));
}

/// A connection or a tunnel that lives on this thread, from its first moment to its last: what
/// fails before it stands, or never gets as far, has needed memory as well.
pub struct Lives(());

impl Lives {
    /// Begins.
    pub fn here() -> Self {
        begun();
        Self(())
    }
}

impl Drop for Lives {
    fn drop(&mut self) {
        ended();
    }
}

/// One that is about to end has carried so many bytes.
pub fn carried(bytes: u64) {
    if bytes >= MUCH {
        let _ = LOAD.try_with(|load| load.much.set(true));
    }
}

fn begun() {
    LOAD.with(|load| {
        let live = load.live.get() + 1;
        load.live.set(live);
        load.peak.set(load.peak.get().max(live));
        load.changes.set(load.changes.get().wrapping_add(1));
    });
}

fn ended() {
    // Fails only while the thread ends, and its memory with it.
    let _ = LOAD.try_with(|load| {
        // One that ends elsewhere than it began (when its worker has gone) is nobody's.
        load.live.set(load.live.get().saturating_sub(1));
        load.changes.set(load.changes.get().wrapping_add(1));
        if !load.watched.get()
            && load.is_worth_a_look()
            && load.trim.get().is_some()
            && let Ok(worker) = Handle::try_current()
        {
            load.watched.set(true);
            worker.spawn(watch());
        }
    });
}

impl Load {
    fn burst_is_gone(&self) -> bool {
        self.peak.get() >= BURST && self.live.get() <= self.peak.get() / LEFT
    }

    fn is_worth_a_look(&self) -> bool {
        self.burst_is_gone() || self.much.get()
    }

    fn give_back(&self) {
        let Some(trim) = self.trim.get() else { return };
        let started = std::time::Instant::now();
        leno_tls::buffer::release();
        trim();
        self.peak.set(self.live.get());
        self.much.set(false);
        tracing::debug!(took = ?started.elapsed(), live = self.live.get(), "gave back memory");
    }
}

/// Gives back memory once the burst is over, and again when its tunnels have gone.
async fn watch() {
    while lull().await {
        LOAD.with(Load::give_back);
        for wait in TUNNELS {
            let kept = LOAD.with(|load| load.live.get());
            sleep(wait - LULL).await;
            let quiet = quiet().await;
            // Another burst: it gets its own lull.
            if LOAD.with(|load| load.peak.get() >= kept + BURST) {
                break;
            }
            if quiet {
                LOAD.with(Load::give_back);
            }
        }
    }
    LOAD.with(|load| load.watched.set(false));
}

/// Whether there is something to give back; returns when nothing takes its place, or so much that
/// there isn't.
async fn lull() -> bool {
    while LOAD.with(Load::is_worth_a_look) {
        if quiet().await && LOAD.with(Load::is_worth_a_look) {
            return true;
        }
    }
    false
}

/// Whether few came or went in the time of a lull, which begins now.
async fn quiet() -> bool {
    let before = LOAD.with(|load| load.changes.get());
    sleep(LULL).await;
    LOAD.with(|load| load.changes.get().wrapping_sub(before) <= load.peak.get().max(BURST) / LEFT)
}

#[cfg(test)]
#[path = "give_back_tests.rs"]
mod tests;
