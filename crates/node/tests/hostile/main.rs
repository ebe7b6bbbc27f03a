//! Hostile peers: each is refused with a reason, and the proxy is unharmed.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod floods;
mod h2spec;
mod handshakes;
mod neighbours;
mod records;
mod requests;
#[path = "../support/mod.rs"]
mod support;

pub(crate) use leno_testkit::own_memory::anonymous as memory;
use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use leno_testkit::certs::{Leaf, TestCertificate};
use leno_testkit::frames::Frames;
use leno_testkit::hbone::{self, Peer};
use leno_testkit::lines::Lines;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use leno_node::Config;
use support::{Mesh, Pod, echo, eventually, soon};

/// One test at a time: each counts the descriptors of the whole process.
pub(crate) static ALONE: Mutex<()> = Mutex::const_new(());

/// The server's HTTP/2 settings.
pub(crate) const STREAMS: usize = 200;
pub(crate) const STREAM_WINDOW: usize = 4 << 20;

/// One pod under attack from outside the mesh, running an echo program.
pub(crate) struct Target {
    pub(crate) mesh: Mesh,
    pub(crate) pod: Pod,
    pub(crate) good: TestCertificate,
    /// The access log of its node.
    pub(crate) log: Lines,
    descriptors: usize,
}

pub(crate) const GOOD: &str = "spiffe://cluster.local/ns/default/sa/good";

impl Target {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(configure: impl Fn(&mut Config) + 'static) -> Self {
        let target = Self::start(configure).await;
        echo(target.pod.listen());
        target.settled().await
    }

    pub(crate) async fn without_program() -> Self {
        Self::start(|_| {}).await
    }

    async fn start(configure: impl Fn(&mut Config) + 'static) -> Self {
        let mut mesh = Mesh::with(configure).await;
        let pod = mesh.pod("pod", "node-1").await;
        mesh.synced().await;
        let good = mesh.certificate(&Leaf::uri(GOOD));
        let log = mesh.node("node-1").log.clone();
        Self { mesh, pod, good, log, descriptors: 0 }
    }

    /// Counts what is open for good; so not before the first certificate, for which a connection to
    /// the control plane is opened and kept.
    pub(crate) async fn settled(mut self) -> Self {
        self.good_peer_is_served().await;
        self.descriptors = descriptors();
        self.is_unharmed().await;
        self
    }

    pub(crate) async fn metrics(&self) -> String {
        self.mesh.started("node-1").metrics().await
    }

    pub(crate) fn hbone(&self) -> SocketAddr {
        SocketAddr::new(self.pod.v4, 15008)
    }

    pub(crate) fn authority(&self) -> String {
        self.pod.app(self.pod.v4).to_string()
    }

    pub(crate) async fn tcp(&self) -> TcpStream {
        soon("TCP", self.mesh.network.outside().connect(self.hbone())).await.unwrap()
    }

    /// An HTTP/2 connection with a good certificate.
    pub(crate) async fn peer(&self) -> Peer {
        let tls = soon("TLS", hbone::tls(self.tcp().await, Some(&self.good))).await.unwrap();
        soon("HTTP/2", Peer::start(tls)).await.unwrap()
    }

    pub(crate) async fn frames(&self) -> Frames<hbone::Tls> {
        let tls = soon("TLS", hbone::tls(self.tcp().await, Some(&self.good))).await.unwrap();
        soon("HTTP/2", Frames::start(tls)).await.unwrap()
    }

    pub(crate) async fn good_peer_is_served(&self) {
        let peer = self.peer().await;
        let mut answer = soon("an answer", peer.connect(&self.authority())).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
        answer.send.send_data(Bytes::from_static(b"hello"), true).unwrap();
        assert_eq!(soon("the echo", hbone::read(&mut answer.receive, 5)).await, b"hello");
        soon("the end", hbone::end(&mut answer.receive)).await;
    }

    /// Waits until nothing of the attack is left.
    pub(crate) async fn is_unharmed(&self) {
        self.good_peer_is_served().await;
        eventually("descriptors to be closed", || descriptors() <= self.descriptors + 4).await;
    }
}

pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
