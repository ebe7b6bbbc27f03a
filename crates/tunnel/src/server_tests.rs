use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::test_support::{Draining, Farm, echo, request, say};
use crate::window::BEFORE;
use crate::{ConnectRequest, OpenError, Pool};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Index 12 of HPACK's static table.
const STATUS_400: u8 = 0x8c;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// HPACK of `:method: CONNECT` and, if given, `:authority`.
fn connect_block(authority: Option<&str>) -> Vec<u8> {
    let mut block = vec![0x02, 7];
    block.extend(b"CONNECT");
    if let Some(authority) = authority {
        block.extend([0x01, authority.len() as u8]);
        block.extend(authority.as_bytes());
    }
    block
}

fn connect_frame(stream: u32) -> Vec<u8> {
    frame(HEADERS, 4, stream, &connect_block(Some("10.0.0.1:80")))
}

/// A client that sends arbitrary frames.
struct Raw {
    io: DuplexStream,
    server: JoinHandle<Served>,
    requests: mpsc::UnboundedReceiver<InboundConnect>,
}

impl Raw {
    async fn start(settings: Settings) -> Self {
        let (mut io, far) = duplex(1 << 20);
        let (seen, requests) = mpsc::unbounded_channel();
        let server = tokio::spawn(async move {
            serve(far, &settings, std::future::pending(), |inbound| {
                let _ = seen.send(inbound);
            })
            .await
        });
        io.write_all(PREFACE).await.unwrap();
        io.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        let mut raw = Self { io, server, requests };
        raw.wait_for(SETTINGS).await.unwrap();
        raw.send(&frame(SETTINGS, 1, 0, &[])).await;
        raw
    }

    async fn send(&mut self, frame: &[u8]) {
        self.io.write_all(frame).await.unwrap();
    }

