//! Client and server of this crate, in one process, over real TLS.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::Identity;
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE};
use leno_tls::{
    CaOptions, CertificateAuthority, ControlAcceptor, ControlConnector, Issuer, RootSource, WorkloadCertificate,
    certificate_request,
};
use leno_xds::ca_client::CaClient;
use leno_xds::client::{Client, ConnectionState, Handler, NodeInfo, Observer, Rejection, Status, Termination, Update};
use leno_xds::server::{
    AuthError, Authenticator, CaService, Caller, Limits, ProxyStatus, Service, Services, SignError, Signer, serve,
};
use leno_xds::{ChannelConfig, Resource, Resources, TokenSource};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

#[path = "end_to_end/crowd.rs"]
mod crowd;
#[path = "end_to_end/large.rs"]
mod large;
#[path = "end_to_end/saved.rs"]
mod saved;

const TIMEOUT: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(3600);

/// Knows one token.
struct OneToken;

impl Authenticator for OneToken {
    fn authenticate<'a>(&'a self, token: &'a str, cluster_id: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(async move {
            match token {
                "good" => Ok(Caller {
                    namespace: "leno-system".to_owned(),
                    service_account: "ztunnel".to_owned(),
                    node: Some("node-1".to_owned()),
                    cluster_id: cluster_id.to_owned(),
                    ..Caller::default()
                }),
                "unlucky" => Err(AuthError::Unavailable("the API server is away".to_owned())),
                _ => Err(AuthError::Invalid("it has expired".to_owned())),
            }
        })
    }
}

/// Signs for everybody in namespace `a`.
struct NamespaceA(Arc<CertificateAuthority>);

impl Signer for NamespaceA {
    fn sign<'a>(
        &'a self,
        caller: &'a Caller,
        csr_pem: &'a str,
        impersonated: Option<Identity>,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>, SignError>> {
        Box::pin(async move {
            let identity = impersonated.ok_or_else(|| SignError::Invalid("no identity".to_owned()))?;
            if &**identity.namespace() != "a" {
                return Err(SignError::Denied(format!("no pod of {identity} runs on {:?}", caller.node)));
            }
            self.0.sign(csr_pem, &identity, ttl).map_err(|error| SignError::Invalid(error.to_string()))
        })
    }
}

