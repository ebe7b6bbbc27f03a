//! A client floods its HTTP/2 connection with frames that carry little or nothing, as fast as it can. Another client must not
//! notice. How much of a flood is taken in a turn is shown where no clock is needed (`wire_tests`); how long the other client
//! waits is measured here, on a quiet machine: with `LENO_SOAK=1`, each flood lasts half a minute; with `LENO_FLOODS=10`, ten
//! clients flood at once. With `LENO_FLOOD=PING`, there are only those whose names contain PING.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_testkit::busy::Busy;
use leno_testkit::frames::{Frames, POST, kind};
use leno_testkit::latencies::Latencies;
use tokio::sync::watch;

use crate::kinds::{Attacker, FLOODS, Flood};
use crate::support::{Client, Mesh, VIP, soon};
use crate::{ALONE, memory, program};

/// The pause between two requests of the neighbour.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause before a client that was disconnected comes back. How many handshakes a second a waypoint bears is not tested
/// here.
const BACK: Duration = Duration::from_millis(100);

/// Memory that an attack may leave behind: what allocators keep, and the attacker is in this process as well.
const LEFT: usize = 64 << 20;

fn soak() -> bool {
    std::env::var_os("LENO_SOAK").is_some()
}

/// Asks for something small again and again, and records how long each answer takes.
struct Neighbour {
    latencies: Latencies,
    /// How many there were.
    answers: watch::Receiver<u64>,
    _busy: Busy,
}

impl Neighbour {
    fn start(client: Client) -> Self {
        let latencies = Latencies::default();
        let kept = latencies.clone();
        let (tell, answers) = watch::channel(0);
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
                tell.send_modify(|answers| *answers += 1);
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { latencies, answers, _busy: busy }
    }

