//! A whole mesh in this process: namespaces for pods, a control plane, one proxy per node.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use leno_capture::NetworkNamespace;
use leno_capture::pod_rules::{self, PodRules};
use leno_capture::zds::{Agent, PodInfo};
use leno_model::{Name, NetworkAddress, Port, Service, TunnelProtocol, Workload};
use leno_node::Config;
use leno_proxy::Proxy;
use leno_testkit::certs::{Leaf, TestCertificate};
use leno_testkit::control_plane::{ControlPlane, HOST_NAME, TOKEN};
use leno_testkit::lines::Lines;
use leno_testkit::network::{Host, Network, PodNetwork};
use leno_tls::Clock;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long anything that is sure to come may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Time limits that no test waits for: far longer than [`PATIENCE`].
pub(crate) const NEVER: Duration = Duration::from_secs(600);

/// Port of the test programs.
pub(crate) const APP: u16 = 8080;

/// Waits for what is sure to come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for {what}"),
    }
}

/// Waits for something no event tells of.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A mesh.
pub(crate) struct Mesh {
    pub(crate) control: ControlPlane,
    pub(crate) network: Network,
    nodes: BTreeMap<&'static str, Node>,
    configure: Box<dyn Fn(&mut Config)>,
    /// What gives memory back; for proxies that are yet to start.
    pub(crate) trim: fn(),
    /// Whether access logs are thrown away; likewise.
    pub(crate) discard_logs: bool,
    directory: TempDir,
}

/// One node: its proxy and the agent that hands it pods.
pub(crate) struct Node {
    pub(crate) proxy: Option<Proxy>,
    /// The proxy is a process of its own, which the test watches over.
    apart: bool,
    pub(crate) agent: Agent,
    /// Its access log.
    pub(crate) log: Lines,
}

impl Node {
    /// The running proxy.
    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the test has taken the proxy")
    }

    /// Ends it as SIGTERM does, without waiting.
    pub(crate) fn drain(&self) {
        self.proxy().drain();
    }

    /// Fetches one of the proxy's pages.
    pub(crate) async fn get(&self, port: u16, path: &str) -> String {
        let fetch = async {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            io::Result::Ok(answer)
        };
        soon(path, fetch).await.expect("the proxy's own endpoint fails")
    }

    /// The metrics page.
    pub(crate) async fn metrics(&self) -> String {
        self.get(self.proxy().endpoints().metrics, "/metrics").await
    }

    /// The configuration dump.
    pub(crate) async fn config_dump(&self) -> serde_json::Value {
        let page = self.get(self.proxy().endpoints().admin, "/config_dump").await;
        let body = unchunked(&page);
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"))
    }
}

/// The body of an answer that comes in chunks.
pub(crate) fn unchunked(answer: &str) -> String {
    let (_, mut rest) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let mut body = String::new();
    loop {
        let (length, chunk) = rest.split_once("\r\n").expect("a chunk");
        let length = usize::from_str_radix(length, 16).expect("a chunk's length");
        if length == 0 {
            return body;
        }
        body.push_str(&chunk[..length]);
        rest = &chunk[length + 2..];
    }
}

/// A pod: its network and what the control plane says of it.
pub(crate) struct Pod {
    pub(crate) network: PodNetwork,
    pub(crate) workload: Workload,
    pub(crate) node: &'static str,
}

impl Pod {
    pub(crate) fn host(&self) -> Host<'_> {
        self.network.host()
    }

    /// The workload of a pod that comes to have this one's address.
    pub(crate) fn successor(&self, name: &str) -> Workload {
        let mut workload = self.workload.clone();
        workload.uid = format!("Kubernetes//Pod/default/{name}").into();
        workload.name = name.into();
        workload.service_account = name.into();
        workload
    }

    /// Its address of the family of `like`, on the port of the test programs.
    pub(crate) fn app(&self, like: IpAddr) -> SocketAddr {
        SocketAddr::new(self.host().address_like(like), APP)
    }

    /// Listens on both families: IPv4 first.
    pub(crate) fn listen(&self) -> TcpListener {
        self.host().listen(self.network.v4, APP)
    }
}

