//! An authenticated peer floods port 15008 with frames that carry one byte or nothing, as fast as it can. Another peer must
//! not notice: it is answered, and where latencies are measured, they stay what they were. How many frames of each flood a
//! turn takes, the tests of `leno-tunnel` show. With `LENO_SOAK=1`, each measured flood lasts half a minute.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leno_capture::NetworkNamespace;
use leno_testkit::busy::Busy;
use leno_testkit::certs::TestCertificate;
use leno_testkit::frames::{Frames, kind};
use leno_testkit::hbone::{self, Peer};
use leno_testkit::latencies::Latencies;
use leno_testkit::network::may_run;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::eventually;
use crate::{ALONE, Target};

/// The pause between two messages: at most a thousand a second, far less than a proxy can carry.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause before a disconnected peer comes back. How many handshakes a second a proxy bears is not tested here.
const BACK: Duration = Duration::from_millis(100);

/// A program of the pod that discards what it receives.
const DISCARD: u16 = 9;

/// The flooding peer's first stream, which leads to that program.
const TUNNEL: u32 = 1;

const PROGRAM: [u8; 100] = [7; 100];

/// Answers that a neighbour gets beside a flood, and frames that the flood sends meanwhile, unless it is cut off.
const ANSWERS: u64 = 100;
const FRAMES: u64 = 20_000;

/// The code by which a peer is told that it floods (ENHANCE_YOUR_CALM).
const CALM: u32 = 11;

/// The frames of a flood, by number. A flood may use a stream to a program.
type Flood = fn(&mut Frames<hbone::Tls>, u32, &str);

