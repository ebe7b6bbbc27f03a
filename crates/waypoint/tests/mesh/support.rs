//! The mesh of a test: a waypoint, a service that names it, and a bridge by which any program is a mesh client of it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use clap::Parser;
use leno_model::{
    AppProtocol, GatewayAddress, GatewayDestination, HBONE_PORT, Name, NetworkAddress, Port, Service, TunnelProtocol,
    Workload,
};
use leno_proxy::Proxy;
use leno_testkit::certs::Leaf;
use leno_testkit::control_plane::{ControlPlane, HOST_NAME, TOKEN};
use leno_testkit::hbone::{Tls, tls};
use leno_testkit::lines::Lines;
use leno_tunnel::{ConnectRequest, OpenError, Pool, Settings, Transport, TunnelStream};
use leno_waypoint::Config;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const VIP: &str = "10.96.0.1";
pub(crate) const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";

/// Waits for `what`, and stops the test if it does not come.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(Duration::from_secs(20), future).await {
        Ok(output) => output,
        Err(_) => panic!("waited too long for {what}"),
    }
}

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    config: Config,
}

/// The mesh of one test.
pub(crate) struct Mesh {
    pub(crate) control: ControlPlane,
    proxy: Proxy,
    pub(crate) address: SocketAddr,
    pub(crate) log: Lines,
    /// Of the waypoint itself.
    waypoint: Service,
    pub(crate) own: Workload,
}

fn gateway(of: &Service) -> GatewayAddress {
    GatewayAddress { destination: GatewayDestination::Hostname(of.id.clone()), hbone_mtls_port: HBONE_PORT }
}

fn vip(address: &str) -> NetworkAddress {
    NetworkAddress { network: Name::from(""), address: address.parse().unwrap() }
}

impl Mesh {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(configure: impl FnOnce(&mut Config)) -> Self {
        let control = ControlPlane::start_for("default").await;
        let mut waypoint = Service::new("default", "waypoint", "waypoint.default.svc.cluster.local");
        waypoint.addresses = vec![vip("10.96.0.2")];
        waypoint.ports = vec![Port::tcp(HBONE_PORT, HBONE_PORT)];
        control.publish_service(&waypoint);
        let mut own = Workload::new("Kubernetes//Pod/default/waypoint-1", "default", "waypoint-1");
        own.addresses = vec!["127.0.0.1".parse().unwrap()];
        own.service_account = "waypoint".into();
        own.node = "node-1".into();
        own.services.insert(waypoint.id.clone(), Vec::new());
        control.publish_workload(&own);

        let mut config = Arguments::parse_from(["waypoint", "--node", "node-1"]).config;
        let proxy = &mut config.proxy;
        proxy.xds_address = format!("https://{}", control.address());
        proxy.xds_root_ca = control.root_pem();
        proxy.alt_xds_hostname = Some(HOST_NAME.to_owned());
        proxy.alt_ca_hostname = Some(HOST_NAME.to_owned());
        proxy.auth_token = TOKEN.to_owned();
        proxy.pod_name = "waypoint-1".to_owned();
        proxy.pod_namespace = "default".to_owned();
        proxy.worker_threads = 1;
        proxy.takeover_timeout = Duration::ZERO;
        (proxy.admin_port, proxy.stats_port, proxy.readiness_port) = (0, 0, 0);
        config.waypoint.service_account = "waypoint".to_owned();
        config.waypoint.listen = "127.0.0.1:0".parse().unwrap();
        configure(&mut config);
        let log = Lines::default();
        let host = leno_proxy::Host { log: None, access_log: Box::new(log.clone()), trim: || () };
        let (proxy, address) = leno_waypoint::start(config, host).unwrap();
        control.synced(1).await;
        Self { control, proxy, address, log, waypoint, own }
    }

    /// A service that names the waypoint, at [`VIP`], port 80, with these endpoints outside of the mesh.
    pub(crate) async fn service(&self, protocol: AppProtocol, endpoints: &[SocketAddr]) -> Service {
        let service = self.unpublished_service(protocol);
        self.control.publish_service(&service);
        for (index, endpoint) in endpoints.iter().enumerate() {
            self.endpoint(&service, index, *endpoint, TunnelProtocol::None);
        }
        self.control.synced(1).await;
        service
    }

