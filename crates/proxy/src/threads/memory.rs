//! Gives back memory after a burst of connections.
//!
//! An allocator keeps what a thread frees until that thread allocates again, and an idle thread does not. So each
//! worker counts the connections and tunnels that live on it. When most of them have ended, or one that carried much,
//! and few follow, the worker asks the allocator to give memory back. While nothing changes, nothing is checked: an
//! idle proxy does not wake up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use leno_tunnel::timers::sleep;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

/// Fewest connections that make a burst. They hold some hundred KiB.
const BURST: usize = 64;

/// A burst has gone when one in this many of its connections is left. It is over when fewer than that many begin or end
/// during a lull.
const LEFT: usize = 4;

/// Bytes after which a single connection's end counts like that of a burst. More may have waited here for a program
/// that did not read, up to a stream's window of 4 MiB. Before anything waits here, the kernel has taken more than
/// this.
const MUCH: u64 = 256 << 10;

/// How long few connections must begin or end before the allocator is asked. Meanwhile the worker does nothing else
/// (0.4 ms after 2000 connections), and in a burst it would need the memory again soon.
const LULL: Duration = Duration::from_secs(3);

/// The tunnels of the connections end later, and each keeps pages alive that it shares with memory already freed.
/// Tunnels beyond the first end after ten seconds, one that carried many streams after thirty, the last after sixty
/// ([`leno_tunnel::Settings`]), each up to ten seconds late because that is how often they are checked. These are the
/// waits from one check to the next; the first starts [`LULL`] after the burst's end.
const TUNNELS: [Duration; 3] = [Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(30)];

/// Bytes of configuration, received within one [`LULL`], after which memory is given back. Configuration that comes bit
/// by bit needs the same memory again and again.
const MUCH_CONFIGURATION: u64 = 1 << 20;

/// Gives back, with `trim`, the memory that receiving configuration has needed, a moment after much of it has come.
/// `heard` counts its bytes. For the control thread.
#[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
pub(crate) async fn after_configuration(mut heard: watch::Receiver<u64>, trim: fn()) {
    let mut burst = Burst::after(0);
    while heard.wait_for(|bytes| burst.is_much_with(*bytes)).await.is_ok() {
        // More will probably follow, and the replaced snapshot is probably still in use.
        tokio::time::sleep(LULL).await;
        burst = Burst::after(*heard.borrow());
        trim();
    }
}

/// The configuration received in one [`LULL`].
struct Burst {
    since: Instant,
    /// The bytes received before.
    before: u64,
    heard: u64,
}

impl Burst {
    fn after(heard: u64) -> Self {
        Self { since: Instant::now(), before: heard, heard }
    }

    /// Whether it is much, when `heard` bytes have been received.
    fn is_much_with(&mut self, heard: u64) -> bool {
        if self.since.elapsed() >= LULL {
            *self = Self::after(self.heard);
        }
        self.heard = heard;
        heard.wrapping_sub(self.before) >= MUCH_CONFIGURATION
    }
}

/// The connections and tunnels that live on one thread. That thread counts them, except those that are handed over to
/// it.
pub(crate) struct Memory {
    thread: Handle,
    /// Gives back memory that the thread has freed.
    trim: fn(),
    live: AtomicUsize,
    /// The largest number at a time since memory was given back.
    peak: AtomicUsize,
    /// The number that have ever begun, plus the number that have ended.
    changes: AtomicUsize,
    /// Whether one that carried [`MUCH`] has ended since memory was given back.
    much: AtomicBool,
    /// Whether a task waits for the lull.
    watched: AtomicBool,
}

/// A connection or a tunnel that lives on a worker, from its first moment to its last. One that fails before it is
/// established has needed memory as well.
pub struct Lives(Arc<Memory>);

impl Lives {
    /// Notes that it carried this many bytes. Called when it is about to end.
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
    /// For the thread that runs `thread`, which gives memory back with `trim`.
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

    /// To be called on the thread whose memory it is.
    fn give_back(&self) {
        let started = std::time::Instant::now();
        leno_tls::buffer::release();
        (self.trim)();
        let live = self.live.load(Relaxed);
        self.peak.store(live, Relaxed);
        self.much.store(false, Relaxed);
        tracing::debug!(took = ?started.elapsed(), live, "gave back memory");
    }

    /// Whether there is something to give back. Returns when a lull has come, or when so many new ones have begun that
    /// there is nothing to give back.
    async fn lull(&self) -> bool {
        while self.is_worth_a_look() {
            if self.quiet().await && self.is_worth_a_look() {
                return true;
            }
        }
        false
    }

    /// Whether few began or ended during a lull that starts now.
    async fn quiet(&self) -> bool {
        let before = self.changes.load(Relaxed);
        sleep(LULL).await;
        self.changes.load(Relaxed).wrapping_sub(before) <= self.peak.load(Relaxed).max(BURST) / LEFT
    }
}

/// Gives back memory when the burst is over, and again when its tunnels have ended.
async fn watch(memory: Arc<Memory>) {
    while memory.lull().await {
        memory.give_back();
        for wait in TUNNELS {
            let kept = memory.live.load(Relaxed);
            sleep(wait - LULL).await;
            let quiet = memory.quiet().await;
            // Another burst has begun, and has its own lull.
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