struct ControlPlane {
    authority: Arc<CertificateAuthority>,
    resources: watch::Sender<Arc<Resources>>,
    service: Service,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl ControlPlane {
    async fn start(authority: Arc<CertificateAuthority>, resources: Resources, port: u16) -> Self {
        Self::with_limits(authority, resources, port, Limits::default()).await
    }

    async fn with_limits(
        authority: Arc<CertificateAuthority>,
        resources: Resources,
        port: u16,
        limits: Limits,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor =
            ControlAcceptor::from_authority(authority.clone(), vec!["control.test".to_owned()], Vec::new()).unwrap();
        let (resources, watched) = watch::channel(Arc::new(resources));
        let service = Service::new(watched, Arc::new(OneToken));
        let services = Services {
            discovery: service.clone(),
            certificates: CaService::new(Arc::new(OneToken), Arc::new(NamespaceA(authority.clone()))),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(serve(listener, acceptor, services, limits, async { drop(stopped.await) }));
        Self { authority, resources, service, address, stop: Some(stop), task }
    }

    async fn new(resources: Resources) -> Self {
        Self::start(authority(), resources, 0).await
    }

    fn config(&self, token: &str) -> ChannelConfig {
        ChannelConfig {
            address: format!("https://{}", self.address).parse().unwrap(),
            root: RootSource::Pem(self.authority.root_pem()),
            alt_hostname: Some("control.test".to_owned()),
            token: Some(TokenSource::Literal(token.to_owned())),
            cluster_id: "Kubernetes".to_owned(),
            headers: vec![("X-Extra".to_owned(), "1".to_owned())],
        }
    }

    fn change(&self, change: impl FnOnce(&mut Resources)) {
        self.resources.send_modify(|resources| {
            let mut next = Resources::clone(resources);
            next.set_generation(next.generation() + 1);
            change(&mut next);
            *resources = Arc::new(next);
        });
    }

    async fn proxy(&self, is: impl Fn(&ProxyStatus) -> bool) -> ProxyStatus {
        let mut changes = self.service.sync_changes();
        let found = async {
            loop {
                if let Some(found) = self.service.sync_status().into_iter().find(&is) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(TIMEOUT, found).await.expect("no proxy became as expected")
    }

    async fn stop(mut self) -> (Arc<CertificateAuthority>, Resources, u16) {
        self.stop.take().unwrap().send(()).unwrap();
        tokio::time::timeout(TIMEOUT, &mut self.task).await.expect("shutdown hangs").unwrap();
        let resources = Resources::clone(&self.resources.borrow());
        (self.authority, resources, self.address.port())
    }
}

fn authority() -> Arc<CertificateAuthority> {
    Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).unwrap())
}

fn node() -> NodeInfo {
    NodeInfo {
        pod_name: "ztunnel-x".to_owned(),
        pod_namespace: "leno-system".to_owned(),
        node_name: "node-1".to_owned(),
        ..NodeInfo::default()
    }
}

fn resources(addresses: &[(&str, &str)]) -> Resources {
    let mut resources = Resources::default();
    for (name, body) in addresses {
        resources.upsert(ADDRESS_TYPE, *name, Resource::new(body.to_string()));
    }
    resources
}

/// What a handler saw.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Applied(String, Vec<Update>),
    Synced(String),
}

struct Recorder {
    seen: mpsc::UnboundedSender<Seen>,
}

impl Handler for Recorder {
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection> {
        let bad = updates.iter().filter_map(|update| match update {
            Update::Upsert { name, body } if body.starts_with(b"bad") => {
                Some(Rejection { name: name.clone(), reason: "it is bad".to_owned() })
            }
            _ => None,
        });
        let rejections = bad.collect();
        let _ = self.seen.send(Seen::Applied(type_url.to_owned(), updates));
        rejections
    }

    fn synced(&mut self, type_url: &str) {
        let _ = self.seen.send(Seen::Synced(type_url.to_owned()));
    }
}

#[derive(Default)]
struct Counter {
    messages: Mutex<BTreeMap<String, (usize, usize)>>,
    terminations: Mutex<Vec<Termination>>,
}

impl Observer for Counter {
    fn message(&self, type_url: &str, bytes: usize, resources: usize) {
        let mut messages = self.messages.lock();
        let entry = messages.entry(type_url.to_owned()).or_default();
        *entry = (entry.0 + bytes, entry.1 + resources);
    }

    fn terminated(&self, reason: Termination) {
        self.terminations.lock().push(reason);
    }
}

struct Proxy {
    seen: mpsc::UnboundedReceiver<Seen>,
    status: watch::Receiver<Status>,
    counter: Arc<Counter>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    fn start(config: ChannelConfig, node: NodeInfo) -> Self {
        Self::of(Client::new(config, node))
    }

    fn of(client: Client) -> Self {
        let counter = Arc::new(Counter::default());
        let client = client.observed_by(counter.clone());
        let status = client.status();
        let (sender, seen) = mpsc::unbounded_channel();
        let task = tokio::spawn(client.run(Recorder { seen: sender }));
        Self { seen, status, counter, task }
    }

    async fn next(&mut self) -> Seen {
        tokio::time::timeout(TIMEOUT, self.seen.recv()).await.expect("nothing came").unwrap()
    }

    async fn becomes(&mut self, is: impl Fn(&Status) -> bool) -> Status {
        let waiting = self.status.wait_for(|status| is(status));
        tokio::time::timeout(TIMEOUT, waiting).await.expect("status never came").unwrap().clone()
    }

