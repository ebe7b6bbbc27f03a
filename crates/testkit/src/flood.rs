//! A peer that sends as fast as it can, and how much that slows down a neighbour.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leno_tls::TlsStream;
use leno_tls::fuzzing::AnyRecords;

use crate::busy::give_way;

/// The content type of data (RFC 8446 §5.1).
const DATA: u8 = 23;

/// How much is sealed before it is sent, in bytes, and how long that may take. So the receiver finds as much at once as
/// it can take in, even if sealing is slow.
const BATCH: usize = 1 << 20;
const SEALING: Duration = Duration::from_millis(200);

/// A delay of this length is accepted, however fast the neighbour was before. A proxy without optimisation takes
/// several milliseconds for each turn, and the machine may be busy. A thread that reads until a flood pauses makes its
/// neighbours wait for seconds.
const FLOOR: Duration = Duration::from_millis(if cfg!(debug_assertions) { 50 } else { 2 });

/// Exchanges of a neighbour that have to come to their end beside a flood, and batches of the flood that the receiver has
/// to take meanwhile. One that reads on for as long as there is something to read comes to no end of the first exchange.
const EXCHANGES: u32 = 100;
const BATCHES: u64 = 4;

/// How long all of that may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many rounds a flood has in which to do no harm. Other work on the machine slows the neighbour down as well.
const ROUNDS: usize = 4;

/// What the flood sends: once at the beginning, and then repeatedly. Both functions append sealed records.
#[derive(Clone, Copy)]
pub struct Flood {
    /// Its name in messages.
    pub name: &'static str,
    /// Sent once.
    pub begin: fn(&mut Sender),
    /// Sent repeatedly. The number counts the calls.
    pub go_on: fn(&mut Sender, u64),
}

impl fmt::Debug for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Seals what a flood sends.
pub struct Sender {
    records: AnyRecords,
    out: Vec<u8>,
}

impl Sender {
    /// One record of data, with this much padding.
    pub fn data(&mut self, content: &[u8], padding: usize) {
        let mut inner = content.to_vec();
        inner.push(DATA);
        inner.resize(inner.len() + padding, 0);
        self.records.seal(&inner, &mut self.out);
    }

    /// One record: content, content type and padding.
    pub fn record(&mut self, inner: &[u8]) {
        self.records.seal(inner, &mut self.out);
    }

    /// A KeyUpdate, which may request one in return.
    pub fn key_update(&mut self, asks: bool) {
        self.records.key_update(asks.into(), &mut self.out);
    }
}

