use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::{Metrics, Readiness};

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn start(routes: Routes) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(serve(listener, routes, async move {
        let _ = stopped.await;
    }));
    Server { address, stop, task }
}

async fn send(address: SocketAddr, request: &[u8]) -> String {
    let mut io = TcpStream::connect(address).await.unwrap();
    io.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // A server that refuses may also reset.
    let _ = io.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get(address: SocketAddr, path: &str) -> String {
    send(address, format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await
}

fn routes() -> Routes {
    Routes::new()
        .get("/hello", |request| {
            text(StatusCode::OK, format!("hello {}\n", request.parameter("name").unwrap_or_default()))
        })
        .post("/echo", |request| text(StatusCode::OK, String::from_utf8_lossy(&request.body)))
        .get("/panic", |_| panic!("on purpose"))
        .get("/json", |_| json(|out| Ok(serde_json::to_writer_pretty(out, &serde_json::json!({"a": 1}))?)))
        .get("/long", |_| json(|out| (0..100_000).try_for_each(|number| writeln!(out, "{number}"))))
        .get("/broken", |_| {
            json(|out| {
                out.write_all(&[b'x'; 100_000])?;
                Err(io::ErrorKind::InvalidData.into())
            })
        })
}

#[tokio::test]
async fn a_long_answer_comes_in_pieces_and_one_that_breaks_off_does_not_look_whole() {
    let server = start(routes()).await;
    let answer = get(server.address, "/long").await;
    assert!(answer.contains("transfer-encoding: chunked") && answer.ends_with("\r\n0\r\n\r\n"), "{}", answer.len());
    let body: String = answer.split_once("\r\n\r\n").unwrap().1.split("\r\n").skip(1).step_by(2).collect();
    let numbers: Vec<usize> = body.lines().map(|line| line.parse().unwrap()).collect();
    assert!(numbers.into_iter().eq(0..100_000));
    let answer = get(server.address, "/broken").await;
    assert!(answer.contains("xxx") && !answer.ends_with("\r\n0\r\n\r\n"), "{}", answer.len());
}

#[tokio::test(start_paused = true)]
async fn a_long_answer_may_last_as_long_as_it_moves() {
    let taken = Taken::default();
    let moves = async {
        for _ in 0..10 {
            tokio::time::sleep(CONNECTION_TIMEOUT / 2).await;
            taken.fetch_add(1, Ordering::Relaxed);
        }
    };
    assert!(goes_on(moves, &taken).await);
    let begun = tokio::time::Instant::now();
    assert!(!goes_on(std::future::pending(), &taken).await);
    assert_eq!(begun.elapsed(), CONNECTION_TIMEOUT);
}

/// A reader that goes away, or never reads, keeps neither the writer nor its memory.
#[tokio::test]
async fn whoever_writes_an_answer_ends_with_its_reader() {
    let ended = Arc::new(tokio::sync::Notify::new());
    let told = ended.clone();
    let server = start(Routes::new().get("/endless", move |_| {
        let told = told.clone();
        json(move |out| {
            let error = loop {
                if let Err(error) = out.write_all(&[b'x'; 1000]) {
                    break error;
                }
            };
            told.notify_one();
            Err(error)
        })
    }))
    .await;
    let mut io = TcpStream::connect(server.address).await.unwrap();
    io.write_all(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    io.read_exact(&mut [0; 1000]).await.unwrap();
    drop(io);
    timeout(Duration::from_secs(20), ended.notified()).await.unwrap();
}

#[tokio::test]
async fn routes_answer() {
    let server = start(routes()).await;
    let answer = get(server.address, "/hello?x&name=a%20b+c%zz").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nhello a b c%zz\n"), "{answer}");
    let answer = get(server.address, "/json").await;
    assert!(answer.contains("content-type: application/json") && answer.contains("\"a\": 1"), "{answer}");
    let answer =
        send(server.address, b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc")
            .await;
    assert!(answer.ends_with("\r\n\r\nabc"), "{answer}");
    let answer = send(server.address, b"HEAD /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let server = start(routes()).await;
    let answer = get(server.address, "/nothing").await;
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("GET /hello"), "{answer}");
    let answer = get(server.address, "/echo").await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: POST"), "{answer}");
}

#[tokio::test]
async fn hostile_input_harms_nobody() {
    let server = start(routes()).await;
    assert!(get(server.address, "/panic").await.starts_with("HTTP/1.1 500 "));
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /hello HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /hello HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\nconnection: close\r\n\r\nzzz",
        b"\r\n\r\n\r\n\r\n",
    ] {
        let mut io = TcpStream::connect(server.address).await.unwrap();
        io.write_all(garbage).await.unwrap();
        io.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = io.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let mut long = b"GET /hello?".to_vec();
    long.resize(100_000, b'a');
    long.extend_from_slice(b" HTTP/1.1\r\n\r\n");
    let answer = send(server.address, &long).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    let mut large = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\nconnection: close\r\n\r\n".to_vec();
    large.resize(large.len() + 100_000, b'a');
    let answer = send(server.address, &large).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(get(server.address, "/hello").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(start_paused = true)]
async fn slow_requests_are_cut() {
    let server = start(routes()).await;
    let started = tokio::time::Instant::now();
    let mut io = TcpStream::connect(server.address).await.unwrap();
    io.write_all(b"GET /hello HTT").await.unwrap();
    let mut answer = Vec::new();
    let _ = io.read_to_end(&mut answer).await;
    assert!(started.elapsed() >= HEAD_TIMEOUT, "{:?}", started.elapsed());
    let answer =
        send(server.address, b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\na")
            .await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

/// From several addresses, some to a client: each is slow in another way.
#[tokio::test]
async fn slow_clients_keep_no_probe_waiting() {
    const MUCH: usize = 8 << 20;
    let server = start(routes().get("/much", |_| text(StatusCode::OK, "x".repeat(MUCH)))).await;
    let mut held = Vec::new();
    for client in 0..400_u16 {
        // A third of all come from the address that probes come from.
        let last = if client % 3 == 0 { 1 } else { 2 + (client % 100) as u8 };
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        let mut io = socket.connect(server.address).await.unwrap();
        let words: &[u8] = match client % 4 {
            0 => b"",
            1 => b"GET /hello HTTP/1.1\r\nhost: x\r\n",
            2 => b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na",
            // Its answer is not read.
            _ => b"GET /much HTTP/1.1\r\nhost: x\r\n\r\n",
        };
        // It may have given way already.
        let _ = io.write_all(words).await;
        held.push(io);
        if client % 10 == 9 {
            // The kubelet's patience.
            let answer = timeout(Duration::from_secs(1), get(server.address, "/hello")).await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer beside {client} slow clients"));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }
}

#[tokio::test]
async fn shutdown_ends_idle_connections() {
    let server = start(routes()).await;
    let mut io = TcpStream::connect(server.address).await.unwrap();
    io.write_all(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    io.read_exact(&mut first).await.unwrap();
    server.stop.send(()).unwrap();
    timeout(Duration::from_secs(10), server.task).await.unwrap().unwrap();
    let mut rest = Vec::new();
    let _ = io.read_to_end(&mut rest).await;
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn readiness_names_what_is_missing() {
    let state = Readiness::default();
    let mut task = state.task("state manager");
    task.not_ready("no answer from the control plane yet");
    let server = start(readiness(&state)).await;
    let answer = get(server.address, "/healthz/ready").await;
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert!(answer.contains("- state manager: no answer from the control plane yet\n"), "{answer}");
    task.ready();
    let answer = get(server.address, "/healthz/ready").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ready\n"), "{answer}");
}

#[tokio::test]
async fn metrics_come_in_the_format_asked_for() {
    let all = Metrics::new("ztunnel", "1", 10);
    let server = start(metrics(all.page())).await;
    let answer = get(server.address, "/stats/prometheus").await;
    assert!(answer.contains("content-type: text/plain; version=0.0.4") && answer.contains("istio_build{"), "{answer}");
    let answer = send(
        server.address,
        b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.contains("content-type: application/openmetrics-text") && answer.ends_with("# EOF\n"), "{answer}");
}

/// Metrics that take as long to write as the test wants, and count how often they are.
#[derive(Debug)]
struct Slow {
    begun: std::sync::mpsc::Sender<()>,
    goes_on: parking_lot::Mutex<std::sync::mpsc::Receiver<()>>,
    /// The test did not say that it may go on: it is itself held up.
    was_waited_for: Arc<std::sync::atomic::AtomicBool>,
}

impl prometheus_client::collector::Collector for Slow {
    fn encode(&self, _: prometheus_client::encoding::DescriptorEncoder<'_>) -> std::fmt::Result {
        let _ = self.begun.send(());
        // Not for ever: where it holds up the test itself, that shall fail.
        let told = self.goes_on.lock().recv_timeout(Duration::from_secs(20));
        self.was_waited_for.fetch_or(told == Err(std::sync::mpsc::RecvTimeoutError::Timeout), Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test]
async fn scrapes_share_what_is_written_and_keep_no_probe_waiting() {
    let (begun, writings) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let metrics = Metrics::new("ztunnel", "1", 10);
    let was_waited_for = Arc::<std::sync::atomic::AtomicBool>::default();
    let slow = Slow { begun, goes_on: parking_lot::Mutex::new(goes_on), was_waited_for: was_waited_for.clone() };
    metrics.page().register(|registry| registry.register_collector(Box::new(slow)));
    let stats = start(super::metrics(metrics.page())).await;
    let ready = start(readiness(&Readiness::default())).await;
    let scrape = || tokio::spawn(get(stats.address, "/metrics"));
    let mut scrapes = vec![scrape()];
    let first = tokio::task::spawn_blocking(move || writings.recv().map(|()| writings)).await.unwrap();
    let writings = first.expect("it is written");
    // While that is written, others ask, and the kubelet.
    scrapes.extend((0..10).map(|_| scrape()));
    for _ in 0..10 {
        assert!(get(ready.address, "/healthz/ready").await.ends_with("ready\n"));
    }
    assert!(!was_waited_for.load(Ordering::Relaxed), "the probes are answered after what was written before them");
    go_on.send(()).unwrap();
    // For the others it is written once more; not twice, unless one came late.
    drop(go_on);
    for scrape in scrapes {
        assert!(scrape.await.unwrap().contains("process_open_fds"));
    }
    let more = writings.try_iter().count();
    assert!((1..=3).contains(&more), "written {more} times more for ten who asked");
}