/// A proxy's settings, as its program takes them from its arguments and its environment.
#[derive(Parser)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) config: Config,
}

impl Mesh {
    /// A mesh without nodes.
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A mesh whose proxies have other settings.
    pub(crate) async fn with(configure: impl Fn(&mut Config) + 'static) -> Self {
        Self::by(Clock::system(), configure).await
    }

    /// A mesh whose certificates begin and end by this clock.
    pub(crate) async fn by(clock: Clock, configure: impl Fn(&mut Config) + 'static) -> Self {
        // Both ends of everything are in this process; the customary 1024 are not enough.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit on descriptors");
        setrlimit(Resource::RLIMIT_NOFILE, most.min(20_000), most).expect("a higher limit on descriptors");
        Self {
            control: ControlPlane::start_by(clock.clone()).await,
            network: Network::new(),
            nodes: BTreeMap::new(),
            configure: Box::new(move |config| {
                config.proxy.clock = clock.clone();
                configure(config);
            }),
            trim: || (),
            discard_logs: false,
            directory: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// A node by name; started when first asked for.
    pub(crate) fn node(&mut self, name: &'static str) -> &Node {
        if !self.nodes.contains_key(name) {
            let node = self.start_node(name);
            self.nodes.insert(name, node);
        }
        &self.nodes[name]
    }

    /// A node whose proxy is a process of its own: `start` is told the agent's socket, and starts it.
    pub(crate) fn node_apart<T>(&mut self, name: &'static str, start: impl FnOnce(&Path, &ControlPlane) -> T) -> T {
        let (socket, agent) = self.agent(name);
        let proxy = start(&socket, &self.control);
        self.nodes.insert(name, Node { proxy: None, apart: true, agent, log: Lines::default() });
        proxy
    }

    /// A node that has been started.
    pub(crate) fn started(&self, name: &str) -> &Node {
        &self.nodes[name]
    }

    /// Takes the proxy of a node, to end it.
    pub(crate) fn take_proxy(&mut self, name: &str) -> Proxy {
        self.nodes.get_mut(name).and_then(|node| node.proxy.take()).expect("such a node")
    }

    /// A new proxy for a node whose last one is gone; its log goes on. Returns once it carries
    /// the node's pods.
    pub(crate) async fn restart_proxy(&mut self, name: &'static str) {
        self.restart_proxy_alone(name).await;
        self.synced().await;
    }

    /// As [`Self::restart_proxy`], without waiting for what the control plane says.
    pub(crate) async fn restart_proxy_alone(&mut self, name: &'static str) {
        let node = &self.nodes[name];
        let proxy = self.start_proxy(name, node.agent.path().to_owned(), node.log.clone());
        let mut proxies = node.agent.proxies();
        self.nodes.get_mut(name).expect("such a node").proxy = Some(proxy);
        soon("the pods to be taken over", proxies.wait_for(|count| *count > 0)).await.expect("the agent lives");
    }

    fn start_node(&self, name: &'static str) -> Node {
        let (socket, agent) = self.agent(name);
        let log = Lines::default();
        Node { proxy: Some(self.start_proxy(name, socket, log.clone())), apart: false, agent, log }
    }

    /// A node's agent, and its socket.
    fn agent(&self, name: &str) -> (PathBuf, Agent) {
        let socket = self.directory.path().join(format!("{name}.sock"));
        let agent = Agent::bind(&socket).expect("the agent's socket");
        (socket, agent)
    }

    fn start_proxy(&self, name: &str, socket: PathBuf, log: Lines) -> Proxy {
        let mut config = Arguments::parse_from(["node", "--node", name]).config;
        // Nobody comes after it.
        config.proxy.takeover_timeout = Duration::ZERO;
        config.proxy.xds_address = format!("https://{}", self.control.address());
        config.proxy.xds_root_ca = self.control.root_pem();
        config.proxy.alt_xds_hostname = Some(HOST_NAME.to_owned());
        config.proxy.alt_ca_hostname = Some(HOST_NAME.to_owned());
        config.proxy.auth_token = TOKEN.to_owned();
        config.pods.inpod_uds = socket;
        config.proxy.worker_threads = 1;
        (config.proxy.admin_port, config.proxy.stats_port, config.proxy.readiness_port) = (0, 0, 0);
        (self.configure)(&mut config);
        let host = leno_proxy::Host {
            log: None,
            access_log: if self.discard_logs { Box::new(io::sink()) } else { Box::new(log) },
            trim: self.trim,
        };
        let resolvers = vec![SocketAddr::new(Network::OUTSIDE_V4, 53)];
        leno_node::start(config, host, resolvers).expect("the proxy starts")
    }

    /// A pod in the mesh. The control plane knows it, its traffic is captured, and its proxy
    /// carries it, when this returns.
    pub(crate) async fn pod(&mut self, name: &'static str, node: &'static str) -> Pod {
        let pod = self.unpublished_pod(name, node).await;
        self.control.publish_workload(&pod.workload);
        self.synced().await;
        pod
    }

    /// As [`Self::pod`], but the control plane does not know it.
    pub(crate) async fn unpublished_pod(&mut self, name: &'static str, node: &'static str) -> Pod {
        let pod = self.uncaptured_pod(name, node);
        self.enroll(&pod).await;
        pod
    }

    /// A pod outside the mesh, as far as its namespace goes.
    pub(crate) fn uncaptured_pod(&mut self, name: &'static str, node: &'static str) -> Pod {
        let network = self.network.pod();
        let mut workload = Workload::new(format!("Kubernetes//Pod/default/{name}"), "default", name);
        workload.addresses = vec![network.v4, network.v6];
        workload.service_account = name.into();
        workload.node = node.into();
        workload.tunnel_protocol = TunnelProtocol::Hbone;
        workload.workload_name = name.into();
        workload.canonical_name = name.into();
        Pod { network, workload, node }
    }

    /// Captures a pod and hands it to its node's proxy.
    pub(crate) async fn enroll(&mut self, pod: &Pod) {
        self.enroll_as(&pod.workload, pod).await;
    }

    /// As [`Self::enroll`], under another name.
    pub(crate) async fn enroll_as(&mut self, workload: &Workload, pod: &Pod) {
        pod_rules::install(pod.network.namespace(), &PodRules::default()).expect("rules");
        let info = PodInfo {
            uid: workload.name.to_string(),
            name: workload.name.to_string(),
            namespace: workload.namespace.to_string(),
            service_account: workload.service_account.to_string(),
        };
        let agent = self.node(pod.node).agent.clone();
        agent.add(info, pod.network.namespace().clone(), PATIENCE).await.expect("the proxy takes the pod");
    }

    /// Waits until every proxy has what is published.
    pub(crate) async fn synced(&self) {
        let proxies = self.nodes.values().filter(|node| node.apart || node.proxy.is_some()).count();
        self.control.synced(proxies).await;
    }

    /// A service with an IPv4 and an IPv6 address of which `endpoints` become part; port 80 leads
    /// to the test programs.
    pub(crate) async fn service(&mut self, name: &str, vips: &[IpAddr], endpoints: &mut [&mut Pod]) -> Service {
        let mut service = Service::new("default", name, format!("{name}.default.svc.cluster.local"));
        service.addresses =
            vips.iter().map(|address| NetworkAddress { network: Name::from(""), address: *address }).collect();
        let port = Port::tcp(80, APP);
        service.ports = vec![port];
        self.control.publish_service(&service);
        for pod in endpoints {
            pod.workload.services.insert(service.id.clone(), vec![port]);
            self.control.publish_workload(&pod.workload);
        }
        self.synced().await;
        service
    }

    /// A certificate that the mesh trusts, saying what it is told to.
    pub(crate) fn certificate(&self, leaf: &Leaf) -> TestCertificate {
        self.control.lax_authority.issue(leaf)
    }
}

impl Deref for Pod {
    type Target = PodNetwork;

    fn deref(&self) -> &PodNetwork {
        &self.network
    }
}

/// TCP connections of a pod that are established with a peer's HBONE port.
pub(crate) fn tunnels_of(pod: &Pod) -> usize {
    established(pod, |to| to.ends_with(":3AA0"))
}

/// Established TCP connections of a pod with a far end that `is_meant`, as the kernel writes it.
fn established(pod: &Pod, is_meant: impl Fn(&str) -> bool) -> usize {
    let table = || std::fs::read_to_string("/proc/thread-self/net/tcp");
    let table = pod.network.namespace().run(table).unwrap().unwrap();
    let counts = |line: &&str| {
        let mut columns = line.split_whitespace().skip(2);
        columns.next().is_some_and(&is_meant) && columns.next() == Some("01")
    };
    table.lines().filter(counts).count()
}

/// As [`tunnels_of`], those with one peer.
pub(crate) fn tunnels_between(pod: &Pod, peer: &Pod) -> usize {
    let IpAddr::V4(address) = peer.v4 else { unreachable!("an IPv4 address") };
    // The kernel writes an address as the number that its bytes are on this machine, and the port 15008.
    let remote = format!("{:08X}:3AA0", u32::from_ne_bytes(address.octets()));
    established(pod, |to| to == remote)
}

/// One of the kernel's counters of TCP in a namespace, by its name in `/proc/net/snmp` or `/proc/net/netstat`. Those of
/// one kind are a line of names and a line of numbers.
pub(crate) fn tcp_counter(namespace: &NetworkNamespace, name: &str) -> u64 {
    let tables =
        || ["snmp", "netstat"].map(|table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap());
    let tables = namespace.run(tables).unwrap().concat();
    let lines: Vec<_> = tables.lines().collect();
    let found = lines.chunks_exact(2).find_map(|pair| {
        let index = pair[0].split_whitespace().position(|known| known == name)?;
        pair[1].split_whitespace().nth(index)?.parse().ok()
    });
    found.unwrap_or_else(|| panic!("this kernel does not count {name}"))
}

/// Makes the coming close a reset (SO_LINGER 0), as a crashed program's.
pub(crate) fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// The error that the next read ends in; bytes before it are dropped.
pub(crate) async fn read_error(stream: &mut TcpStream) -> ErrorKind {
    let read = async {
        loop {
            match stream.read(&mut [0; 1024]).await {
                Ok(0) => panic!("the stream ended as if it were complete"),
                Ok(_) => {}
                Err(error) => return error.kind(),
            }
        }
    };
    soon("an error", read).await
}

/// A connection from `client` to `server`'s program that has carried a byte each way.
pub(crate) async fn pair(client: &Pod, server: &Pod) -> (TcpStream, TcpStream) {
    let listener = server.listen();
    let mut near = soon("connect", client.host().connect(server.app(server.v4))).await.unwrap();
    near.write_all(b"x").await.unwrap();
    let (mut far, _) = soon("accept", listener.accept()).await.unwrap();
    soon("a byte", far.read_exact(&mut [0])).await.unwrap();
    far.write_all(b"y").await.unwrap();
    soon("a byte", near.read_exact(&mut [0])).await.unwrap();
    (near, far)
}

/// Sends back what it gets, on every connection, until the test ends.
pub(crate) fn echo(listener: TcpListener) {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                if tokio::io::copy(&mut read, &mut write).await.is_ok() {
                    let _ = write.shutdown().await;
                }
            });
        }
    });
}

/// One exchange with an echoing program, and a clean end.
///
/// # Errors
/// Whatever a program would see.
pub(crate) async fn exchange(mut stream: TcpStream, message: &[u8]) -> io::Result<()> {
    stream.write_all(message).await?;
    let mut answer = vec![0; message.len()];
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, message);
    stream.shutdown().await?;
    match stream.read(&mut [0]).await? {
        0 => Ok(()),
        _ => panic!("more came back than was sent"),
    }
}

/// Connects, and expects to be refused, at once or once connected.
pub(crate) async fn refused(host: Host<'_>, to: SocketAddr) -> io::Error {
    let attempt = async {
        let mut stream = host.connect(to).await?;
        stream.read(&mut [0]).await
    };
    match soon("a refusal", attempt).await {
        Ok(bytes) => panic!("{to} was reached and sent {bytes} bytes"),
        Err(error) => error,
    }
}
