//! One proxy: a delta client over TLS that behaves as required and decodes no more than it must.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::Connection;
use h2::{RecvStream, SendStream};
use leno_proto::discovery::{DeltaDiscoveryRequest, Node};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE};
use leno_tls::{ControlConnector, HANDSHAKE_TIMEOUT, TlsStream};
use parking_lot::Mutex;
use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::mesh::node_name;
use super::plane::NAMESPACE;
use super::state::Held;
use super::wire::{Reader, framed, header};

/// The same as those of Leno's node proxy and of ztunnel.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 2 << 20;
const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// State shared by all proxies.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    /// The name that the control plane's certificate must have.
    pub(super) name: String,
    pub(super) connector: ControlConnector,
    pub(super) tokens: Vec<String>,
    /// Permits for proxies that are not in sync yet.
    pub(super) places: Semaphore,
    pub(super) held: Arc<Vec<Mutex<Held>>>,
    /// How many changes a proxy must have seen to be in sync.
    pub(super) missed: usize,
    /// Bytes of discovery received.
    pub(super) bytes: AtomicU64,
    /// Responses received.
    pub(super) responses: AtomicU64,
    /// How often a proxy had to connect again before it was in sync.
    pub(super) again: AtomicU64,
    /// Proxies that are in sync.
    pub(super) there: watch::Sender<usize>,
}

/// What a returning proxy says it holds: those fields of its first request that are the same for all proxies.
pub(super) type Told = Bytes;

/// The versions held, as a first request lists them. Left out is what would exceed the size that gRPC servers accept.
pub(super) fn told<'a>(held: impl Iterator<Item = (&'a str, &'a str)>) -> Told {
    const MOST: usize = (4 << 20) - (64 << 10);
    let mut request = DeltaDiscoveryRequest { type_url: ADDRESS_TYPE.to_owned(), ..Default::default() };
    let mut size = 0;
    for (name, version) in held {
        // Lengths and tags of an entry take no more than 16 bytes.
        size += name.len() + version.len() + 16;
        if size > MOST {
            break;
        }
        request.initial_resource_versions.insert(name.to_owned(), version.to_owned());
    }
    request.encode_to_vec().into()
}

/// The pause before a new connection, and how many connections are tried.
const PAUSE: Duration = Duration::from_millis(200);
const ATTEMPTS: usize = 100;

