use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::access_log::{Endpoint, HboneAddress};
use crate::logging::Format;

const LIMIT: Duration = Duration::from_secs(20);

fn record(direction: Direction) -> Record {
    let workload = leno_model::Workload::new("uid", "shop", "web-1");
    let mut record = Record::new(direction);
    record.source.workload = Some(Arc::new(workload));
    record.source.address = Some("10.0.0.1:4000".parse().unwrap());
    record.destination.address = Some("10.0.0.2:15008".parse().unwrap());
    record.hbone_address = Some(HboneAddress::Address("10.0.0.2:8080".parse().unwrap()));
    record.mutual_tls = true;
    record.bytes_sent = 12;
    record.bytes_received = 34;
    record
}

/// A proxy's log and what it has open, served.
struct Proxy {
    log: AccessLog,
    open: Arc<Mutex<Vec<Record>>>,
    address: SocketAddr,
}

impl Proxy {
    async fn start(level: Level) -> Self {
        let log = AccessLog::new(io::sink(), Format::Plain, level, 1000, Counter::default()).unwrap();
        let open = Arc::<Mutex<Vec<Record>>>::default();
        let looked = open.clone();
        let routes = routes(&log, "node-1", Arc::new(move || Box::new(looked.lock().clone().into_iter())));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(crate::admin::serve(listener, routes, std::future::pending()));
        Self { log, open, address }
    }

    async fn read(&self, query: &str) -> Reader {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("GET {PATH}?{query} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut reader = Reader { lines: BufReader::new(stream).lines() };
        while !reader.line().await.unwrap().is_empty() {}
        reader
    }
}

struct Reader {
    lines: tokio::io::Lines<BufReader<TcpStream>>,
}

impl Reader {
    async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(LIMIT, self.lines.next_line()).await.expect("a line in time").unwrap()
    }

    /// The next event; `None` at the stream's end.
    async fn event(&mut self) -> Option<Event> {
        loop {
            let line = self.line().await?;
            if !line.is_empty() {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }
}

fn bytes(event: Option<Event>) -> (bool, u64, u64) {
    match event {
        Some(Event::Open(c)) => (true, c.bytes_sent, c.bytes_received),
        Some(Event::Ended(c)) => (false, c.bytes_sent, c.bytes_received),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_open_and_what_ended_is_told_once() {
    let proxy = Proxy::start(Level::Info).await;
    proxy.log.completed(record(Direction::Outbound));
    assert!(proxy.log.flush(LIMIT));
    proxy.open.lock().push(record(Direction::Inbound));
    let mut reader = proxy.read("").await;
    let Some(Event::Hello(hello)) = reader.event().await else { panic!("no greeting") };
    assert_eq!((hello.node.as_str(), hello.keeps.as_str(), hello.forgotten), ("node-1", "all", 0));
    assert_eq!(bytes(reader.event().await), (false, 12, 34));
    // Of an inbound connection the pod's program is the destination: what that sent came back to the source.
    assert_eq!(bytes(reader.event().await), (true, 34, 12));
    assert_eq!(reader.event().await, Some(Event::Now));
    assert_eq!(reader.event().await, None);
}

#[tokio::test]
async fn what_happens_is_told_while_it_happens() {
    let proxy = Proxy::start(Level::Off).await;
    let mut reader = proxy.read("follow=true&since=0").await;
    let Some(Event::Hello(hello)) = reader.event().await else { panic!("no greeting") };
    assert_eq!(hello.keeps, "none");
    assert_eq!(reader.event().await, Some(Event::Now));
    proxy.log.opened(record(Direction::Outbound));
    assert_eq!(bytes(reader.event().await), (true, 12, 34));
    let mut denied = record(Direction::Outbound);
    (denied.denied, denied.error) = (true, Some("not allowed".to_owned()));
    proxy.log.completed(denied);
    let Some(Event::Ended(connection)) = reader.event().await else { panic!("it ended") };
    assert_eq!((connection.verdict, connection.reason.as_deref()), (Verdict::Denied, Some("not allowed")));
    assert_eq!((connection.port, connection.encrypted), (Some(8080), Some(true)));
    // Silence is no end.
    assert_eq!(reader.line().await, Some(String::new()));
    // Who goes leaves nobody watching.
    drop(reader);
    let gone = Instant::now();
    while proxy.log.enabled(Level::Error) {
        assert!(gone.elapsed() < LIMIT, "still watched");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_is_open_is_told_again_when_it_has_carried_more() {
    let proxy = Proxy::start(Level::Off).await;
    let (mut idle, mut busy) = (record(Direction::Outbound), record(Direction::Outbound));
    idle.source.address = Some("10.0.0.1:1".parse().unwrap());
    busy.source.address = Some("10.0.0.1:2".parse().unwrap());
    *proxy.open.lock() = vec![idle, busy];
    let mut reader = proxy.read("follow=true&every=100").await;
    assert!(matches!(reader.event().await, Some(Event::Hello(_))));
    for _ in 0..2 {
        assert_eq!(bytes(reader.event().await), (true, 12, 34));
    }
    assert_eq!(reader.event().await, Some(Event::Now));
    proxy.open.lock()[1].bytes_sent = 13;
    assert_eq!(bytes(reader.event().await), (true, 13, 34));
    proxy.open.lock()[1].bytes_sent = 14;
    assert_eq!(bytes(reader.event().await), (true, 14, 34), "the idle one is passed over");
}

#[tokio::test]
async fn a_wrong_question_is_refused() {
    let proxy = Proxy::start(Level::Off).await;
    for query in ["since=soon", "follow=maybe"] {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(format!("GET {PATH}?{query} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next_line().await.unwrap().unwrap();
        assert!(status.contains("400"), "{status}");
    }
}

#[test]
fn why_a_connection_is_not_encrypted_is_said() {
    let why = |direction, change: &dyn Fn(&mut Record)| {
        let mut record = record(direction);
        record.mutual_tls = false;
        change(&mut record);
        let connection = Connection::new(&record, String::new());
        (connection.encrypted, connection.why)
    };
    let nobody = |record: &mut Record| record.source = Endpoint::default();
    let known = |record: &mut Record| record.destination.workload = record.source.workload.clone();
    let refused = |record: &mut Record| (record.error, record.bytes_sent) = (Some("refused".to_owned()), 0);
    for (got, encrypted, words) in [
        (why(Direction::Inbound, &|_| {}), Some(false), "the source is not in the mesh"),
        (why(Direction::Inbound, &nobody), Some(false), "does not know the source"),
        (why(Direction::Outbound, &|_| {}), Some(false), "does not know the destination"),
        (why(Direction::Outbound, &known), Some(false), "the destination is not in the mesh"),
        (why(Direction::Outbound, &refused), None, "nothing was sent"),
    ] {
        assert!(got.0 == encrypted && got.1.contains(words), "{got:?}");
    }
}
