//! Meshes that don't fit into one frame, one window or one request.

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use prost::Message;

use super::*;

fn mesh(count: usize, body: &str) -> Resources {
    let mut resources = Resources::default();
    for n in 0..count {
        resources.upsert(ADDRESS_TYPE, name(n), Resource::new(body.to_owned()));
    }
    resources
}

fn name(n: usize) -> String {
    format!("cluster//Pod/ns/{n:05}")
}

#[tokio::test]
async fn a_large_mesh_fits() {
    let control = ControlPlane::new(mesh(20_000, &"x".repeat(1000))).await;
    let mut proxy = Proxy::start(control.config("good"), node());
    assert_eq!(proxy.synced().await.len(), 20_000);
}

/// The list of what a proxy holds of a large mesh takes a request of many frames.
#[tokio::test]
async fn a_large_mesh_is_not_sent_again() {
    let control = ControlPlane::new(mesh(20_000, "1")).await;
    let mut proxy = Proxy::start(control.config("good"), node());
    assert_eq!(proxy.synced().await.len(), 20_000);
    control.proxy(|proxy| proxy.generation.is_some()).await;
    let (authority, mut resources, port) = control.stop().await;
    resources.remove(ADDRESS_TYPE, &name(7));
    resources.upsert(ADDRESS_TYPE, name(5), Resource::new("2"));
    let control = ControlPlane::start(authority, resources, port).await;
    assert_eq!(proxy.next().await, Seen::Applied(AUTHORIZATION_TYPE.to_owned(), vec![]));
    let updates = vec![remove(&name(7)), upsert(&name(5), "2")];
    assert_eq!(proxy.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), updates));
    let seen = control.proxy(|proxy| proxy.generation.is_some()).await;
    let addresses = seen.types.iter().find(|each| each.type_url == ADDRESS_TYPE).unwrap();
    assert_eq!((addresses.resources, addresses.in_sync), (19_999, true));
}

/// A client that sends a proxy's requests, and reads when the test wants it.
struct Lazy {
    body: hyper::body::Incoming,
    requests: mpsc::UnboundedSender<DeltaDiscoveryRequest>,
    came: Vec<u8>,
    _connection: hyper::client::conn::http2::SendRequest<http_body_util::combinators::BoxBody<Bytes, std::io::Error>>,
}

impl Lazy {
    async fn connect(control: &ControlPlane) -> Self {
        let connector = ControlConnector::new(RootSource::Pem(control.authority.root_pem()));
        let tcp = TcpStream::connect(control.address).await.unwrap();
        let tls = connector.connect(tcp, "control.test", TIMEOUT).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.unwrap();
        tokio::spawn(connection);
        let (requests, mut queue) = mpsc::unbounded_channel::<DeltaDiscoveryRequest>();
        let node = Some(Node { id: "lazy".to_owned(), ..Node::default() });
        for type_url in [ADDRESS_TYPE, AUTHORIZATION_TYPE] {
            let (node, type_url) = (node.clone(), type_url.to_owned());
            requests.send(DeltaDiscoveryRequest { node, type_url, ..Default::default() }).unwrap();
        }
        let said = futures_util::stream::poll_fn(move |cx| {
            queue.poll_recv(cx).map(|request| {
                let message = request?.encode_to_vec();
                let head = [&[0][..], &(message.len() as u32).to_be_bytes()].concat();
                Some(Ok::<_, std::io::Error>(Frame::data(Bytes::from([head, message].concat()))))
            })
        });
        let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let request = http::Request::post(format!("https://control.test{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", "Bearer good")
            .body(BodyExt::boxed(StreamBody::new(said)))
            .unwrap();
        let body = sender.send_request(request).await.unwrap().into_body();
        Self { body, requests, came: Vec::new(), _connection: sender }
    }

    async fn next(&mut self) -> DeltaDiscoveryResponse {
        loop {
            if let Some((head, rest)) = self.came.split_first_chunk::<5>() {
                let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
                if rest.len() >= length {
                    let response = DeltaDiscoveryResponse::decode(&rest[..length]).unwrap();
                    self.came.drain(..5 + length);
                    return response;
                }
            }
            let frame = tokio::time::timeout(TIMEOUT, self.body.frame()).await.expect("nothing came").unwrap().unwrap();
            self.came.extend_from_slice(frame.data_ref().unwrap());
        }
    }

    fn acknowledge(&self, response: &DeltaDiscoveryResponse) {
        let (type_url, response_nonce) = (response.type_url.clone(), response.nonce.clone());
        self.requests.send(DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() }).unwrap();
    }
}

/// Some clients stop reading within their first answer. The others see each change as if they were alone. A client that
/// reads on gets the state of the time of the answer, and then exactly the difference to the latest state.
#[tokio::test]
async fn who_does_not_read_is_alone_with_that() {
    let control = ControlPlane::new(mesh(5_000, &"x".repeat(500))).await;
    let mut stopped = Vec::new();
    for _ in 0..20 {
        let mut lazy = Lazy::connect(&control).await;
        let policies = lazy.next().await;
        assert_eq!(policies.type_url, AUTHORIZATION_TYPE);
        lazy.acknowledge(&policies);
        stopped.push(lazy);
    }
    // The others never read while this one is sent anything: it waits for none of them.
    let mut good = Proxy::start(control.config("good"), node());
    assert_eq!(good.synced().await.len(), 5_000);
    for n in 0..50 {
        control.change(|resources| {
            resources.upsert(ADDRESS_TYPE, name(n), Resource::new(n.to_string()));
            resources.remove(ADDRESS_TYPE, &name(n + 1000));
        });
        let updates = vec![remove(&name(n + 1000)), upsert(&name(n), &n.to_string())];
        assert_eq!(good.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), updates));
    }
    let mut lazy = stopped.pop().unwrap();
    let first = lazy.next().await;
    assert_eq!(first.resources.len(), 5_000);
    lazy.acknowledge(&first);
    let second = lazy.next().await;
    let versions = |response: &DeltaDiscoveryResponse| -> BTreeMap<String, String> {
        response.resources.iter().map(|resource| (resource.name.clone(), resource.version.clone())).collect()
    };
    let mut held = versions(&first);
    held.retain(|name, _| !second.removed_resources.contains(name));
    held.extend(versions(&second));
    let latest = control.resources.borrow().clone();
    let wanted =
        latest.of(ADDRESS_TYPE).unwrap().iter().map(|(n, r)| (n.to_string(), r.version().to_owned())).collect();
    assert_eq!(held, wanted);
    assert_eq!((second.resources.len(), second.removed_resources.len()), (50, 50), "and nothing twice");
}