    /// Waits for so many answers.
    async fn answers(&mut self, count: u64) {
        let before = *self.answers.borrow();
        self.answers.wait_for(|answers| *answers >= before + count).await.unwrap();
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
    /// Bytes that have left.
    bytes: AtomicU64,
    goaways: AtomicU64,
    /// Connections that ended otherwise.
    cut: AtomicU64,
}

impl Seen {
    /// Waits until the flood has filled all that holds it back, or was ended.
    async fn is_on(&self) {
        while self.bytes.load(Relaxed) < MANY && self.goaways.load(Relaxed) + self.cut.load(Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Bytes of a flood that are more than a tunnel takes before any of them have been read.
const MANY: u64 = 80 << 10;

/// A client that floods on a thread of its own, and comes back when it is disconnected.
fn flooding(client: Client, flood: Flood, seen: Arc<Seen>) -> impl FnOnce(Arc<AtomicBool>) -> BoxFuture<'static, ()> {
    move |stop| {
        Box::pin(async move {
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
                    let queued = frames.queued() as u64;
                    let flushed = tokio::select! {
                        biased;
                        flushed = frames.flush() => flushed.map(|()| seen.bytes.fetch_add(queued, Relaxed)),
                        () = tokio::time::sleep(Duration::from_secs(2)) => Ok(0),
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
}

fn wanted() -> impl Iterator<Item = (&'static str, Flood)> {
    let wanted = std::env::var("LENO_FLOOD").unwrap_or_default();
    FLOODS.into_iter().filter(move |(what, _)| what.contains(&wanted))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_are_answered_while_a_client_floods() {
    let _alone = ALONE.lock().await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let mut neighbour = Neighbour::start(mesh.client());
    soon("the first answer", neighbour.answers(1)).await;
    let before = memory();
    for (what, flood) in wanted() {
        let seen = Arc::<Seen>::default();
        let flooding = Busy::with(flooding(mesh.client(), flood, seen.clone()));
        soon(what, seen.is_on()).await;
        // It goes on all the while, or comes back.
        soon(what, neighbour.answers(50)).await;
        drop(flooding);
        // Lines are not the waypoint's to keep.
        mesh.log.clear();
        println!("{what}: {seen:?}; {} MiB more", memory().saturating_sub(before) >> 20);
    }
    drop(neighbour);
    let grown = memory().saturating_sub(before);
    assert!(grown < LEFT, "{grown} bytes more");
}

/// Of so many rounds, one has to be good.
const ROUNDS: usize = 2;

/// A neighbour may wait so long, however fast it was answered before.
const AT_LEAST: Duration = Duration::from_millis(2);

#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_clients_flood_is_not_its_neighbours() {
    let _alone = ALONE.lock().await;
    let sample = Duration::from_secs(if soak() { 30 } else { 1 });
    let clients = std::env::var("LENO_FLOODS").map_or(1, |clients| clients.parse().expect("LENO_FLOODS is a number"));
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let neighbour = Neighbour::start(mesh.client());
    neighbour.p99(Duration::from_millis(200)).await;
    let before = memory();
    let mut bad = Vec::new();
    for (what, flood) in wanted() {
        let (mut all, mut fine) = (Vec::new(), false);
        for _ in 0..ROUNDS {
            let alone = neighbour.p99(sample.min(Duration::from_secs(3))).await;
            let seen = Arc::<Seen>::default();
            let beside = {
                let one = |_| Busy::elsewhere(flooding(mesh.client(), flood, seen.clone()));
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
            fine = beside <= alone.saturating_mul(2).clamp(AT_LEAST, sample);
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

/// Floods that are ended after so many frames, however long they take, and the code that their clients are told. The HTTP
/// library counts them. The others are taken slowly, and ended if they are too many in a time (`frames_tests`).
const ENDED: [(&str, u32); 5] = [
    ("empty DATA (CVE-2019-9518)", ENHANCE_YOUR_CALM),
    ("DATA of padding", ENHANCE_YOUR_CALM),
    ("requests to be reset (CVE-2025-8671)", ENHANCE_YOUR_CALM),
    ("requests that are malformed", PROTOCOL_ERROR),
    ("headers without end (CVE-2024-27316)", ENHANCE_YOUR_CALM),
];

const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_ended() {
    let _alone = ALONE.lock().await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let client = mesh.client();
    for (what, code) in ENDED {
        let (_, flood) = FLOODS.into_iter().find(|(name, _)| *name == what).unwrap();
        let tunnel = client.open(&format!("{VIP}:80")).await.unwrap();
        let mut frames = Frames::start(tunnel).await.unwrap();
        let sent = AtomicU64::default();
        let ended = soon(what, flood_to_the_end(&mut frames, flood, &sent)).await;
        assert_eq!(ended, Some(code), "{what}, after {sent:?}");
    }
}

#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_are_ended_or_slow() {
    let _alone = ALONE.lock().await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[program().await]).await;
    let client = mesh.client();
    // All but the last, of which each request is refused and costs its sender more.
    for (what, flood) in &FLOODS[..FLOODS.len() - 1] {
        let tunnel = client.open(&format!("{VIP}:80")).await.unwrap();
        let mut frames = Frames::start(tunnel).await.unwrap();
        let (begun, sent) = (Instant::now(), AtomicU64::default());
        let flooding = flood_to_the_end(&mut frames, *flood, &sent);
        let ended = tokio::time::timeout(Duration::from_secs(20), flooding).await;
        let rate = sent.load(Relaxed) / begun.elapsed().as_secs().max(1);
        println!("{what}: {ended:?} after {:?}, {rate} frames a second", begun.elapsed());
        match ended {
            // Those that are malformed get the code of that.
            Ok(code) => assert!(
                [Some(ENHANCE_YOUR_CALM), Some(PROTOCOL_ERROR)].contains(&code),
                "{what}: {code:?} is not ENHANCE_YOUR_CALM"
            ),
            // A machine too busy to send so many is not flooded, either.
            Err(_) => assert!(rate < BORNE / 5, "{what}: {rate} frames a second are borne"),
        }
    }
}