    /// Waits for the initial answers, and returns their updates.
    async fn synced(&mut self) -> Vec<Update> {
        let mut all = Vec::new();
        let mut types = Vec::new();
        while types.len() < 2 {
            match self.next().await {
                Seen::Applied(_, updates) => all.extend(updates),
                Seen::Synced(type_url) => types.push(type_url),
            }
        }
        assert_eq!(types, [AUTHORIZATION_TYPE, ADDRESS_TYPE], "policies first");
        all
    }
}

fn upsert(name: &str, body: &str) -> Update {
    Update::Upsert { name: name.into(), body: body.to_owned().into() }
}

fn remove(name: &str) -> Update {
    Update::Remove { name: name.into() }
}

#[tokio::test]
async fn the_whole_way_and_status_on_both_ends() {
    let control = ControlPlane::new(resources(&[("w", "1"), ("x", "1")])).await;
    let mut proxy = Proxy::start(control.config("good"), node());
    assert_eq!(proxy.synced().await, [upsert("w", "1"), upsert("x", "1")]);
    let status = proxy.becomes(Status::is_synced).await;
    assert!(matches!(status.connection, ConnectionState::Connected { .. }));
    assert_eq!(status.synced[ADDRESS_TYPE], 2);

    control.change(|resources| {
        resources.upsert(ADDRESS_TYPE, "w", Resource::new("2"));
        resources.remove(ADDRESS_TYPE, "x");
        resources.upsert(AUTHORIZATION_TYPE, "p", Resource::new("1"));
    });
    assert_eq!(proxy.next().await, Seen::Applied(AUTHORIZATION_TYPE.to_owned(), vec![upsert("p", "1")]));
    assert_eq!(proxy.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), vec![remove("x"), upsert("w", "2")]));

    let seen = control.proxy(|proxy| proxy.generation == Some(1)).await;
    assert_eq!(seen.id, "ztunnel~1.1.1.1~ztunnel-x.leno-system~leno-system.svc.cluster.local");
    assert_eq!((seen.node.as_deref(), &*seen.account), (Some("node-1"), "leno-system/ztunnel"));
    assert!(seen.types.iter().all(|each| each.in_sync && each.sent == 2 && each.acked == 2 && each.resources == 1));
    let messages = proxy.counter.messages.lock().clone();
    assert_eq!(messages[ADDRESS_TYPE].1, 3);
    assert!(messages[ADDRESS_TYPE].0 > 100);
    drop(proxy);
    let mut changes = control.service.sync_changes();
    let gone = async {
        while !control.service.sync_status().is_empty() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, gone).await.expect("a proxy that left is forgotten");
}

#[tokio::test]
async fn a_reconnect_sends_what_changed_meanwhile_and_nothing_else() {
    let control = ControlPlane::new(resources(&[("same", "1"), ("changed", "1"), ("gone", "1")])).await;
    let mut proxy = Proxy::start(control.config("good"), node());
    assert_eq!(proxy.synced().await.len(), 3);
    control.proxy(|proxy| proxy.generation.is_some()).await;
    let (authority, _, port) = control.stop().await;
    proxy.becomes(|status| matches!(status.connection, ConnectionState::Disconnected { .. })).await;

    let control = ControlPlane::start(authority, resources(&[("same", "1"), ("changed", "2")]), port).await;
    assert_eq!(proxy.next().await, Seen::Applied(AUTHORIZATION_TYPE.to_owned(), vec![]));
    let updates = vec![remove("gone"), upsert("changed", "2")];
    assert_eq!(proxy.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), updates));
    // At the next reconnect, nothing is sent.
    control.proxy(|proxy| proxy.generation.is_some()).await;
    let (authority, latest, port) = control.stop().await;
    let _control = ControlPlane::start(authority, latest, port).await;
    assert_eq!(proxy.next().await, Seen::Applied(AUTHORIZATION_TYPE.to_owned(), vec![]));
    assert_eq!(proxy.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), vec![]));
    let terminations = proxy.counter.terminations.lock();
    assert!(terminations.contains(&Termination::Complete), "{terminations:?}");
}

