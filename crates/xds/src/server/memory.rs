//! Gives the kernel back the memory that a burst of long requests needed.
//!
//! When a control plane restarts, a thousand proxies tell it what they hold, megabytes each. These lists are read and freed
//! at once. But the allocator keeps what a thread has freed until the thread calls it again, and an idle thread does not.
//! So after such a burst, each thread is asked once to give its memory back.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// A burst is over when no long request has come for this time.
const LULL: Duration = Duration::from_secs(3);
/// A thread that is not idle at any of this many checks, [`LOOK`] apart, is too busy to keep much unused memory.
const LOOKS: usize = 50;
const LOOK: Duration = Duration::from_millis(100);

/// Makes each thread of a runtime give memory back when a burst is over.
pub struct Memory {
    trim: fn(),
    /// Threads that have not given memory back yet.
    left: AtomicUsize,
    gave: Mutex<HashSet<ThreadId>>,
}

impl Memory {
    /// `trim` gives back what the calling thread has freed.
    pub fn new(trim: fn()) -> Self {
        Self { trim, left: AtomicUsize::new(0), gave: Mutex::default() }
    }

    /// To be called by each thread of the runtime when it is about to sleep.
    pub fn on_park(&self) {
        if self.left.load(Ordering::Acquire) > 0 && self.gave.lock().insert(thread::current().id()) {
            // Another burst may have reset the count.
            let _ = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
            (self.trim)();
        }
    }

    /// Watches `heard`, the bytes of long requests ([`Service::heard`](super::Service::heard)), and acts on the runtime that
    /// this runs on. Returns when the sender of `heard` is gone.
    pub async fn after_bursts(&self, mut heard: watch::Receiver<u64>) {
        while heard.changed().await.is_ok() {
            while matches!(timeout(LULL, heard.changed()).await, Ok(Ok(()))) {}
            let threads = Handle::current().metrics().num_workers();
            self.gave.lock().clear();
            self.left.store(threads, Ordering::Release);
            for _ in 0..LOOKS {
                if self.left.load(Ordering::Acquire) == 0 {
                    break;
                }
                // An empty task wakes a thread that sleeps; it gives memory back when it sleeps again.
                (0..threads).for_each(|_| drop(tokio::spawn(async {})));
                sleep(LOOK).await;
            }
            self.left.store(0, Ordering::Release);
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    static GAVE: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

    fn trim() {
        GAVE.lock().push(thread::current().id());
    }

    #[test]
    fn each_thread_gives_back_once_after_a_burst() {
        const THREADS: usize = 3;
        let memory = Arc::new(Memory::new(trim));
        let parks = memory.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .on_thread_park(move || parks.on_park())
            .build()
            .unwrap();
        let heard = watch::Sender::new(0);
        let looks_after = memory.clone();
        let receiver = heard.subscribe();
        runtime.spawn(async move { looks_after.after_bursts(receiver).await });
        runtime.block_on(async {
            for burst in 1..=2 {
                for _ in 0..10 {
                    heard.send_modify(|bytes| *bytes += 1);
                    tokio::task::yield_now().await;
                }
                let all = async {
                    while GAVE.lock().len() < THREADS * burst {
                        sleep(Duration::from_millis(20)).await;
                    }
                };
                timeout(Duration::from_secs(30), all).await.expect("each thread is asked");
                let gave: HashSet<ThreadId> = GAVE.lock().iter().copied().collect();
                assert_eq!((GAVE.lock().len(), gave.len()), (THREADS * burst, THREADS));
            }
        });
    }
}
