//! An authenticated peer floods port 15008 with frames that carry one byte or nothing, as fast as it can. Another peer must
//! not notice. With `LENO_SOAK=1`, each flood lasts half a minute.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leno_capture::NetworkNamespace;
use leno_testkit::busy::Busy;
use leno_testkit::certs::TestCertificate;
use leno_testkit::frames::{Frames, kind};
use leno_testkit::hbone::{self, Peer};
use leno_testkit::latencies::Latencies;
use leno_testkit::network::may_run;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

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
    _busy: Busy,
}

impl Neighbour {
    fn start(way: Way, program: String) -> Self {
        let latencies = Latencies::default();
        let kept = latencies.clone();
        let busy = Busy::with(move |stop| async move {
            let peer = Peer::start(way.tls().await.unwrap()).await.unwrap();
            let mut tunnel = peer.connect(&program).await.unwrap();
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                tunnel.send.send_data(Bytes::from_static(&PROGRAM), false).unwrap();
                hbone::read(&mut tunnel.receive, PROGRAM.len()).await;
                kept.push(begun.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { latencies, _busy: busy }
    }

    /// The 99th percentile of the latency during the next `time`.
    async fn p99(&self, time: Duration) -> Duration {
        // None at all: it waits for the first.
        self.latencies.p99(time).await.unwrap_or(Duration::MAX)
    }
}

/// A peer that floods, and reconnects when it is disconnected. Counts connections.
fn flooding(way: Way, program: String, flood: Flood, connections: Arc<AtomicU64>) -> Busy {
    Busy::elsewhere(move |stop| async move {
        while !stop.load(Ordering::Relaxed) {
            let Ok(tls) = way.tls().await else { continue };
            connections.fetch_add(1, Ordering::Relaxed);
            let Ok(mut frames) = Frames::start(tls).await else { continue };
            frames.queue_connect(TUNNEL, program.as_bytes());
            let _ = frames.flush().await;
            frames.next().await;
            let mut n = 0;
            'connection: while !stop.load(Ordering::Relaxed) {
                while frames.queued() < 16 << 10 {
                    flood(&mut frames, n, &program);
                    n += 1;
                }
                tokio::select! {
                    biased;
                    flushed = frames.flush() => if flushed.is_err() { break 'connection },
                    () = tokio::time::sleep(Duration::from_secs(2)) => break 'connection,
                }
                // What comes back is read, and thrown away.
                tokio::task::yield_now().await;
                while let Ok(answer) = tokio::time::timeout(Duration::ZERO, frames.next()).await {
                    if answer.is_none() {
                        break 'connection;
                    }
                }
            }
            tokio::time::sleep(BACK).await;
        }
    })
}

/// The programs are on the second thread, for this one waits for peers to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_peers_flood_is_not_its_neighbours() {
    if !may_run("one_peers_flood_is_not_its_neighbours") {
        return;
    }
    let _alone = ALONE.lock().await;
    // Twice, where there is time to tell; a busy machine shows only what stalls the thread.
    let soak = std::env::var_os("LENO_SOAK").is_some();
    let (sample, rounds, times, at_least) = match soak {
        true => (Duration::from_secs(30), 2, 2, Duration::from_millis(2)),
        false => (Duration::from_millis(250), 8, 4, Duration::from_millis(100)),
    };
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
    neighbour.p99(Duration::from_millis(200)).await;
    let mut bad = Vec::new();
    for (what, flood) in FLOODS {
        let (mut seen, mut fine) = (Vec::new(), false);
        for _ in 0..rounds {
            let alone = neighbour.p99(sample.min(Duration::from_secs(3))).await;
            let connections = Arc::<AtomicU64>::default();
            let beside = {
                let _flooding = flooding(way.clone(), discard.clone(), flood, connections.clone());
                neighbour.p99(sample).await
            };
            println!("{what}: {beside:?}, alone {alone:?}; {connections:?} connections");
            seen.push((beside, alone));
            fine = beside <= alone.saturating_mul(times).clamp(at_least, sample);
            if fine {
                break;
            }
        }
        if !fine {
            bad.push((what, seen));
        }
    }
    assert!(bad.is_empty(), "a neighbour's p99 beside a flood, and alone: {bad:?}");
    drop(neighbour);
    target.is_unharmed().await;
}