#[tokio::test]
async fn a_refused_resource_is_told_and_the_rest_counts() {
    let control = ControlPlane::new(resources(&[("good", "1"), ("sad", "bad")])).await;
    let mut proxy = Proxy::start(control.config("good"), node());
    proxy.synced().await;
    let seen =
        control.proxy(|proxy| proxy.types.iter().any(|each| each.nacked == 1 && each.type_url == ADDRESS_TYPE)).await;
    let addresses = seen.types.iter().find(|each| each.type_url == ADDRESS_TYPE).unwrap();
    assert_eq!(addresses.last_nack.as_deref(), Some("sad: it is bad"));
    assert_eq!(proxy.becomes(|status| status.nacks == 1).await.synced[ADDRESS_TYPE], 1);
    control.change(|resources| {
        resources.upsert(ADDRESS_TYPE, "sad", Resource::new("glad"));
    });
    assert_eq!(proxy.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), vec![upsert("sad", "glad")]));
    let seen = control.proxy(|proxy| proxy.generation == Some(1)).await;
    assert!(seen.types.iter().all(|each| each.last_nack.is_none()));
}

#[tokio::test]
async fn who_is_let_in() {
    let control = ControlPlane::new(resources(&[])).await;
    let refused = async |config: ChannelConfig, node: NodeInfo| {
        let mut proxy = Proxy::start(config, node);
        let is = |status: &Status| matches!(status.connection, ConnectionState::Disconnected { .. });
        match proxy.becomes(is).await.connection {
            ConnectionState::Disconnected { reason, retryable, .. } => (reason, retryable),
            other => panic!("{other:?}"),
        }
    };
    let (reason, retryable) = refused(control.config("old"), node()).await;
    assert!(reason.contains("it has expired") && !retryable, "{reason}");
    let (reason, retryable) = refused(control.config("unlucky"), node()).await;
    assert!(reason.contains("API server") && retryable, "{reason}");
    let nobody = ChannelConfig { token: None, ..control.config("") };
    let (reason, _) = refused(nobody, node()).await;
    assert!(reason.contains("no token"), "{reason}");
    let missing = ChannelConfig { token: Some(TokenSource::File("/does/not/exist".into())), ..control.config("") };
    let (reason, _) = refused(missing, node()).await;
    assert!(reason.contains("/does/not/exist"), "{reason}");
    let elsewhere = NodeInfo { pod_namespace: "other".to_owned(), ..node() };
    let (reason, retryable) = refused(control.config("good"), elsewhere).await;
    assert!(reason.contains("namespace") && !retryable, "{reason}");
    let stranger = ChannelConfig { root: RootSource::Pem(authority().root_pem()), ..control.config("good") };
    let (reason, _) = refused(stranger, node()).await;
    assert!(reason.contains("certificate authority"), "{reason}");
    let wrong_name = ChannelConfig { alt_hostname: None, ..control.config("good") };
    let (reason, _) = refused(wrong_name, node()).await;
    assert!(reason.contains("control.test"), "{reason}");
    let plain = ChannelConfig { address: "http://127.0.0.1:1".parse().unwrap(), ..control.config("good") };
    let (reason, retryable) = refused(plain, node()).await;
    assert!(reason.contains("TLS") && !retryable, "{reason}");
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = ChannelConfig { address: format!("https://{port}").parse().unwrap(), ..control.config("good") };
    let (reason, retryable) = refused(away, node()).await;
    assert!(reason.contains("refused") && retryable, "{reason}");
}

#[tokio::test]
async fn the_token_is_read_for_every_connection() {
    let control = ControlPlane::new(resources(&[])).await;
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "old\n").unwrap();
    let config = ChannelConfig { token: Some(TokenSource::File(token.clone())), ..control.config("") };
    let mut proxy = Proxy::start(config, node());
    proxy.becomes(|status| matches!(status.connection, ConnectionState::Disconnected { .. })).await;
    std::fs::write(&token, "good\n").unwrap();
    proxy.synced().await;
}

