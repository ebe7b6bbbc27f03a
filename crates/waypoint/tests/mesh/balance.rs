//! Requests go to the endpoints that answer sooner.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rules::{held, until};
use crate::support::{Mesh, server, soon};

/// An endpoint that answers each request with `status` after a while, and the number of its requests.
pub(crate) async fn endpoint(after: Duration, status: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    endpoint_that_takes(move || after, status).await
}

/// As [`endpoint`]; `after` is asked at each request.
async fn endpoint_that_takes(
    after: impl Fn() -> Duration + Clone + Send + Sync + 'static,
    status: &'static str,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let counted = asked.clone();
    let address = server(move |mut stream| {
        let (asked, after) = (counted.clone(), after.clone());
        async move {
            let mut read = [0; 4096];
            while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
                asked.fetch_add(1, Relaxed);
                let after = after();
                if !after.is_zero() {
                    tokio::time::sleep(after).await;
                }
                let _ = stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok").as_bytes()).await;
            }
        }
    })
    .await;
    (address, asked)
}

/// A client's connection, for one request after the other. Returns the status of each answer.
pub(crate) struct Asker(TcpStream);

impl Asker {
    pub(crate) async fn new(mesh: &Mesh) -> Self {
        Self(TcpStream::connect(mesh.bridged().await).await.unwrap())
    }

    /// The head of the answer.
    pub(crate) async fn ask(&mut self, headers: &str) -> String {
        let request = format!("GET / HTTP/1.1\r\nhost: web\r\n{headers}\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let whole = async {
            loop {
                let mut read = [0; 4096];
                let length = self.0.read(&mut read).await.unwrap();
                answer.extend_from_slice(&read[..length]);
                let text = String::from_utf8_lossy(&answer);
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    return head.to_owned();
                }
            }
        };
        soon("an answer", whole).await
    }
}

/// The longest time that an answer of an endpoint took, microseconds: what is slow or fast on this machine.
#[derive(Clone, Default)]
struct Longest(Arc<AtomicU64>);

impl Longest {
    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Relaxed))
    }

    /// Asks. The answer counts if it is one of those that `asked` counts.
    async fn ask(&self, asker: &mut Asker, asked: &AtomicUsize) {
        let (before, begun) = (asked.load(Relaxed), Instant::now());
        asker.ask("").await;
        if asked.load(Relaxed) > before {
            self.0.fetch_max(u64::try_from(begun.elapsed().as_micros()).unwrap(), Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_endpoint_gets_few_requests() {
    let mesh = Mesh::new().await;
    let longest = Longest::default();
    let (fast, of_fast) = endpoint(Duration::ZERO, "200 OK").await;
    let slower = longest.clone();
    let takes = move || (20 * slower.get()).max(Duration::from_millis(500));
    let (slow, of_slow) = endpoint_that_takes(takes, "200 OK").await;
    mesh.service(AppProtocol::Http11, &[fast, slow]).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..40 {
        longest.ask(&mut asker, &of_fast).await;
    }
    let (fast, slow) = (of_fast.load(Relaxed), of_slow.load(Relaxed));
    assert!(fast + slow == 40 && slow <= 4, "{fast} fast, {slow} slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_fails_at_once_does_not_look_fast() {
    let mesh = Mesh::new().await;
    let longest = Longest::default();
    let (good, of_good) = endpoint(Duration::from_millis(5), "200 OK").await;
    let (bad, of_bad) = endpoint(Duration::ZERO, "503 Busy").await;
    mesh.service(AppProtocol::Http11, &[good, bad]).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..60 {
        let failures = of_bad.load(Relaxed);
        longest.ask(&mut asker, &of_good).await;
        if of_bad.load(Relaxed) > failures {
            // A failure counts by its share of the time. It is to count for more than the slowest of the good answers,
            // and how slow that is is the machine's to say.
            tokio::time::sleep(longest.get()).await;
        }
    }
    let (good, bad) = (of_good.load(Relaxed), of_bad.load(Relaxed));
    assert!(good + bad == 60 && bad <= 20, "{good} good, {bad} bad");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_count() {
    let mesh = Mesh::new().await;
    let (one, other) = (held().await, held().await);
    mesh.service(AppProtocol::Http11, &[one.address, other.address]).await;
    let counts = || [one.asked.load(Relaxed), other.asked.load(Relaxed)];
    let mut askers = Vec::new();
    for open in 1..=20 {
        let mut asker = Asker::new(&mesh).await;
        askers.push(tokio::spawn(async move { asker.ask("").await }));
        until("a request", || counts().iter().sum::<usize>() == open).await;
    }
    // None is answered before all are there, so that nothing else is known of the two.
    assert_eq!(counts(), [10, 10]);
    one.answer.send_replace(true);
    other.answer.send_replace(true);
    for asker in askers {
        assert!(asker.await.unwrap().starts_with("HTTP/1.1 200 "));
    }
}
