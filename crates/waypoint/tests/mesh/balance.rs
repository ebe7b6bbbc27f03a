//! Requests go to the endpoints that answer sooner.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

/// An endpoint that answers each request with `status` after a while, and the number of its requests.
pub(crate) async fn endpoint(after: Duration, status: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let asked = Arc::<AtomicUsize>::default();
    let counted = asked.clone();
    let address = server(move |mut stream| {
        let asked = counted.clone();
        async move {
            let mut read = [0; 4096];
            while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
                asked.fetch_add(1, Relaxed);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_endpoint_gets_few_requests() {
    let mesh = Mesh::new().await;
    let (fast, of_fast) = endpoint(Duration::ZERO, "200 OK").await;
    let (slow, of_slow) = endpoint(Duration::from_millis(500), "200 OK").await;
    mesh.service(AppProtocol::Http11, &[fast, slow]).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..40 {
        asker.ask("").await;
    }
    let (fast, slow) = (of_fast.load(Relaxed), of_slow.load(Relaxed));
    assert!(fast + slow == 40 && slow <= 4, "{fast} fast, {slow} slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_fails_at_once_does_not_look_fast() {
    let mesh = Mesh::new().await;
    let (good, of_good) = endpoint(Duration::from_millis(5), "200 OK").await;
    let (bad, of_bad) = endpoint(Duration::ZERO, "503 Busy").await;
    mesh.service(AppProtocol::Http11, &[good, bad]).await;
    let mut asker = Asker::new(&mesh).await;
    for _ in 0..60 {
        asker.ask("").await;
    }
    let (good, bad) = (of_good.load(Relaxed), of_bad.load(Relaxed));
    assert!(good + bad == 60 && bad <= 20, "{good} good, {bad} bad");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_count() {
    let mesh = Mesh::new().await;
    let (one, of_one) = endpoint(Duration::from_millis(300), "200 OK").await;
    let (other, of_other) = endpoint(Duration::from_millis(300), "200 OK").await;
    mesh.service(AppProtocol::Http11, &[one, other]).await;
    let mut askers = Vec::new();
    for _ in 0..20 {
        askers.push(Asker::new(&mesh).await);
    }
    let asked = askers.iter_mut().map(|asker| asker.ask(""));
    futures_util::future::join_all(asked).await;
    let counts = [of_one.load(Relaxed), of_other.load(Relaxed)];
    assert!(counts[0] + counts[1] == 20 && counts.iter().all(|count| *count >= 5), "{counts:?}");
}