/// Connects, and stays connected until something fails. Returns what failed. Before it is in sync, it connects again
/// when it is refused, as every proxy does: an overloaded control plane may refuse connections.
pub(super) async fn run(shared: Arc<Shared>, number: usize, told: Option<Told>) -> String {
    let mut permit = shared.places.acquire().await.ok();
    let mut attempts = 0;
    loop {
        let reason = match converse(&shared, number, told.clone(), &mut permit).await {
            Ok(never) => match never {},
            Err(reason) => reason,
        };
        attempts += 1;
        if permit.is_none() || attempts == ATTEMPTS {
            return format!("proxy {number}: {reason}");
        }
        tracing::debug!(number, reason, "comes again");
        shared.again.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}

/// One connection. `permit` is released when the proxy is in sync.
async fn converse(
    shared: &Shared,
    number: usize,
    told: Option<Told>,
    permit: &mut Option<SemaphorePermit<'_>>,
) -> Result<Infallible, String> {
    let tcp = TcpStream::connect(shared.address).await.map_err(|error| format!("cannot connect: {error}"))?;
    tcp.set_nodelay(true).map_err(|error| error.to_string())?;
    let tls = shared.connector.connect(tcp, &shared.name, HANDSHAKE_TIMEOUT).await;
    let stream = tls.map_err(|error| format!("TLS: {error}"))?;
    let (requests, mut connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(|error| format!("HTTP/2: {error}"))?;
    let request = http::Request::post(format!("https://{}{METHOD}", shared.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {}", shared.tokens[number]))
        .header("clusterid", "Kubernetes")
        .body(())
        .map_err(|error| error.to_string())?;
    let mut requests = drive(&mut connection, requests.ready()).await?.map_err(|error| format!("HTTP/2: {error}"))?;
    let (response, mut answers) = requests.send_request(request, false).map_err(|error| error.to_string())?;
    for first in first_requests(number, told) {
        send(&mut answers, first)?;
    }
    let response = drive(&mut connection, response).await?.map_err(|error| format!("no answer: {error}"))?;
    if let Some(status) = response.headers().get("grpc-status") {
        return Err(refusal(status, response.headers()));
    }
    let mut body = response.into_body();
    let mut reader = Reader::default();
    loop {
        let next = drive(&mut connection, body.data()).await?;
        let Some(data) = next else { return Err(end(&mut connection, &mut body).await) };
        let data = data.map_err(|error| format!("the stream broke: {error}"))?;
        let now = Instant::now();
        shared.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let (ended, is_there) = {
            let mut held = shared.held[number].lock();
            held.arrived(now);
            reader.take(&data, &mut *held)?;
            (std::mem::take(&mut held.ended), held.is_synced() && held.changes_seen() >= shared.missed)
        };
        let _ = body.flow_control().release_capacity(data.len());
        for (type_url, nonce) in ended {
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_default();
            let answer = DeltaDiscoveryRequest {
                type_url: text(type_url),
                response_nonce: text(nonce),
                ..DeltaDiscoveryRequest::default()
            };
            shared.responses.fetch_add(1, Ordering::Relaxed);
            send(&mut answers, framed(&answer.encode_to_vec()).into())?;
        }
        if is_there && let Some(place) = permit.take() {
            drop(place);
            shared.there.send_modify(|there| *there += 1);
        }
    }
}

type Link = Connection<TlsStream<TcpStream>, Bytes>;

/// Waits for the next bytes of the connection.
async fn drive<T>(connection: &mut Link, wanted: impl Future<Output = T>) -> Result<T, String> {
    let mut wanted = std::pin::pin!(wanted);
    tokio::select! {
        biased;
        ended = poll_fn(|cx| std::pin::Pin::new(&mut *connection).poll(cx)) => {
            // What came before the end counts.
            if let Some(last) = futures_util::FutureExt::now_or_never(&mut wanted) {
                return Ok(last);
            }
            Err(match ended {
                Ok(()) => "the connection was closed".to_owned(),
                Err(error) => format!("the connection broke: {error}"),
            })
        }
        wanted = &mut wanted => Ok(wanted),
    }
}

/// Why a stream has ended.
async fn end(connection: &mut Link, body: &mut RecvStream) -> String {
    match drive(connection, body.trailers()).await {
        Ok(Ok(Some(trailers))) => match trailers.get("grpc-status") {
            Some(status) => refusal(status, &trailers),
            None => "the stream has ended".to_owned(),
        },
        _ => "the stream has ended".to_owned(),
    }
}

fn refusal(status: &http::HeaderValue, headers: &http::HeaderMap) -> String {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let message = headers.get("grpc-message").map(text).unwrap_or_default();
    format!("the control plane refused: gRPC status {}, {message}", text(status))
}

fn send(answers: &mut SendStream<Bytes>, bytes: Bytes) -> Result<(), String> {
    answers.send_data(bytes, false).map_err(|error| format!("an answer cannot be sent: {error}"))
}

/// The requests that subscribe to both types, in pieces.
fn first_requests(number: usize, told: Option<Told>) -> [Bytes; 3] {
    let field = |text: String| Value { kind: Some(Kind::StringValue(text)) };
    let pod = format!("proxy-{number}");
    let metadata = [
        ("NAME", pod.clone()),
        ("NAMESPACE", NAMESPACE.to_owned()),
        ("INSTANCE_IPS", "1.1.1.1".to_owned()),
        ("NODE_NAME", node_name(number)),
        ("CLUSTER_ID", "Kubernetes".to_owned()),
    ];
    let node = Node {
        id: format!("ztunnel~1.1.1.1~{pod}.{NAMESPACE}~{NAMESPACE}.svc.cluster.local"),
        metadata: Some(Struct {
            fields: metadata.into_iter().map(|(key, value)| (key.to_owned(), field(value))).collect(),
        }),
        ..Node::default()
    };
    let node = DeltaDiscoveryRequest { node: Some(node), ..DeltaDiscoveryRequest::default() }.encode_to_vec();
    let told = told.unwrap_or_else(|| self::told(std::iter::empty()));
    let mut opening = header(node.len() + told.len()).to_vec();
    opening.extend_from_slice(&node);
    let policies = DeltaDiscoveryRequest { type_url: AUTHORIZATION_TYPE.to_owned(), ..Default::default() };
    let policies = [node, policies.encode_to_vec()].concat();
    // The fields of a message may come in any order, and in parts.
    [opening.into(), told, framed(&policies).into()]
}
