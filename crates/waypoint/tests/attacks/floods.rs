//! A client floods its HTTP/2 connection with frames that carry little or nothing, as fast as it can. Another client must not
//! notice. With `LENO_SOAK=1`, each flood lasts half a minute; with `LENO_FLOODS=10`, ten clients flood at once;
//! with `LENO_FLOOD=PING`, there are only those whose names contain PING.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_testkit::busy::Busy;
use leno_testkit::frames::{Frames, GET, POST, kind};
use leno_testkit::latencies::Latencies;
use leno_tunnel::TunnelStream;
use leno_tunnel::frame::PADDED;

use crate::support::{Client, Mesh, VIP};
use crate::{ALONE, memory, program};

/// The pause between two requests of the neighbour.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause before a client that was disconnected comes back. How many handshakes a second a waypoint bears is not tested
/// here.
const BACK: Duration = Duration::from_millis(100);

/// Memory that an attack may leave behind: what allocators keep, and the attacker is in this process as well.
const LEFT: usize = 64 << 20;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

type Attacker = Frames<TunnelStream>;

/// The frames of a flood, by number. Stream 1 is a request whose body has not ended.
type Flood = fn(&mut Attacker, u32);

fn window_update(frames: &mut Attacker, stream: u32, increment: u32) {
    frames.queue(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes());
}

const FLOODS: [(&str, Flood); 16] = [
    ("PING", |frames, _| frames.queue(kind::PING, 0, 0, &[0; 8])),
    ("PING's answers", |frames, _| frames.queue(kind::PING, 1, 0, &[0; 8])),
    ("SETTINGS", |frames, n| frames.queue(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, (n >> 8) as u8, n as u8])),
    ("SETTINGS of a table's size", |frames, n| frames.queue(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, (n & 15) as u8, 0])),
    ("a stream's WINDOW_UPDATE", |frames, _| window_update(frames, 1, 1)),
    ("the connection's WINDOW_UPDATE", |frames, _| window_update(frames, 0, 1)),
    ("empty DATA (CVE-2019-9518)", |frames, _| frames.queue_data(1, b"", false)),
    ("DATA of one byte", |frames, _| frames.queue_data(1, b"x", false)),
    ("DATA of padding", |frames, _| frames.queue(kind::DATA, PADDED, 1, &[0])),
    ("PRIORITY", |frames, n| frames.queue(2, 0, 2 * n + 1, &[0, 0, 0, 0, 1])),
    ("a kind that nobody knows", |frames, _| frames.queue(0x7e, 0, 0, &[])),
    ("requests given up (CVE-2023-44487)", |frames, n| {
        frames.queue_request(2 * n + 3, GET, END_STREAM);
        frames.queue_reset(2 * n + 3);
    }),
    ("requests to be reset (CVE-2025-8671)", |frames, n| {
        frames.queue_request(2 * n + 3, POST, 0);
        window_update(frames, 2 * n + 3, u32::MAX >> 1);
    }),
    ("requests that are malformed", |frames, n| {
        frames.queue(kind::HEADERS, END_STREAM | END_HEADERS, 2 * n + 3, &[GET, 0x86, 0x84, 0, 1, b'X', 0]);
    }),
    ("headers without end (CVE-2024-27316)", |frames, n| {
        let kind = if n == 0 { kind::HEADERS } else { kind::CONTINUATION };
        frames.queue(kind, 0, 3, &[0, 1, b'a', 1, b'b']);
    }),
    ("cookies in crumbs", |frames, n| {
        // One byte each: an entry of the table that the first request fills.
        let mut block = vec![GET, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b', 0x60, 3, b'a', b'=', b'b'];
        block.extend([0xbe; 4000]);
        frames.queue(kind::HEADERS, END_STREAM | END_HEADERS, 2 * n + 3, &block);
    }),
];

/// Taken as slowly as PINGs, and ended as they are, after seconds, if ever: a thread bears that many of one byte.
const AS_PINGS: [&str; 8] = [
    "PING's answers",
    "SETTINGS",
    "SETTINGS of a table's size",
    "a stream's WINDOW_UPDATE",
    "the connection's WINDOW_UPDATE",
    "DATA of one byte",
    "PRIORITY",
    "a kind that nobody knows",
];

fn soak() -> bool {
    std::env::var_os("LENO_SOAK").is_some()
}

/// Asks for something small again and again, and records how long each answer takes.
struct Neighbour {
    latencies: Latencies,
    _busy: Busy,
}