    pub(crate) fn unpublished_service(&self, protocol: AppProtocol) -> Service {
        let mut service = Service::new("default", "web", "web.default.svc.cluster.local");
        service.addresses = vec![vip(VIP)];
        service.ports = vec![Port { app_protocol: protocol, ..Port::tcp(80, 8080) }];
        service.waypoint = Some(gateway(&self.waypoint));
        service
    }

    /// Publishes one endpoint of a service.
    pub(crate) fn endpoint(&self, service: &Service, index: usize, at: SocketAddr, tunnel: TunnelProtocol) -> Workload {
        let name = format!("web-{index}");
        let mut workload = Workload::new(format!("Kubernetes//Pod/default/{name}"), "default", name);
        workload.addresses = vec![at.ip()];
        workload.service_account = "web".into();
        workload.tunnel_protocol = tunnel;
        workload.services.insert(service.id.clone(), vec![Port { target_port: at.port(), ..service.ports[0] }]);
        self.control.publish_workload(&workload);
        workload
    }

    /// Begins the waypoint's end.
    pub(crate) fn drain(&self) {
        self.proxy.drain();
    }

    /// What a Prometheus would scrape.
    pub(crate) async fn metrics(&self) -> String {
        self.own_page(self.proxy.endpoints().metrics, "/metrics").await
    }

    /// What `leno observe` would read.
    pub(crate) async fn connections(&self) -> String {
        self.own_page(self.proxy.endpoints().admin, "/connections").await
    }

    async fn own_page(&self, port: u16, path: &str) -> String {
        raw(SocketAddr::from(([127, 0, 0, 1], port)), format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await
    }

    /// Tunnels of a mesh client to the waypoint.
    pub(crate) fn client(&self) -> Client {
        let certificate = self.control.lax_authority.issue(&Leaf::uri(CLIENT));
        let (address, pool) = (self.address, Pool::new(Settings::default()));
        Client { certificate, address, pool }
    }

    /// An address at which any program is a mesh client of `authority`.
    pub(crate) async fn bridge(&self, authority: &str) -> SocketAddr {
        let client = self.client();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let authority = authority.to_owned();
        tokio::spawn(async move {
            let client = std::sync::Arc::new(client);
            while let Ok((mut stream, _)) = listener.accept().await {
                let (client, authority) = (client.clone(), authority.clone());
                tokio::spawn(async move {
                    if let Ok(mut tunnel) = client.open(&authority).await {
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut tunnel).await;
                    }
                });
            }
        });
        address
    }

    /// As [`Self::bridge`], to the service.
    pub(crate) async fn bridged(&self) -> SocketAddr {
        self.bridge(&format!("{VIP}:80")).await
    }
}

/// A mesh client.
pub(crate) struct Client {
    certificate: leno_testkit::certs::TestCertificate,
    address: SocketAddr,
    pool: Pool<(), std::sync::Arc<io::Error>>,
}

impl Client {
    pub(crate) async fn open(&self, authority: &str) -> Result<TunnelStream, OpenError<std::sync::Arc<io::Error>>> {
        let dial = || async {
            let tcp = TcpStream::connect(self.address).await?;
            tcp.set_nodelay(true)?;
            Ok(Encrypted(tls(tcp, Some(&self.certificate)).await?))
        };
        let request = ConnectRequest { authority: authority.to_owned(), headers: http::HeaderMap::new() };
        Ok(soon("a tunnel", self.pool.open(&(), dial, request)).await?.0)
    }
}

struct Encrypted(Tls);

impl Transport for Encrypted {}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    // As a proxy does: a frame's head and its bytes leave in one record, and arrive together.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A server of a test that answers each connection with `serve`.
pub(crate) async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // As servers do. An answer would otherwise wait until those before it have arrived.
            stream.set_nodelay(true).unwrap();
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Sends `request`, and reads to the end.
pub(crate) async fn raw(to: SocketAddr, request: &[u8]) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    soon("an answer", exchange).await
}