    async fn frame(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.io.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.io.read_exact(&mut payload).await.ok()?;
        Some((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }

    /// The next frame of this kind.
    async fn wait_for(&mut self, kind: u8) -> Option<(u32, Vec<u8>)> {
        loop {
            let (found, stream, payload) = self.frame().await?;
            if found == kind {
                return Some((stream, payload));
            }
        }
    }
}

fn code(payload: &[u8]) -> Reason {
    Reason::from(u32::from_be_bytes(payload[payload.len() - 4..].try_into().unwrap()))
}

fn goaway_code(payload: &[u8]) -> Reason {
    Reason::from(u32::from_be_bytes(payload[4..8].try_into().unwrap()))
}

#[tokio::test]
async fn requests_without_authority_reach_the_handler_as_such() {
    let mut raw = Raw::start(Settings::default()).await;
    raw.send(&frame(HEADERS, 4, 1, &connect_block(None))).await;
    let inbound = raw.requests.recv().await.unwrap();
    assert_eq!((inbound.method(), inbound.authority()), (&Method::CONNECT, None));
    inbound.refuse(StatusCode::BAD_REQUEST, HeaderMap::new());
    let (stream, payload) = raw.wait_for(HEADERS).await.unwrap();
    assert_eq!((stream, payload[0]), (1, STATUS_400));
    raw.send(&connect_frame(3)).await;
    assert_eq!(raw.requests.recv().await.unwrap().authority(), Some("10.0.0.1:80"));
}

#[tokio::test]
async fn other_methods_reach_the_handler_as_such() {
    let mut raw = Raw::start(Settings::default()).await;
    // GET https / with authority "x": indices 2, 7 and 4 of the static table.
    raw.send(&frame(HEADERS, 5, 1, &[0x82, 0x87, 0x84, 0x01, 1, b'x'])).await;
    let inbound = raw.requests.recv().await.unwrap();
    assert_eq!(inbound.method(), Method::GET);
    inbound.refuse(StatusCode::BAD_REQUEST, HeaderMap::new());
    let (stream, payload) = raw.wait_for(HEADERS).await.unwrap();
    assert_eq!((stream, payload[0]), (1, STATUS_400));
}

#[tokio::test]
async fn ten_thousand_streams_stay_bounded() {
    let mut raw = Raw::start(Settings::default()).await;
    let (mut read, mut write) = tokio::io::split(raw.io);
    let flood = tokio::spawn(async move {
        for stream in 0..10_000u32 {
            if write.write_all(&connect_frame(2 * stream + 1)).await.is_err() {
                return stream;
            }
        }
        10_000
    });
    let mut sink = Vec::new();
    let _ = read.read_to_end(&mut sink).await;
    let served = raw.server.await.unwrap();
    assert!(served.requests <= 200, "{served:?}");
    assert!(
        matches!(&served.end, Err(ServeError::Connection(Error::GoAway { code: Reason::ENHANCE_YOUR_CALM, .. }))),
        "{served:?}"
    );
    let mut seen = 0;
    while raw.requests.try_recv().is_ok() {
        seen += 1;
    }
    assert_eq!(seen, served.requests);
    flood.await.unwrap();
}

#[tokio::test]
async fn rapid_reset_ends_the_connection() {
    let mut raw = Raw::start(Settings::default()).await;
    let (mut read, mut write) = tokio::io::split(raw.io);
    tokio::spawn(async move {
        // One write, so that the resets are processed before their requests are handed out.
        let mut batch = Vec::new();
        for stream in 0..10_000u32 {
            batch.extend(connect_frame(2 * stream + 1));
            batch.extend(frame(RST_STREAM, 0, 2 * stream + 1, &8u32.to_be_bytes()));
        }
        let _ = write.write_all(&batch).await;
    });
    let mut sink = Vec::new();
    let _ = read.read_to_end(&mut sink).await;
    let served = raw.server.await.unwrap();
    assert!(served.requests < 1000, "{served:?}");
    assert!(
        matches!(&served.end, Err(ServeError::Connection(Error::GoAway { code: Reason::ENHANCE_YOUR_CALM, .. }))),
        "{served:?}"
    );
    raw.requests.close();
}

/// A request head of about 5 600 bytes, as HTTP/2 counts.
fn large_head(stream: u32) -> Vec<u8> {
    let mut block = connect_block(Some("10.0.0.1:80"));
    for i in 0..100u8 {
        block.extend([0x00, 3, b'x', b'0' + i / 10, b'0' + i % 10, 20]);
        block.extend([b'v'; 20]);
    }
    frame(HEADERS, 4, stream, &block)
}

#[tokio::test]
async fn a_large_head_is_refused() {
    let settings = Settings { server_header_list: 5000, ..Settings::default() };
    let mut raw = Raw::start(settings).await;
    raw.send(&large_head(1)).await;
    let (stream, payload) = raw.wait_for(HEADERS).await.unwrap();
    // `:status` is index 8 of HPACK's static table, the value follows.
    assert_eq!((stream, payload[0] & 0x3f), (1, 8));
    raw.send(&connect_frame(3)).await;
    assert_eq!(raw.requests.recv().await.unwrap().headers().len(), 0);
}

#[tokio::test]
async fn a_far_too_large_head_ends_the_connection() {
    let settings = Settings { server_header_list: 500, ..Settings::default() };
    let mut raw = Raw::start(settings).await;
    raw.send(&large_head(1)).await;
    let (_, payload) = raw.wait_for(GOAWAY).await.unwrap();
    assert_eq!(goaway_code(&payload), Reason::ENHANCE_YOUR_CALM);
    assert!(raw.requests.recv().await.is_none());
}

#[tokio::test]
async fn data_before_the_answer_waits_in_the_window() {
    const WINDOW: u32 = 128 << 10;
    const WINDOW_UPDATE: u8 = 8;
    let settings = Settings { stream_window: WINDOW, max_frame_size: 1 << 14, ..Settings::default() };
    let mut raw = Raw::start(settings).await;
    raw.send(&connect_frame(1)).await;
    // The client may send this much at first. Then it is granted more.
    let all = vec![7; WINDOW as usize];
    let (unasked, rest) = all.split_at(BEFORE as usize);
    raw.send(&frame(0, 0, 1, unasked)).await;
    while raw.wait_for(WINDOW_UPDATE).await.unwrap().0 != 1 {}
    for part in rest.chunks(1 << 14) {
        raw.send(&frame(0, 0, 1, part)).await;
    }
    let inbound = raw.requests.recv().await.unwrap();
    // One more byte breaks RFC 9113 §6.9.
    let (ping, _) = {
        raw.send(&frame(PING, 0, 0, &[1; 8])).await;
        raw.wait_for(PING).await.unwrap()
    };
    assert_eq!(ping, 0);
    let mut stream = inbound.accept(HeaderMap::new()).unwrap();
    let mut got = vec![0; WINDOW as usize];
    stream.read_exact(&mut got).await.unwrap();
    assert!(got.iter().all(|b| *b == 7));
    // The bytes were read and so released. The peer may go on.
    loop {
        if raw.wait_for(WINDOW_UPDATE).await.unwrap().0 == 1 {
            break;
        }
    }
    let mut breach = frame(0, 0, 1, &[7; 1 << 14]);
    for _ in 0..(2 * WINDOW) >> 14 {
        breach.extend(frame(0, 0, 1, &[7; 1 << 14]));
    }
    raw.send(&breach).await;
    loop {
        match raw.frame().await {
            Some((RST_STREAM, 1, payload)) => break assert_eq!(code(&payload), Reason::FLOW_CONTROL_ERROR),
            Some((GOAWAY, _, payload)) => break assert_eq!(goaway_code(&payload), Reason::FLOW_CONTROL_ERROR),
            Some(_) => {}
            None => panic!("closed without a word"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_dropped() {
    let (io, far) = duplex(1024);
    let settings = Settings::default();
    let served = serve(far, &settings, std::future::pending(), |_| {}).await;
    assert!(matches!(served.end, Err(ServeError::Connection(Error::HandshakeTimeout(_)))), "{served:?}");
    drop(io);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_silent_is_told_and_dropped() {
    let mut raw = Raw::start(Settings::default()).await;
    // Nothing waits for the peer yet.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    raw.send(&connect_frame(1)).await;
    let mut stream = raw.requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap();
    stream.write_all(b"is anybody there").await.unwrap();
    let started = Instant::now();
    let (_, payload) = raw.wait_for(GOAWAY).await.unwrap();
    assert_eq!(goaway_code(&payload), Reason::NO_ERROR);
    assert!((5..10).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    let served = raw.server.await.unwrap();
    assert!(matches!(served.end, Err(ServeError::Connection(Error::PingTimeout(_)))), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answering_peer_stays() {
    let farm = Farm::new(Settings::default());
    let pool: Pool<u8, ()> = Pool::new(Settings::default());
    let (mut stream, _) = pool.open(&1, || std::future::ready(Ok(farm.dial())), request()).await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(100)).await;
        say(&mut stream, "hello").await;
    }
}

#[tokio::test(start_paused = true)]
async fn drain_lets_streams_end_until_the_deadline() {
    let farm = Farm::new(Settings::default());
    let pool: Pool<u8, ()> = Pool::new(Settings::default());
    let open = || pool.open(&1, || std::future::ready(Ok(farm.dial())), request());
    let (mut ends, _) = open().await.unwrap();
    let (mut stays, _) = open().await.unwrap();
    farm.drain(0, Instant::now() + Duration::from_secs(30));
    tokio::time::sleep(Duration::from_secs(20)).await;
    say(&mut ends, "hello").await;
    ends.shutdown().await.unwrap();
    let mut rest = Vec::new();
    ends.read_to_end(&mut rest).await.unwrap();
    say(&mut stays, "hello").await;
    let started = Instant::now();
    assert!(stays.read_to_end(&mut rest).await.is_err(), "cut, and not as if it had ended");
    assert_eq!(started.elapsed().as_secs(), 10);
    let served = farm.served(0).await;
    assert!(matches!(served.end, Err(ServeError::DrainDeadline)), "{served:?}");
    assert!(served.bytes_received > 0 && served.requests == 2);
}

#[tokio::test(start_paused = true)]
async fn past_its_time_a_connection_says_so_and_serves_what_is_open() {
    const LIFE: Duration = Duration::from_secs(100);
    let (near, far) = duplex(1 << 20);
    let far = Draining { io: far, at: Instant::now() + LIFE };
    let server = tokio::spawn(async move {
        let on_request = |inbound| drop(tokio::spawn(echo(inbound)));
        serve(far, &Settings::default(), std::future::pending(), on_request).await
    });
    // A client that would keep the connection for ever.
    let (mut near, farm) = (Some(near), Farm::new(Settings::default()));
    let pool: Pool<u8, ()> = Pool::new(Settings::default());
    let mut open = async || {
        let dial = || std::future::ready(Ok(near.take().unwrap_or_else(|| farm.dial())));
        pool.open(&1, dial, request()).await.unwrap().0
    };
    let mut old = open().await;
    tokio::time::sleep(LIFE - Duration::from_secs(1)).await;
    drop(open().await);
    assert_eq!(farm.dials(), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    say(&mut open().await, "hello").await;
    assert_eq!(farm.dials(), 1, "it was told to make another connection");
    tokio::time::sleep(10 * LIFE).await;
    say(&mut old, "hello").await;
    old.shutdown().await.unwrap();
    drop(old);
    let served = server.await.unwrap();
    assert!(served.end.is_ok() && served.requests == 2, "{served:?}");
}

#[tokio::test]
async fn who_is_turned_away_may_ask_again() {
    let mut raw = Raw::start(Settings::default()).await;
    raw.send(&connect_frame(1)).await;
    raw.requests.recv().await.unwrap().turn_away();
    let (stream, payload) = raw.wait_for(RST_STREAM).await.unwrap();
    assert_eq!((stream, code(&payload)), (1, Reason::REFUSED_STREAM));
}

#[tokio::test]
async fn a_handler_hears_that_its_peer_gave_up() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let farm = Farm::new(Settings::default());
    let pool: Pool<u8, ()> = Pool::new(Settings::default());
    let opening = tokio::spawn({
        let pool = pool.clone();
        async move {
            let dial = || {
                let seen = seen.clone();
                std::future::ready(Ok(farm.dial_to(move |inbound| {
                    let _ = seen.send(inbound);
                })))
            };
            pool.open(&1, dial, request()).await.map(drop)
        }
    });
    let mut inbound = requests.recv().await.unwrap();
    opening.abort();
    let error = inbound.cancelled().await;
    assert!(matches!(error, Error::Reset { code: Reason::CANCEL, by_peer: true }), "{error:?}");
    assert!(inbound.accept(HeaderMap::new()).is_err());
}

#[tokio::test]
async fn headers_travel_both_ways() {
    let farm = Farm::new(Settings::default());
    let pool: Pool<u8, ()> = Pool::new(Settings::default());
    let seen = Arc::new(Mutex::new(None));
    let dial = || {
        let seen = seen.clone();
        std::future::ready(Ok(farm.dial_to(move |mut inbound| {
            *seen.lock() = Some((inbound.authority().map(str::to_owned), inbound.take_headers()));
            let mut headers = HeaderMap::new();
            headers.insert("baggage", "k8s.namespace.name=db".parse().unwrap());
            tokio::spawn(async move { inbound.accept(headers).map(std::mem::forget) });
        })))
    };
    let mut headers = HeaderMap::new();
    headers.insert("baggage", "k8s.namespace.name=shop".parse().unwrap());
    let request = ConnectRequest { authority: "[fd00::1]:80".to_owned(), headers };
    let (_stream, head) = pool.open(&1, dial, request).await.unwrap();
    assert_eq!(head.headers["baggage"], "k8s.namespace.name=db");
    let (authority, headers) = seen.lock().take().unwrap();
    assert_eq!(authority.as_deref(), Some("[fd00::1]:80"));
    assert_eq!(headers["baggage"], "k8s.namespace.name=shop");
}

#[tokio::test]
async fn garbage_is_an_error_and_nothing_more() {
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxxxxxxxxxxxxxxx"] {
        let (mut io, far) = duplex(1024);
        let settings = Settings::default();
        let served = serve(far, &settings, std::future::pending(), |inbound| {
            tokio::spawn(echo(inbound));
        });
        let client = async {
            io.write_all(garbage).await.unwrap();
            io.shutdown().await.unwrap();
            let mut sink = Vec::new();
            let _ = io.read_to_end(&mut sink).await;
        };
        let (served, ()) = tokio::join!(served, client);
        assert!(served.end.is_err() && served.requests == 0, "{served:?}");
    }
}

#[tokio::test]
async fn a_dropped_request_is_reset() {
    let farm = Farm::new(Settings::default());
    let pool: Pool<u8, ()> = Pool::new(Settings::default());
    let result = pool.open(&1, || std::future::ready(Ok(farm.dial_to(drop))), request()).await;
    assert!(matches!(result.map(drop), Err(OpenError::Tunnel(Error::Reset { code: Reason::CANCEL, by_peer: true }))));
}
