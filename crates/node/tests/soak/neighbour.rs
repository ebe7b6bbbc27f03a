//! A pair of programs that mind their own business, and how they fare.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use parking_lot::Mutex;

use crate::process::{MESSAGE, order};
use crate::size::Size;

/// Between two requests: a thousand a second at most, far from what a proxy can do.
const PAUSE: Duration = Duration::from_millis(1);

/// A request loop over one connection, on a thread of its own: what the test does must not count.
pub(crate) struct Neighbour {
    latencies: Arc<Mutex<Vec<Duration>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts it; `to` echoes.
    pub(crate) fn start(from: &NetworkNamespace, to: SocketAddr) -> Self {
        let latencies = Arc::<Mutex<Vec<Duration>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let (from, results, stopped) = (from.clone(), latencies.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut stream = from.run(|| TcpStream::connect(to)).unwrap().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut message = [order::ECHO; MESSAGE];
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                stream.write_all(&message).unwrap();
                stream.read_exact(&mut message).unwrap();
                results.lock().push(begun.elapsed());
                std::thread::sleep(PAUSE);
            }
        });
        Self { latencies, stop, thread: Some(thread) }
    }

    /// The latency that 99 of 100 requests stay below, over the coming `time`.
    async fn p99(&self, time: Duration) -> Duration {
        self.latencies.lock().clear();
        tokio::time::sleep(time).await;
        let mut latencies = std::mem::take(&mut *self.latencies.lock());
        latencies.sort_unstable();
        assert!(!latencies.is_empty(), "the neighbour had no answer in {time:?}");
        latencies[latencies.len() * 99 / 100]
    }

    /// Its p99 while nothing else goes on. The median of several: on a virtual machine one alone may be a quarter or four
    /// times of the next.
    pub(crate) async fn base(&self, size: &Size) -> Duration {
        let mut seen = Vec::new();
        for _ in 0..size.bases {
            seen.push(self.p99(size.sample).await);
        }
        seen.sort_unstable();
        seen[seen.len() / 2]
    }

    /// Fails if its p99 is worse than it may be beside what now goes on, in most rounds.
    pub(crate) async fn is_undisturbed(&self, base: Duration, beside: &str, size: &Size) {
        let most = base.mul_f64(size.times).max(size.at_least);
        let (mut seen, mut good) = (Vec::new(), 0);
        for _ in 0..size.rounds {
            let p99 = self.p99(size.sample).await;
            println!("a neighbour's p99 beside {beside}: {p99:?}, alone {base:?}");
            seen.push(p99);
            good += usize::from(p99 <= most);
            if good > size.rounds / 2 {
                return;
            }
        }
        panic!("a neighbour's p99 beside {beside}: {seen:?}, alone {base:?}");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // While a test fails, it may wait for an answer for ever.
        if !std::thread::panicking()
            && let Some(thread) = self.thread.take()
        {
            thread.join().unwrap();
        }
    }
}
