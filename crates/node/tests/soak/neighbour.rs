//! A pair of programs that mind their own business, and how they fare.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use leno_testkit::latencies::Latencies;

use crate::others::Taken;
use crate::process::{MESSAGE, order};
use crate::size::Size;
use crate::support::eventually;

/// Between two requests: a thousand a second at most, far from what a proxy can do.
const PAUSE: Duration = Duration::from_millis(1);

/// Share of the machine that others may take in a round that counts. Half a core of two makes a p99 twice its base.
const OTHERS: f64 = 0.15;
/// Rounds repeated at most.
const REPEATED: usize = 8;
/// How many times what it may be a p99 is if the proxy, and not the machine, is at fault.
const STANDS_STILL: u32 = 10;

/// Answers that a neighbour has to get beside whatever goes on. One that stands still gets none.
const ANSWERS: usize = 100;

/// A request loop over one connection, on a thread of its own: what the test does must not count.
pub(crate) struct Neighbour {
    latencies: Latencies,
    answered: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts it; `to` echoes.
    pub(crate) fn start(from: &NetworkNamespace, to: SocketAddr) -> Self {
        let latencies = Latencies::default();
        let (stop, answered) = <(Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (from, results, stopped, count) = (from.clone(), latencies.clone(), stop.clone(), answered.clone());
        let thread = std::thread::spawn(move || {
            let mut stream = from.run(|| TcpStream::connect(to)).unwrap().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut message = [order::ECHO; MESSAGE];
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                stream.write_all(&message).unwrap();
                stream.read_exact(&mut message).unwrap();
                results.push(begun.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        Self { latencies, answered, stop, thread: Some(thread) }
    }

    /// The latency that 99 of 100 requests stay below, over the coming `time`.
    async fn p99(&self, time: Duration) -> Duration {
        let p99 = self.latencies.p99(time).await;
        p99.unwrap_or_else(|| panic!("the neighbour had no answer in {time:?}"))
    }

    /// Fails if it is not answered any more.
    async fn goes_on(&self, beside: &str) {
        let before = self.answered();
        eventually(&format!("a neighbour's answers beside {beside}"), || self.answered() >= before + ANSWERS).await;
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Its p99 while nothing else goes on, where latencies are measured. The median of several: on a virtual machine one
    /// alone may be a quarter or four times of the next.
    pub(crate) async fn base(&self, size: &Size) -> Option<Duration> {
        if !size.measured {
            return None;
        }
        let mut seen = Vec::new();
        for _ in 0..size.bases {
            seen.push(self.p99(size.sample).await);
        }
        seen.sort_unstable();
        Some(seen[seen.len() / 2])
    }

    /// Fails if what now goes on keeps it from answers. And where latencies are measured, if its p99 is worse than it may
    /// be in most rounds. A round in which others took much of the machine is repeated. If they never stop, a proxy that
    /// stands still is all that can be told from them.
    pub(crate) async fn is_undisturbed(&self, base: Option<Duration>, beside: &str, size: &Size) {
        self.goes_on(beside).await;
        let Some(base) = base else { return };
        let most = base.mul_f64(size.times).max(size.at_least);
        let (mut seen, mut counted, mut good) = (Vec::new(), 0, 0);
        for _ in 0..size.rounds + REPEATED {
            let taken = Taken::now();
            let p99 = self.p99(size.sample).await;
            let others = taken.by_others();
            println!(
                "a neighbour's p99 beside {beside}: {p99:?}, alone {base:?}; others took {others:.2} of the machine"
            );
            seen.push(p99);
            good += usize::from(p99 <= most);
            counted += usize::from(p99 <= most || others <= OTHERS);
            if good > size.rounds / 2 {
                return;
            }
            assert!(counted < size.rounds, "a neighbour's p99 beside {beside}: {seen:?}, alone {base:?}");
        }
        seen.sort_unstable();
        let median = seen[seen.len() / 2];
        assert!(median <= most * STANDS_STILL, "a neighbour's p99 beside {beside}: {seen:?}, alone {base:?}");
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
