//! A client that can reach the control plane's port floods it with HTTP/2 frames that carry nothing, as fast as it can.
//! Another client must not notice. How much of a flood is taken in a turn is shown where no clock is needed (`calm_tests`); how
//! long the other client waits is measured here, on a quiet machine. With `LENO_SOAK=1` each flood lasts half a minute.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use leno_model::Identity;
use leno_testkit::busy::Busy;
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor, ControlConnector, RootSource, TlsStream};
use leno_xds::Resources;
use leno_xds::server::{
    AuthError, Authenticator, CaService, Caller, Limits, Service, Services, SignError, Signer, serve,
};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

const PATIENCE: Duration = Duration::from_secs(20);

/// The pause between two requests of the other client.
const PAUSE: Duration = Duration::from_millis(1);

/// The pause before a disconnected client comes back. How many handshakes a second the server bears is not tested here.
const BACK: Duration = Duration::from_millis(100);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// HPACK of `POST https://x/x`.
const REQUEST: &[u8] = b"\x83\x87\x04\x02/x\x01\x01x";

/// Writes frames of a kind; the number counts the calls.
type Flood = fn(u32, &mut Vec<u8>);

const FLOODS: [(&str, Flood); 13] = [
    ("PING", |_, out| frame(out, PING, 0, 0, &[0; 8])),
    ("PING's answers", |_, out| frame(out, PING, 1, 0, &[0; 8])),
    ("SETTINGS", |n, out| frame(out, SETTINGS, 0, 0, &[0, 4, 0, 1, (n >> 8) as u8, n as u8])),
    ("the connection's WINDOW_UPDATE", |_, out| frame(out, WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
    ("a stream's WINDOW_UPDATE", |_, out| frame(out, WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes())),
    ("empty DATA", |_, out| frame(out, DATA, 0, 1, &[])),
    ("DATA of one byte", |_, out| frame(out, DATA, 0, 1, &[0])),
    ("PRIORITY", |n, out| frame(out, 2, 0, 2 * n + 1, &[0, 0, 0, 0, 1])),
    ("a kind that nobody knows", |_, out| frame(out, 0x7e, 0, 0, &[])),
    ("RST_STREAM", |_, out| frame(out, RST_STREAM, 0, 1, &8u32.to_be_bytes())),
    ("requests given up (CVE-2023-44487)", |n, out| {
        frame(out, HEADERS, END_HEADERS, 2 * n + 3, REQUEST);
        frame(out, RST_STREAM, 0, 2 * n + 3, &8u32.to_be_bytes());
    }),
    ("headers without end (CVE-2024-27316)", |n, out| {
        frame(out, if n == 0 { HEADERS } else { CONTINUATION }, 0, 3, &[0, 1, b'a', 1, b'b']);
    }),
    ("PINGs among DATA for a request that was refused", |_, out| {
        frame(out, DATA, 0, 1, &[0; 600]);
        frame(out, PING, 0, 0, &[0; 8]);
        frame(out, PING, 0, 0, &[0; 8]);
    }),
];

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Accepts no token: authentication comes after what is tested here.
struct Nobody;

impl Authenticator for Nobody {
    fn authenticate<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(std::future::ready(Err(AuthError::Invalid("it has expired".to_owned()))))
    }
}

impl Signer for Nobody {
    fn sign<'a>(
        &'a self,
        _: &'a Caller,
        _: &'a str,
        _: Option<Identity>,
        _: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>, SignError>> {
        Box::pin(std::future::ready(Err(SignError::Invalid("no identity".to_owned()))))
    }
}

/// A control plane on a thread of its own, and how to reach it.
struct Control {
    way: Way,
    stop: Option<oneshot::Sender<()>>,
    _busy: Busy,
}

#[derive(Clone)]
struct Way {
    address: SocketAddr,
    root: String,
}

impl Control {
    fn start() -> Self {
        let authority = Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap());
        let root = authority.root_pem();
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let busy = Busy::with(move |_| async move {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let acceptor =
                ControlAcceptor::from_authority(authority, vec!["control.test".to_owned()], Vec::new()).unwrap();
            let (_resources, watched) = watch::channel(Arc::new(Resources::default()));
            let services = Services {
                discovery: Service::new(watched, Arc::new(Nobody)),
                certificates: CaService::new(Arc::new(Nobody), Arc::new(Nobody)),
            };
            serve(listener, acceptor, services, Limits::default(), async { drop(stopped.await) }).await;
        });
        Self { way: Way { address: told.recv().unwrap(), root }, stop: Some(stop), _busy: busy }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

impl Way {
    /// A connection after HTTP/2's preface.
    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        let connector = ControlConnector::new(RootSource::Pem(self.root.clone()));
        let tls = connector.connect(tcp, "control.test", PATIENCE).await;
        let mut tls = tls.map_err(std::io::Error::other)?;
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut begin, SETTINGS, 0, 0, &[]);
        tls.write_all(&begin).await?;
        tls.flush().await?;
        Ok(tls)
    }
}

