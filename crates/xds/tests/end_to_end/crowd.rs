//! Clients without a token, in any number, do not keep out a client that has one.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_tls::TlsStream;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::*;

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How far a client without a token goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idler {
    /// Connects.
    Tcp,
    /// Finishes the TLS handshake.
    Tls,
    /// Opens HTTP/2.
    Http2,
    /// Sends a request each second with a wrong token.
    BadToken,
}

const IDLERS: [Idler; 4] = [Idler::Tcp, Idler::Tls, Idler::Http2, Idler::BadToken];

/// The addresses of these clients.
#[derive(Debug, Clone, Copy)]
enum From {
    /// The address of honest proxies.
    Home,
    /// Another one.
    Elsewhere,
    /// Each from its own.
    Everywhere,
}

impl From {
    fn address(self, n: usize) -> IpAddr {
        match self {
            Self::Home => HOME,
            Self::Elsewhere => Ipv4Addr::new(127, 0, 0, 2).into(),
            Self::Everywhere => {
                let [.., high, low] = n.to_be_bytes();
                Ipv4Addr::new(127, 1, high, low).into()
            }
        }
    }
}

impl ControlPlane {
    async fn tcp_from(&self, from: IpAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// A TLS connection; the control plane may end it meanwhile.
    async fn tls_from(&self, from: IpAddr) -> Option<TlsStream<TcpStream>> {
        let connector = ControlConnector::new(RootSource::Pem(self.authority.root_pem()));
        connector.connect(self.tcp_from(from).await, "control.test", TIMEOUT).await.ok()
    }

    /// An HTTP/2 connection, and what resolves when it ends.
    async fn http2_from(&self, from: IpAddr) -> Option<(SendRequest<Full<Bytes>>, JoinHandle<()>)> {
        let io = TokioIo::new(self.tls_from(from).await?);
        let (requests, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.ok()?;
        Some((requests, tokio::spawn(async { drop(connection.await) })))
    }

    /// Opens a connection that never shows a good token. The result resolves when it has ended.
    async fn idle(&self, kind: Idler, from: IpAddr) -> impl Future<Output = ()> + Send + use<> {
        let (tcp, tls, http2) = match kind {
            Idler::Tcp => (Some(self.tcp_from(from).await), None, None),
            Idler::Tls => (None, self.tls_from(from).await, None),
            Idler::Http2 | Idler::BadToken => (None, None, self.http2_from(from).await),
        };
        async move {
            if let Some(mut tcp) = tcp {
                let _ = tcp.read(&mut [0]).await;
            }
            if let Some(mut tls) = tls {
                // Its settings come first.
                while tls.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
            }
            if let Some((mut requests, ended)) = http2 {
                let mut ended = std::pin::pin!(ended);
                let mut pause = tokio::time::interval(Duration::from_secs(1));
                loop {
                    tokio::select! {
                        _ = &mut ended => return,
                        _ = pause.tick(), if kind == Idler::BadToken => drop(ask(&mut requests, "old").await),
                    }
                }
            }
        }
    }
}

/// The gRPC status of a request for a certificate with that token; `None` if the connection has ended.
async fn ask(requests: &mut SendRequest<Full<Bytes>>, token: &str) -> Option<String> {
    let request = http::Request::post("https://control.test/istio.v1.auth.IstioCertificateService/CreateCertificate")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::new(Bytes::from_static(b"\0\0\0\0\0")))
        .unwrap();
    requests.ready().await.ok()?;
    let (head, body) = requests.send_request(request).await.ok()?.into_parts();
    let trailers = http_body_util::BodyExt::collect(body).await.ok()?.trailers().cloned();
    let status = head.headers.get("grpc-status").or(trailers.as_ref().and_then(|t| t.get("grpc-status")));
    Some(status.expect("a gRPC status").to_str().unwrap().to_owned())
}

/// How long such clients may keep a proxy waiting. Those that have finished the handshake stay for good, so that a proxy which
/// waits for them to leave is never served. The others leave when theirs has taken too long, so it must not take that.
fn patience(kind: Idler) -> Duration {
    if kind == Idler::Tcp { leno_tls::HANDSHAKE_TIMEOUT } else { TIMEOUT * 5 }
}

/// A first-time proxy gets all it needs.
async fn a_proxy_is_served(control: &ControlPlane, patience: Duration, when: &str) {
    let served = async {
        let mut proxy = Proxy::start(control.config("good"), node());
        assert_eq!(proxy.synced().await.len(), 1);
        let alice: Identity = "spiffe://cluster.local/ns/a/sa/alice".parse().unwrap();
        let (_, csr) = certificate_request(&alice).unwrap();
        let client = CaClient::new(control.config("good"));
        while let Err(error) = client.issue(&alice, csr.clone(), TTL).await {
            assert!(error.retryable, "{when}: {error}");
        }
    };
    tokio::time::timeout(patience, served).await.unwrap_or_else(|_| panic!("{when}: an honest proxy is kept out"));
}

/// Opens as many idle connections as there are places.
async fn crowd(kind: Idler, from: From, count: usize, limits: Limits) {
    let when = format!("{count} × {kind:?} from {from:?}");
    let control = ControlPlane::with_limits(authority(), resources(&[("w", "1")]), 0, limits).await;
    let mut early = Proxy::start(control.config("good"), node());
    early.synced().await;
    let of_early = control.proxy(|_| true).await.address;

    let mut idlers = JoinSet::new();
    for n in 0..count {
        idlers.spawn(control.idle(kind, from.address(n)).await);
    }
    a_proxy_is_served(&control, patience(kind), &when).await;
    // Once more, after the first proxy has left.
    a_proxy_is_served(&control, patience(kind), &when).await;
    control.change(|resources| {
        resources.upsert(ADDRESS_TYPE, "w", Resource::new("2"));
    });
    assert_eq!(early.next().await, Seen::Applied(ADDRESS_TYPE.to_owned(), vec![upsert("w", "2")]));
    assert_eq!(control.service.sync_status()[0].address, of_early, "{when}: who was there keeps its connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_keep_nobody_out() {
    // A long deadline, so that the limits are what helps.
    let first_request = Duration::from_secs(3600);
    let limits = Limits { unproven: 32, unproven_per_address: 8, first_request, ..Limits::default() };
    for kind in IDLERS {
        let mut all = JoinSet::new();
        for from in [From::Home, From::Elsewhere, From::Everywhere] {
            all.spawn(crowd(kind, from, limits.unproven, limits));
        }
        while let Some(one) = all.join_next().await {
            one.unwrap();
        }
    }
}

/// With a control plane's default limits, and more connections than it could take before idle ones had to give way.
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_keep_nobody_out_at_full_size() {
    for kind in [Idler::Tcp, Idler::Tls] {
        for from in [From::Home, From::Everywhere] {
            crowd(kind, from, 17_000, Limits::default()).await;
        }
    }
}

#[tokio::test]
async fn who_proves_nothing_in_time_is_let_go_and_who_has_may_be_idle() {
    let limits = Limits { first_request: Duration::from_secs(2), ..Limits::default() };
    let control = ControlPlane::with_limits(authority(), resources(&[("w", "1")]), 0, limits).await;
    let mut proxy = Proxy::start(control.config("good"), node());
    proxy.synced().await;
    let address = control.proxy(|_| true).await.address;
    let (mut requests, _connection) = control.http2_from(HOME).await.unwrap();
    // No certificate request at all, but a good token.
    assert_ne!(ask(&mut requests, "good").await.expect("an answer"), "16");
    for kind in IDLERS {
        let ended = control.idle(kind, HOME).await;
        tokio::time::timeout(TIMEOUT, ended).await.unwrap_or_else(|_| panic!("{kind:?} stays for ever"));
    }
    assert!(ask(&mut requests, "good").await.is_some(), "a connection that has proved itself stays");
    assert_eq!(control.service.sync_status()[0].address, address);
}