impl Neighbour {
    fn start(client: Client) -> Self {
        let latencies = Latencies::default();
        let kept = latencies.clone();
        let busy = Busy::with(move |stop| async move {
            let tunnel = client.open(&format!("{VIP}:80")).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tunnel)).await.unwrap();
            tokio::spawn(connection);
            while !stop.load(Relaxed) {
                let begun = Instant::now();
                let request = Request::get("http://web/").body(Full::<Bytes>::default()).unwrap();
                let response = sender.send_request(request).await.unwrap();
                assert_eq!(response.status(), 200);
                assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
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

/// What came of a flood.
#[derive(Debug, Default)]
struct Seen {
    connections: AtomicU64,
    frames: AtomicU64,
    goaways: AtomicU64,
    /// Connections that ended otherwise.
    cut: AtomicU64,
}

/// A client that floods, and comes back when it is disconnected.
fn flooding(client: Client, flood: Flood, seen: Arc<Seen>) -> Busy {
    Busy::elsewhere(move |stop| async move {
        while !stop.load(Relaxed) {
            let Ok(tunnel) = client.open(&format!("{VIP}:80")).await else { continue };
            seen.connections.fetch_add(1, Relaxed);
            let Ok(mut frames) = Frames::start(tunnel).await else { continue };
            frames.queue_request(1, POST, 0);
            let _ = frames.flush().await;
            let mut n = 0;
            'connection: while !stop.load(Relaxed) {
                while frames.queued() < 16 << 10 {
                    flood(&mut frames, n);
                    n += 1;
                    seen.frames.fetch_add(1, Relaxed);
                }
                let flushed = tokio::select! {
                    biased;
                    flushed = frames.flush() => flushed,
                    () = tokio::time::sleep(Duration::from_secs(2)) => Ok(()),
                };
                // What comes back is read, and thrown away.
                tokio::task::yield_now().await;
                while let Ok(answer) = tokio::time::timeout(Duration::ZERO, frames.next()).await {
                    match answer {
                        Some(frame) if frame.kind == kind::GOAWAY => {
                            seen.goaways.fetch_add(1, Relaxed);
                            break 'connection;
                        }
                        Some(_) => {}
                        None => {
                            seen.cut.fetch_add(1, Relaxed);
                            break 'connection;
                        }
                    }
                }
                if flushed.is_err() {
                    seen.cut.fetch_add(1, Relaxed);
                    break;
                }
            }
            tokio::time::sleep(BACK).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clients_flood_is_not_its_neighbours() {
    let _alone = ALONE.lock().await;
    // Twice, where there is time to tell; a busy machine shows only what stalls the thread.
    let (sample, rounds, times, at_least) = match soak() {
        true => (Duration::from_secs(30), 2, 2, Duration::from_millis(2)),
        false => (Duration::from_millis(250), 8, 4, Duration::from_millis(100)),
    };
    let clients = std::env::var("LENO_FLOODS").map_or(1, |clients| clients.parse().expect("LENO_FLOODS is a number"));
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let neighbour = Neighbour::start(mesh.client());
    neighbour.p99(Duration::from_millis(200)).await;
    let before = memory();
    let mut bad = Vec::new();
    let wanted = std::env::var("LENO_FLOOD").unwrap_or_default();
    for (what, flood) in FLOODS.into_iter().filter(|(what, _)| what.contains(&wanted)) {
        let (mut all, mut fine) = (Vec::new(), false);
        for _ in 0..rounds {
            let alone = neighbour.p99(sample.min(Duration::from_secs(3))).await;
            let seen = Arc::<Seen>::default();
            let beside = {
                let one = |_| flooding(mesh.client(), flood, seen.clone());
                let _flooding: Vec<Busy> = (0..clients).map(one).collect();
                neighbour.p99(sample).await
            };
            // They are not the waypoint's to keep.
            mesh.log.clear();
            println!(
                "{what}: {beside:?}, alone {alone:?}; {seen:?}; {} MiB more",
                memory().saturating_sub(before) >> 20
            );
            all.push((beside, alone));
            fine = beside <= alone.saturating_mul(times).clamp(at_least, sample);
            if fine {
                break;
            }
        }
        if !fine {
            bad.push((what, all));
        }
    }
    assert!(bad.is_empty(), "a neighbour's p99 beside a flood, and alone: {bad:?}");
    drop(neighbour);
    let grown = memory().saturating_sub(before);
    assert!(grown < LEFT, "{grown} bytes more");
}

/// Frames without use that a client may send within ten seconds.
const BORNE: u64 = 100_000;

/// Floods until the connection ends. Returns the code of its GOAWAY, if there is one.
async fn flood_to_the_end(frames: &mut Attacker, flood: Flood, sent: &AtomicU64) -> Option<u32> {
    frames.queue_request(1, POST, 0);
    for n in 0.. {
        flood(frames, n);
        sent.store(n.into(), Relaxed);
        if frames.queued() > 16 << 10 && frames.flush().await.is_err() {
            break;
        }
    }
    while let Some(frame) = frames.next().await {
        if frame.kind == kind::GOAWAY {
            return frame.error_code();
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_ended() {
    let _alone = ALONE.lock().await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let client = mesh.client();
    // All but the last, of which each request is refused and costs its sender more.
    let soak = soak();
    for (what, flood) in FLOODS[..FLOODS.len() - 1].iter().filter(|(what, _)| soak || !AS_PINGS.contains(what)) {
        let tunnel = client.open(&format!("{VIP}:80")).await.unwrap();
        let mut frames = Frames::start(tunnel).await.unwrap();
        let (begun, sent) = (Instant::now(), AtomicU64::default());
        let flooding = flood_to_the_end(&mut frames, *flood, &sent);
        let ended = tokio::time::timeout(Duration::from_secs(20), flooding).await;
        let rate = sent.load(Relaxed) / begun.elapsed().as_secs().max(1);
        println!("{what}: {ended:?} after {:?}, {rate} frames a second", begun.elapsed());
        match ended {
            // Those that are malformed get the code of that.
            Ok(code) => assert!([Some(11), Some(1)].contains(&code), "{what}: {code:?} is not ENHANCE_YOUR_CALM"),
            // A machine too busy to send so many is not flooded, either.
            Err(_) => assert!(rate < BORNE / 5, "{what}: {rate} frames a second are borne"),
        }
    }
}