/// The next frame's kind, stream and payload.
async fn next(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let [a, b, c, kind, _, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload).await?;
    Ok((kind, u32::from_be_bytes(id), payload))
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends requests again and again, and records the time until each answer.
fn neighbour(way: Way, latencies: Arc<Mutex<Vec<Duration>>>) -> Busy {
    Busy::with(move |stop| async move {
        let mut tls = way.connect().await.unwrap();
        for id in (1..).step_by(2) {
            let mut request = Vec::new();
            frame(&mut request, HEADERS, END_HEADERS | END_STREAM, id, REQUEST);
            let begun = Instant::now();
            tls.write_all(&request).await.unwrap();
            tls.flush().await.unwrap();
            loop {
                let (kind, stream, _) = next(&mut tls).await.expect("an honest client is served");
                assert_ne!(kind, GOAWAY, "an honest client is sent away");
                if (kind, stream) == (HEADERS, id) {
                    break;
                }
            }
            latencies.lock().push(begun.elapsed());
            if stop.load(Ordering::Relaxed) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

/// What came of a flood.
#[derive(Debug, Default)]
struct Seen {
    connections: AtomicU64,
    /// Bytes that have left.
    bytes: AtomicU64,
}

/// Floods, and reconnects when it is disconnected.
fn flooding(way: Way, flood: Flood, seen: Arc<Seen>) -> impl FnOnce(Arc<AtomicBool>) -> BoxFuture<'static, ()> {
    move |stop| {
        Box::pin(async move {
            while !stop.load(Ordering::Relaxed) {
                let Ok(tls) = way.connect().await else { continue };
                seen.connections.fetch_add(1, Ordering::Relaxed);
                let (mut read, mut write) = tokio::io::split(tls);
                // Answers are read. Otherwise they would fill the connection and end the flood.
                let reading = tokio::spawn(async move {
                    let mut scratch = vec![0; 64 << 10];
                    while read.read(&mut scratch).await.is_ok_and(|length| length > 0) {}
                });
                let mut chunk = Vec::new();
                frame(&mut chunk, HEADERS, END_HEADERS, 1, REQUEST);
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) && !reading.is_finished() {
                    while chunk.len() < 16 << 10 {
                        flood(n, &mut chunk);
                        n += 1;
                    }
                    let sent = tokio::time::timeout(2 * BACK, async {
                        write.write_all(&chunk).await?;
                        write.flush().await
                    });
                    if !sent.await.is_ok_and(|sent| sent.is_ok()) {
                        break;
                    }
                    seen.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                    chunk.clear();
                    tokio::task::yield_now().await;
                }
                reading.abort();
                tokio::time::sleep(BACK).await;
            }
        })
    }
}

fn p99(latencies: &Mutex<Vec<Duration>>, sample: Duration) -> Duration {
    latencies.lock().clear();
    std::thread::sleep(sample);
    let mut latencies = std::mem::take(&mut *latencies.lock());
    latencies.sort_unstable();
    // No sample at all means that the client still waits for its first answer.
    latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(Duration::MAX)
}

/// Bytes of a flood, several turns' worth of most.
const MANY: u64 = 64 << 10;

#[test]
fn neighbours_are_answered_while_a_client_floods() {
    let control = Control::start();
    let latencies = Arc::<Mutex<Vec<Duration>>>::default();
    let _neighbour = neighbour(control.way.clone(), latencies.clone());
    let answers = || latencies.lock().len();
    until("the first answer", || answers() > 0);
    for (what, flood) in FLOODS {
        let seen = Arc::<Seen>::default();
        let _flooding = Busy::with(flooding(control.way.clone(), flood, seen.clone()));
        // It goes on all the while, or comes back.
        until(what, || seen.bytes.load(Ordering::Relaxed) > MANY || seen.connections.load(Ordering::Relaxed) > 1);
        let before = answers();
        until(what, || answers() >= before + 50);
    }
}

/// Of so many rounds, one has to be good.
const ROUNDS: usize = 2;

/// A neighbour may wait so long, however fast it was answered before.
const AT_LEAST: Duration = Duration::from_millis(2);

#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
#[test]
fn one_clients_flood_is_not_its_neighbours() {
    let soak = std::env::var_os("LENO_SOAK").is_some();
    let sample = Duration::from_secs(if soak { 30 } else { 1 });
    let control = Control::start();
    let latencies = Arc::default();
    let _neighbour = neighbour(control.way.clone(), Arc::clone(&latencies));
    p99(&latencies, Duration::from_millis(200));
    let mut bad = Vec::new();
    for (what, flood) in FLOODS {
        let mut seen = Vec::new();
        let fine = (0..ROUNDS).any(|_| {
            let alone = p99(&latencies, sample.min(Duration::from_secs(3)));
            let flood_seen = Arc::<Seen>::default();
            let beside = {
                let _flooding = Busy::elsewhere(flooding(control.way.clone(), flood, flood_seen.clone()));
                p99(&latencies, sample)
            };
            println!("{what}: {beside:?}, alone {alone:?}; {flood_seen:?}");
            seen.push((beside, alone));
            beside <= alone.saturating_mul(2).clamp(AT_LEAST, sample)
        });
        if !fine {
            bad.push((what, seen));
        }
    }
    assert!(bad.is_empty(), "a neighbour's p99 beside a flood, and alone: {bad:?}");
}

#[tokio::test]
async fn a_client_that_floods_is_told_to_calm_down() {
    const ENHANCE_YOUR_CALM: u8 = 11;
    let control = Control::start();
    for (what, flood) in [FLOODS[0], FLOODS[3], FLOODS[7], FLOODS[8], FLOODS[12]] {
        let mut tls = control.way.connect().await.unwrap();
        let mut request = Vec::new();
        frame(&mut request, HEADERS, END_HEADERS, 1, REQUEST);
        tls.write_all(&request).await.unwrap();
        tls.flush().await.unwrap();
        while !matches!(next(&mut tls).await.unwrap(), (HEADERS, 1, _)) {}
        let (mut read, mut write) = tokio::io::split(tls);
        let sending = async {
            let (mut numbers, mut chunk) = (0.., Vec::new());
            loop {
                chunk.clear();
                numbers.by_ref().take(500).for_each(|number| flood(number, &mut chunk));
                if write.write_all(&chunk).await.is_err() || write.flush().await.is_err() {
                    // What it was told before that is still to be read.
                    std::future::pending().await
                }
            }
        };
        let told = async {
            loop {
                match next(&mut read).await {
                    Ok((GOAWAY, _, payload)) => return payload,
                    Ok(_) => {}
                    Err(error) => panic!("{what}: no word before the end: {error}"),
                }
            }
        };
        let told = tokio::time::timeout(PATIENCE, async {
            tokio::select! { () = sending => unreachable!(), told = told => told }
        });
        assert_eq!(told.await.unwrap_or_else(|_| panic!("{what}: borne"))[7], ENHANCE_YOUR_CALM, "{what}");
    }
}