/// A running flood, until dropped.
pub struct Flooder {
    socket: TcpStream,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    batches: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flooder {
    /// Starts on an established connection.
    pub fn start(stream: TlsStream<tokio::net::TcpStream>, flood: Flood) -> Self {
        Self::beginning(stream, flood, || {})
    }

    /// As [`Flooder::start`], on threads of the lowest priority: with few cores they would otherwise take processor time
    /// from a neighbour whose latency is measured, which a remote attacker doesn't.
    pub fn elsewhere(stream: TlsStream<tokio::net::TcpStream>, flood: Flood) -> Self {
        Self::beginning(stream, flood, give_way)
    }

    fn beginning(stream: TlsStream<tokio::net::TcpStream>, flood: Flood, begin: fn()) -> Self {
        let (socket, records) = AnyRecords::of(stream);
        let socket = socket.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        let (stop, sent, batches) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut sender = Sender { records, out: Vec::new() };
        let send = {
            let (mut socket, stop) = (socket.try_clone().unwrap(), stop.clone());
            let (sent, batches) = (sent.clone(), batches.clone());
            move || {
                begin();
                (flood.begin)(&mut sender);
                let mut numbers = 0..;
                while !stop.load(Relaxed) {
                    let begin = Instant::now();
                    while sender.out.len() < BATCH && begin.elapsed() < SEALING {
                        numbers.by_ref().take(16).for_each(|number| (flood.go_on)(&mut sender, number));
                    }
                    if socket.write_all(&sender.out).is_err() {
                        return;
                    }
                    sent.fetch_add(sender.out.len() as u64, Relaxed);
                    batches.fetch_add(1, Relaxed);
                    sender.out.clear();
                }
            }
        };
        // Read the answers, because a full receive buffer would stop the flood.
        let receive = {
            let mut socket = socket.try_clone().unwrap();
            move || {
                begin();
                let mut room = vec![0; 64 << 10];
                while socket.read(&mut room).is_ok_and(|length| length > 0) {}
            }
        };
        let threads = vec![std::thread::spawn(send), std::thread::spawn(receive)];
        Self { socket, stop, sent, batches, threads }
    }

    /// Whether the receiver has closed the connection.
    pub fn is_refused(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Bytes that the receiver's kernel has accepted so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Fails if the receiver has closed first.
        let _ = self.socket.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The duration of each flood: one second, or thirty with `LENO_SOAK=1`.
pub fn length() -> Duration {
    Duration::from_secs(if std::env::var_os("LENO_SOAK").is_some_and(|value| value == "1") { 30 } else { 1 })
}

/// The 99th percentile of the duration of `exchange`, repeated for this long.
pub async fn percentile_99(length: Duration, exchange: &mut impl AsyncFnMut()) -> Duration {
    let begin = Instant::now();
    let mut took = Vec::new();
    while begin.elapsed() < length || took.len() < 100 {
        let asked = Instant::now();
        exchange().await;
        took.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// Asserts that a neighbour's exchanges come to their end during a flood, and that the flood goes on meanwhile.
///
/// # Panics
/// If one of both stands still, or if the receiver closes the flood's connection.
pub async fn leaves_turns_to_neighbours(
    flood: Flood,
    connect: &mut impl AsyncFnMut() -> TlsStream<tokio::net::TcpStream>,
    exchange: &mut impl AsyncFnMut(),
) {
    let flooder = Flooder::start(connect().await, flood);
    let mut exchanges = 0;
    let both = async {
        while exchanges < EXCHANGES || flooder.batches.load(Relaxed) < BATCHES {
            exchange().await;
            exchanges += 1;
        }
    };
    let done = tokio::time::timeout(PATIENCE, both).await;
    let sent = flooder.sent();
    assert!(!flooder.is_refused(), "{flood:?} was refused after {sent} bytes");
    assert!(done.is_ok(), "{flood:?}: {exchanges} exchanges of a neighbour beside {sent} bytes");
    println!("{flood:?}: {exchanges} exchanges of a neighbour beside {sent} bytes");
}

/// Asserts that during a flood the 99th percentile of a neighbour's `exchange` is at most twice what it was before, or
/// [`FLOOR`].
///
/// # Panics
/// If it takes longer in every round, or if the receiver closes the flood's connection.
pub async fn spares_neighbours(
    flood: Flood,
    connect: &mut impl AsyncFnMut() -> TlsStream<tokio::net::TcpStream>,
    exchange: &mut impl AsyncFnMut(),
) {
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let base = percentile_99(length() / 2, exchange).await;
        let flooder = Flooder::elsewhere(connect().await, flood);
        let flooded = percentile_99(length(), exchange).await;
        assert!(!flooder.is_refused(), "{flood:?} was refused after {} bytes", flooder.sent());
        assert!(flooder.sent() > 0, "{flood:?} did not begin");
        println!("{flood:?}: {base:?} before, {flooded:?} beside {} bytes", flooder.sent());
        if flooded < (2 * base).max(FLOOR) {
            return;
        }
        seen.push((base, flooded));
    }
    panic!("{flood:?}: a neighbour waits, before and beside it: {seen:?}");
}

/// Asserts that the receiver closes a flood's connection.
///
/// # Panics
/// If it doesn't.
pub async fn is_refused(flood: Flood, stream: TlsStream<tokio::net::TcpStream>) {
    let flooder = Flooder::start(stream, flood);
    let refused = async {
        while !flooder.is_refused() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(20);
    assert!(tokio::time::timeout(patience, refused).await.is_ok(), "{flood:?} goes on after {} bytes", flooder.sent());
}