#[tokio::test]
async fn certificates_for_those_who_may() {
    let control = ControlPlane::new(resources(&[])).await;
    let client = CaClient::new(control.config("good"));
    let alice: Identity = "spiffe://cluster.local/ns/a/sa/alice".parse().unwrap();
    let (key, csr) = certificate_request(&alice).unwrap();
    let chain = client.issue(&alice, csr.clone(), TTL).await.unwrap();
    assert_eq!(chain.last(), Some(&control.authority.root_pem()));
    WorkloadCertificate::from_issued(alice.clone(), key, &chain).unwrap();

    let bob: Identity = "spiffe://cluster.local/ns/b/sa/bob".parse().unwrap();
    let error = client.issue(&bob, csr.clone(), TTL).await.unwrap_err();
    assert!(error.message.contains("no pod of spiffe://cluster.local/ns/b/sa/bob") && !error.retryable, "{error}");
    let error = client.issue(&alice, "x".repeat(100_000), TTL).await.unwrap_err();
    assert!(error.message.contains("limit") || error.message.contains("large"), "{error}");
    let error = CaClient::new(control.config("old")).issue(&alice, csr.clone(), TTL).await.unwrap_err();
    assert!(error.message.contains("it has expired") && !error.retryable, "{error}");

    // The channel outlives a restart of the control plane.
    let (authority, latest, port) = control.stop().await;
    let error = client.issue(&alice, csr.clone(), TTL).await.unwrap_err();
    assert!(error.retryable, "{error}");
    let _control = ControlPlane::start(authority, latest, port).await;
    client.issue(&alice, csr, TTL).await.unwrap();
}

#[tokio::test]
async fn garbage_hurts_nobody() {
    let control = ControlPlane::new(resources(&[("w", "1")])).await;
    let mut good = Proxy::start(control.config("good"), node());
    good.synced().await;

    // No TLS at all.
    let mut plain = TcpStream::connect(control.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    // This client connects and sends nothing. It must not hold up others.
    let _silent = TcpStream::connect(control.address).await.unwrap();
    // TLS, then no HTTP/2.
    let connector = ControlConnector::new(RootSource::Pem(control.authority.root_pem()));
    let dial = async || {
        let tcp = TcpStream::connect(control.address).await.unwrap();
        connector.connect(tcp, "control.test", TIMEOUT).await.unwrap()
    };
    let mut stream = dial().await;
    stream.write_all(&[0xff; 1000]).await.unwrap();
    stream.flush().await.unwrap();
    let _ = stream.read_to_end(&mut answer).await;
    // HTTP/2, then a message that is no protobuf, a length that is a lie, an unknown service.
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    for (path, body) in [
        (path, &b"\0\0\0\0\x04\xff\xff\xff\xff"[..]),
        (path, &b"\0\xff\xff\xff\xff"[..]),
        (path, &b"\x02garbage"[..]),
        (path, &b"\0\0\0\0\0"[..]),
        ("/istio.v1.auth.IstioCertificateService/CreateCertificate", &b"\0\0\0\0\x04\xff\xff\xff\xff"[..]),
        ("/no.such.Service/Method", &b""[..]),
        ("/", &b""[..]),
    ] {
        let io = hyper_util::rt::TokioIo::new(dial().await);
        let (mut requests, connection) =
            hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
        let driver = tokio::spawn(connection);
        let request = http::Request::post(format!("https://control.test{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", "Bearer good")
            .body(http_body_util::Full::new(bytes::Bytes::from_static(body)))
            .unwrap();
        let response = tokio::time::timeout(TIMEOUT, requests.send_request(request)).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let trailers = http_body_util::BodyExt::collect(body).await.unwrap().trailers().cloned();
        let status = head.headers.get("grpc-status").or(trailers.as_ref().and_then(|t| t.get("grpc-status"))).cloned();
        assert_ne!(status.expect("a gRPC status"), "0", "{path}");
        driver.abort();
    }
    control.change(|resources| {
        resources.upsert(ADDRESS_TYPE, "w", Resource::new("2"));
    });
    assert_eq!(good.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), vec![upsert("w", "2")]));
}