/// `window_update(stream, increment)`.
fn window_update(frames: &mut Frames<hbone::Tls>, stream: u32, increment: u32) {
    frames.queue(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

const FLOODS: [(&str, Flood); 14] = [
    ("PING", |frames, _, _| frames.queue(kind::PING, 0, 0, &[0; 8])),
    ("PING's answers", |frames, _, _| frames.queue(kind::PING, 1, 0, &[0; 8])),
    ("SETTINGS", |frames, n, _| frames.queue(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, (n >> 8) as u8, n as u8])),
    ("a stream's WINDOW_UPDATE", |frames, _, _| window_update(frames, TUNNEL, 1)),
    ("the connection's WINDOW_UPDATE", |frames, _, _| window_update(frames, 0, 1)),
    ("empty DATA", |frames, _, _| frames.queue_data(TUNNEL, b"", false)),
    ("DATA of one byte", |frames, _, _| frames.queue_data(TUNNEL, b"x", false)),
    ("DATA of padding", |frames, _, _| frames.queue(kind::DATA, 0x8, TUNNEL, &[0])),
    ("PRIORITY", |frames, n, _| frames.queue(2, 0, 2 * n + 1, &[0, 0, 0, 0, 1])),
    ("a kind that nobody knows", |frames, _, _| frames.queue(0x7e, 0, 0, &[])),
    ("RST_STREAM", |frames, _, _| frames.queue_reset(TUNNEL)),
    ("requests given up (CVE-2023-44487)", |frames, n, program| {
        frames.queue_connect(2 * n + 3, program.as_bytes());
        frames.queue_reset(2 * n + 3);
    }),
    ("requests to be reset (CVE-2025-8671)", |frames, n, program| {
        frames.queue_connect(2 * n + 3, program.as_bytes());
        window_update(frames, 2 * n + 3, u32::MAX >> 1);
    }),
    ("headers without end (CVE-2024-27316)", |frames, n, _| {
        let kind = if n == 0 { kind::HEADERS } else { kind::CONTINUATION };
        frames.queue(kind, 0, 3, &[0, 1, b'a', 1, b'b']);
    }),
];

/// What all peers of these tests need.
#[derive(Clone)]
struct Way {
    from: NetworkNamespace,
    to: SocketAddr,
    certificate: TestCertificate,
}

impl Way {
    async fn tls(&self) -> std::io::Result<hbone::Tls> {
        let tcp = self.from.run(|| std::net::TcpStream::connect(self.to)).expect("the namespace is there")?;
        tcp.set_nodelay(true)?;
        tcp.set_nonblocking(true)?;
        hbone::tls(TcpStream::from_std(tcp)?, Some(&self.certificate)).await
    }
}

/// Sends messages to a program through one tunnel, and records the time of each answer.
struct Neighbour {
    latencies: Latencies,
    answered: Arc<AtomicU64>,
    _busy: Busy,
}

impl Neighbour {
    fn start(way: Way, program: String) -> Self {
        let (latencies, answered) = <(Latencies, Arc<AtomicU64>)>::default();
        let (kept, count) = (latencies.clone(), answered.clone());
        let busy = Busy::with(move |stop| async move {
            let peer = Peer::start(way.tls().await.unwrap()).await.unwrap();
            let mut tunnel = peer.connect(&program).await.unwrap();
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                tunnel.send.send_data(Bytes::from_static(&PROGRAM), false).unwrap();
                hbone::read(&mut tunnel.receive, PROGRAM.len()).await;
                kept.push(begun.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { latencies, answered, _busy: busy }
    }

    /// The 99th percentile of the latency during the next `time`.
    async fn p99(&self, time: Duration) -> Duration {
        // None at all: it waits for the first.
        self.latencies.p99(time).await.unwrap_or(Duration::MAX)
    }
}

/// What a flooding peer has seen.
#[derive(Debug, Default)]
struct Seen {
    connections: AtomicU64,
    /// Frames, or groups of frames, that its kernel has taken.
    sent: AtomicU64,
    /// The codes of the GOAWAYs by which its connections were ended.
    told: Mutex<Vec<u32>>,
}

impl Seen {
    /// Whether it has sent much, or was cut off.
    fn is_enough(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= FRAMES || self.connections.load(Ordering::Relaxed) > 1
    }
}

/// A peer that floods, and reconnects when it is disconnected.
async fn flooding(way: Way, program: String, flood: Flood, seen: Arc<Seen>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(tls) = way.tls().await else { continue };
        seen.connections.fetch_add(1, Ordering::Relaxed);
        let Ok(mut frames) = Frames::start(tls).await else { continue };
        frames.queue_connect(TUNNEL, program.as_bytes());
        let _ = frames.flush().await;
        frames.next().await;
        let mut n = 0;
        'connection: while !stop.load(Ordering::Relaxed) {
            let before = n;
            while frames.queued() < 16 << 10 {
                flood(&mut frames, n, &program);
                n += 1;
            }
            tokio::select! {
                biased;
                flushed = frames.flush() => if flushed.is_err() { break 'connection },
                () = tokio::time::sleep(Duration::from_secs(2)) => break 'connection,
            }
            seen.sent.fetch_add(u64::from(n - before), Ordering::Relaxed);
            // What comes back is read, and thrown away.
            tokio::task::yield_now().await;
            while let Ok(answer) = tokio::time::timeout(Duration::ZERO, frames.next()).await {
                let Some(answer) = answer else { break 'connection };
                if answer.kind == kind::GOAWAY {
                    seen.told.lock().extend(answer.error_code());
                }
            }
        }
        // Why it was ended may have come since.
        while let Ok(Some(answer)) = tokio::time::timeout(BACK, frames.next()).await {
            if answer.kind == kind::GOAWAY {
                seen.told.lock().extend(answer.error_code());
            }
        }
        tokio::time::sleep(BACK).await;
    }
}

/// A pod with a program that answers, and one that discards; and the ways of peers to them.
struct Scene {
    target: Target,
    way: Way,
    discard: String,
    neighbour: Neighbour,
}

impl Scene {
    async fn new() -> Self {
        let target = Target::new().await;
        let discarding = target.pod.host().listen(target.pod.v4, DISCARD);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = discarding.accept().await {
                tokio::spawn(async move {
                    let mut scratch = vec![0; 256 << 10];
                    while stream.read(&mut scratch).await.is_ok_and(|length| length > 0) {}
                });
            }
        });
        let from = target.mesh.network.outside().namespace.clone();
        let way = Way { from, to: target.hbone(), certificate: target.good.clone() };
        let discard = SocketAddr::new(target.pod.v4, DISCARD).to_string();
        let neighbour = Neighbour::start(way.clone(), target.authority());
        let answered = neighbour.answered.clone();
        eventually("the first answer", || answered.load(Ordering::Relaxed) > 0).await;
        Self { target, way, discard, neighbour }
    }

    async fn ends_unharmed(self) {
        drop(self.neighbour);
        self.target.is_unharmed().await;
    }
}

/// The programs are on the second thread, for this one waits for peers to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_peers_flood_is_not_its_neighbours() {
    if !may_run("one_peers_flood_is_not_its_neighbours") {
        return;
    }
    let _alone = ALONE.lock().await;
    let scene = Scene::new().await;
    for (what, flood) in FLOODS {
        let seen = Arc::<Seen>::default();
        let answered = || scene.neighbour.answered.load(Ordering::Relaxed);
        let enough = answered() + ANSWERS;
        {
            let (way, discard, told) = (scene.way.clone(), scene.discard.clone(), seen.clone());
            let _flooding = Busy::with(move |stop| flooding(way, discard, flood, told, stop));
            eventually(what, || answered() >= enough && seen.is_enough()).await;
        }
        println!("{what}: {seen:?}");
        assert!(seen.told.lock().iter().all(|code| *code == CALM), "{what}: {seen:?}");
    }
    scene.ends_unharmed().await;
}

/// As above.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn one_peers_flood_does_not_slow_its_neighbours() {
    if !may_run("one_peers_flood_does_not_slow_its_neighbours") {
        return;
    }
    let _alone = ALONE.lock().await;
    let soak = std::env::var_os("LENO_SOAK").is_some();
    let sample = if soak { Duration::from_secs(30) } else { Duration::from_secs(1) };
    let (rounds, times, at_least) = (2, 2, Duration::from_millis(2));
    let scene = Scene::new().await;
    let mut bad = Vec::new();
    for (what, flood) in FLOODS {
        let (mut waits, mut fine) = (Vec::new(), false);
        for _ in 0..rounds {
            let alone = scene.neighbour.p99(sample.min(Duration::from_secs(3))).await;
            let seen = Arc::<Seen>::default();
            let beside = {
                let (way, discard, told) = (scene.way.clone(), scene.discard.clone(), seen.clone());
                let _flooding = Busy::elsewhere(move |stop| flooding(way, discard, flood, told, stop));
                scene.neighbour.p99(sample).await
            };
            println!("{what}: {beside:?}, alone {alone:?}; {seen:?}");
            waits.push((beside, alone));
            fine = beside <= alone.saturating_mul(times).clamp(at_least, sample);
            if fine {
                break;
            }
        }
        if !fine {
            bad.push((what, waits));
        }
    }
    assert!(bad.is_empty(), "a neighbour's p99 beside a flood, and alone: {bad:?}");
    scene.ends_unharmed().await;
}
