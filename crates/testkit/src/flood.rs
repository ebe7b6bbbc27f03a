//! A peer that sends as fast as it can, and what that costs a neighbour of it.

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

/// What is sealed before it is sent, bytes, and how long that may take: so the receiver finds as much
/// at once as it can take in, however slowly it was sealed.
const BATCH: usize = 1 << 20;
const SEALING: Duration = Duration::from_millis(200);

/// What a neighbour may wait however fast it was before. A proxy that is not optimised takes several
/// milliseconds for each of its turns, and the machine may be busy with other things; a thread that
/// reads until a flood pauses keeps everybody waiting for seconds.
const FLOOR: Duration = Duration::from_millis(if cfg!(debug_assertions) { 50 } else { 2 });

/// A flood gets so many chances not to harm: what else the machine does may harm as well.
const ROUNDS: usize = 4;

/// What is said on the connection, and then over and over again. Both append sealed records.
#[derive(Clone, Copy)]
pub struct Flood {
    /// What it is called.
    pub name: &'static str,
    /// Said once.
    pub begin: fn(&mut Sender),
    /// Said for ever; the number counts the calls.
    pub go_on: fn(&mut Sender, u64),
}

impl fmt::Debug for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Seals what a flood says.
pub struct Sender {
    records: AnyRecords,
    out: Vec<u8>,
}

impl Sender {
    /// One record of data and so much padding.
    pub fn data(&mut self, content: &[u8], padding: usize) {
        let mut inner = content.to_vec();
        inner.push(DATA);
        inner.resize(inner.len() + padding, 0);
        self.records.seal(&inner, &mut self.out);
    }

    /// One record: content, type, and padding.
    pub fn record(&mut self, inner: &[u8]) {
        self.records.seal(inner, &mut self.out);
    }

    /// A KeyUpdate, which may ask for one in return.
    pub fn key_update(&mut self, asks: bool) {
        self.records.key_update(asks.into(), &mut self.out);
    }
}

/// A flood on its way, until dropped. It has a thread of its own, which gives way to all others: on
/// a machine of few cores it would take from the neighbour what an attacker elsewhere doesn't.
pub struct Flooder {
    socket: TcpStream,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flooder {
    /// Starts on an established connection.
    pub fn start(stream: TlsStream<tokio::net::TcpStream>, flood: Flood) -> Self {
        let (socket, records) = AnyRecords::of(stream);
        let socket = socket.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        let (stop, sent) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let mut sender = Sender { records, out: Vec::new() };
        let send = {
            let (mut socket, stop, sent) = (socket.try_clone().unwrap(), stop.clone(), sent.clone());
            move || {
                give_way();
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
                    sender.out.clear();
                }
            }
        };
        // Answers are taken, or the flood would stop for them.
        let receive = {
            let mut socket = socket.try_clone().unwrap();
            move || {
                give_way();
                let mut room = vec![0; 64 << 10];
                while socket.read(&mut room).is_ok_and(|length| length > 0) {}
            }
        };
        let threads = vec![std::thread::spawn(send), std::thread::spawn(receive)];
        Self { socket, stop, sent, threads }
    }

    /// Whether the receiver has put an end to it.
    pub fn is_refused(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Bytes that the receiver's machine has taken so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for Flooder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Fails where the receiver was faster.
        let _ = self.socket.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// How long each flood lasts: one second, or thirty with `LENO_SOAK=1`.
pub fn length() -> Duration {
    Duration::from_secs(if std::env::var_os("LENO_SOAK").is_some_and(|value| value == "1") { 30 } else { 1 })
}

/// The 99th percentile of what `exchange` takes, one after the other for so long.
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

/// While one peer floods, a neighbour's `exchange` takes at most twice what it took before, at the
/// 99th percentile, or [`FLOOR`].
///
/// # Panics
/// If it takes longer in every round, or if the flood is refused.
pub async fn spares_neighbours(
    flood: Flood,
    connect: &mut impl AsyncFnMut() -> TlsStream<tokio::net::TcpStream>,
    exchange: &mut impl AsyncFnMut(),
) {
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let base = percentile_99(length() / 2, exchange).await;
        let flooder = Flooder::start(connect().await, flood);
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

/// A flood is put an end to.
///
/// # Panics
/// If it goes on.
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
