use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

/// Answers with the question and how it came, but not what is empty, and waits with each until it may.
#[derive(Clone)]
struct Echo {
    /// Whether replies may be made.
    may: watch::Sender<bool>,
    closing: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    under_way: Arc<()>,
}

impl Echo {
    fn new() -> Self {
        let no = || watch::Sender::new(false);
        Self { may: watch::Sender::new(true), closing: no(), stopped: no(), under_way: Arc::default() }
    }

    fn under_way(&self) -> usize {
        // Those that are counted, and the owner's own clones, which hold another each.
        Arc::strong_count(&self.under_way)
    }
}

async fn set(of: &watch::Sender<bool>) {
    let mut of = of.subscribe();
    of.wait_for(|is| *is).await.unwrap();
}

impl Owner for Echo {
    type Counted = Arc<()>;

    fn count(&self) -> Arc<()> {
        self.under_way.clone()
    }

    async fn reply(&self, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
        set(&self.may).await;
        (!message.is_empty()).then(|| [message, format!(" by {transport:?}").as_bytes()].concat())
    }

    async fn accept(&self, listener: &TcpListener) -> Option<TcpStream> {
        tokio::select! {
            accepted = listener.accept() => Some(accepted.unwrap().0),
            () = self.closing() => None,
        }
    }

    async fn closing(&self) {
        set(&self.closing).await;
    }

    async fn stopped(&self) {
        set(&self.stopped).await;
    }

    async fn in_time<T: Send>(&self, io: impl Future<Output = io::Result<T>> + Send) -> io::Result<T> {
        io.await
    }
}

async fn bound() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn answer(client: &UdpSocket) -> String {
    let mut reply = [0; 100];
    let length = timeout(LIMIT, client.recv(&mut reply)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&reply[..length]).into_owned()
}

#[tokio::test]
async fn what_was_asked_before_the_end_is_answered_and_nothing_after() {
    let owner = Echo::new();
    owner.may.send_replace(false);
    let (server, address) = bound().await;
    let serving = tokio::spawn(serve_udp(owner.clone(), server));
    let (client, _) = bound().await;
    client.connect(address).await.unwrap();
    client.send(b"first").await.unwrap();
    client.send(b"").await.unwrap();
    client.send(b"second").await.unwrap();
    // It has been told to end before it has looked at them all.
    owner.closing.send_replace(true);
    timeout(LIMIT, serving).await.expect("the loop ends, whatever is under way").unwrap();
    owner.may.send_replace(true);
    let mut answers = [answer(&client).await, answer(&client).await];
    answers.sort();
    assert_eq!(answers, ["first by Udp", "second by Udp"]);
    // Nobody listens there any more.
    client.send(b"third").await.unwrap();
    let refused = timeout(LIMIT, client.recv(&mut [0])).await.expect("an error").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn questions_on_one_connection_are_answered_in_turn_until_it_must_end() {
    let owner = Echo::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let idle = owner.under_way();
    let serving = tokio::spawn(serve_tcp(owner.clone(), listener));
    let mut client = TcpStream::connect(address).await.unwrap();
    for question in ["one", "two"] {
        client.write_all(&framed(question.as_bytes()).unwrap()).await.unwrap();
        let reply = timeout(LIMIT, read(&mut client)).await.expect("an answer").unwrap();
        assert_eq!(reply, format!("{question} by Tcp").as_bytes());
    }
    assert!(owner.under_way() > idle, "who waits for the last one does not miss it");
    owner.closing.send_replace(true);
    timeout(LIMIT, serving).await.expect("no more are taken").unwrap();
    client.write_all(&framed(b"three").unwrap()).await.unwrap();
    assert_eq!(timeout(LIMIT, read(&mut client)).await.expect("an answer").unwrap(), b"three by Tcp");
    owner.stopped.send_replace(true);
    assert_eq!(timeout(LIMIT, client.read(&mut [0])).await.expect("an end").unwrap(), 0);
}
