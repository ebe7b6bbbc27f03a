//! Peers that send TLS records without end, each allowed but without use.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use leno_testkit::control_plane::{ControlPlane, HOST_NAME};
use leno_testkit::flood::{Flood, Sender, is_refused, leaves_turns_to_neighbours, spares_neighbours};
use leno_testkit::hbone::{self, Peer};
use leno_testkit::network::may_run;
use leno_tls::{ControlConnector, MeshIdentity, PrivateKey, RootSource, TlsStream, WorkloadCertificate};
use leno_xds::server::Limits;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::support::{NEVER, PATIENCE, soon};
use crate::{ALONE, GOOD, Target};

/// An HTTP/2 connection begins with this, settings included.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A frame of 16 KiB of an unknown type, which must be ignored (RFC 9113 §5.5).
const UNKNOWN: [u8; 9] = [0, 0x40, 0, 0xfa, 0, 0, 0, 0, 0];

fn begin(sender: &mut Sender) {
    sender.data(PREFACE, 0);
}

/// The next byte of frames without use.
fn byte(number: u64) -> [u8; 1] {
    let at = number % (UNKNOWN.len() as u64 + (16 << 10));
    [UNKNOWN.get(at as usize).copied().unwrap_or(0)]
}

/// Floods that the TLS library ends, and this proxy as well.
const ENDED: [Flood; 4] = [
    Flood { name: "KeyUpdates", begin, go_on: |sender, _| sender.key_update(false) },
    Flood { name: "KeyUpdates that ask for one", begin, go_on: |sender, _| sender.key_update(true) },
    Flood { name: "empty records", begin, go_on: |sender, _| sender.data(b"", 0) },
    Flood { name: "warnings", begin, go_on: |sender, _| sender.record(&[1, 90, 21]) },
];

/// Floods that break no rule. They must not take more than their turns.
const BORNE: [Flood; 5] = [
    Flood { name: "records of one byte", begin, go_on: |sender, number| sender.data(&byte(number), 0) },
    Flood { name: "padded records of one byte", begin, go_on: |sender, number| sender.data(&byte(number), 16_000) },
    Flood {
        name: "empty records between records of one byte",
        begin,
        go_on: |sender, number| {
            (0..32).for_each(|_| sender.data(b"", 0));
            sender.data(&byte(number), 0);
        },
    },
    Flood {
        name: "KeyUpdates between records of one byte",
        begin,
        go_on: |sender, number| {
            (0..32).for_each(|_| sender.key_update(true));
            sender.data(&byte(number), 0);
        },
    },
    Flood {
        name: "empty records and KeyUpdates",
        begin,
        go_on: |sender, _| {
            sender.data(b"", 0);
            sender.key_update(false);
        },
    },
];

/// A connection to the pod's proxy, by a peer that it trusts.
pub(crate) async fn proven(target: &Target) -> TlsStream<TcpStream> {
    let certificate = &target.good;
    let key = PrivateKey::from_pem(&certificate.key_pem).unwrap();
    let mut chain = certificate.chain();
    // The pod's own certificate is of the mesh's authority, this one is not.
    chain.last_mut().unwrap().push_str(&target.mesh.control.root_pem());
    let certificate = WorkloadCertificate::from_issued(GOOD.parse().unwrap(), key, &chain).unwrap();
    let identity = MeshIdentity::new(Arc::new(certificate)).unwrap();
    let expected = [target.pod.workload.identity().unwrap()];
    identity.connect(target.tcp().await, &expected, PATIENCE).await.unwrap().0
}

/// A tunnel through the pod's proxy to a program that answers.
pub(crate) async fn neighbour(target: &Target) -> (Peer, hbone::Answer) {
    let peer = target.peer().await;
    let answer = soon("an answer", peer.connect(&target.authority())).await.unwrap();
    (peer, answer)
}

/// Sends a message and waits for the answer.
pub(crate) async fn ask(answer: &mut hbone::Answer) {
    answer.send.send_data(Bytes::from_static(b"hello"), false).unwrap();
    assert_eq!(soon("the echo", hbone::read(&mut answer.receive, 5)).await, b"hello");
}

/// How many bytes and records a turn takes, the tests of `leno-tls` show.
#[tokio::test]
async fn a_flood_of_records_spares_the_node_proxys_other_connections() {
    if !may_run("a_flood_of_records_spares_the_node_proxys_other_connections") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    for flood in ENDED {
        is_refused(flood, proven(&target).await).await;
    }
    let (peer, mut answer) = neighbour(&target).await;
    for flood in BORNE {
        let (mut connect, mut exchange) = (async || proven(&target).await, async || ask(&mut answer).await);
        leaves_turns_to_neighbours(flood, &mut connect, &mut exchange).await;
    }
    drop((answer, peer));
    target.is_unharmed().await;
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn a_flood_of_records_does_not_slow_the_node_proxys_other_connections() {
    if !may_run("a_flood_of_records_does_not_slow_the_node_proxys_other_connections") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let (peer, mut answer) = neighbour(&target).await;
    for flood in BORNE {
        spares_neighbours(flood, &mut async || proven(&target).await, &mut async || ask(&mut answer).await).await;
    }
    drop((answer, peer));
    target.is_unharmed().await;
}

#[tokio::test]
async fn a_flood_of_records_spares_the_control_planes_other_connections() {
    let _alone = ALONE.lock().await;
    let control = Control::start().await;
    for flood in ENDED {
        is_refused(flood, control.stranger().await).await;
    }
    let peer = control.client().await;
    for flood in BORNE {
        let (mut connect, mut exchange) = (async || control.stranger().await, async || is_answered(&peer).await);
        leaves_turns_to_neighbours(flood, &mut connect, &mut exchange).await;
    }
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn a_flood_of_records_does_not_slow_the_control_planes_other_connections() {
    let _alone = ALONE.lock().await;
    let control = Control::start().await;
    let peer = control.client().await;
    for flood in BORNE {
        spares_neighbours(flood, &mut async || control.stranger().await, &mut async || is_answered(&peer).await).await;
    }
}

/// A client's request to the control plane.
async fn is_answered(peer: &Peer) {
    let request = http::Request::post("https://control.test/none/none").body(()).unwrap();
    let answer = soon("an answer", peer.request(request)).await.unwrap();
    assert_eq!(answer.status, http::StatusCode::OK);
}

/// A control plane on a thread of its own, as `leno control` has.
pub(crate) struct Control {
    address: SocketAddr,
    root: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    pub(crate) async fn start() -> Self {
        let (started, start) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                // Neither the neighbour nor who floods has a token: they are not cut off for that while a test lasts.
                let limits = Limits { first_request: NEVER, ..Limits::default() };
                let control = ControlPlane::start_within(limits).await;
                started.send((control.address(), control.root_pem().to_owned())).unwrap();
                let _ = stopped.await;
            });
        });
        let (address, root) = soon("the control plane", start).await.unwrap();
        Self { address, root, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) async fn tcp(&self) -> TcpStream {
        soon("TCP", TcpStream::connect(self.address)).await.unwrap()
    }

    /// A client that keeps the rules of HTTP/2.
    async fn client(&self) -> Peer {
        let tls = soon("TLS", hbone::tls(self.tcp().await, None)).await.unwrap();
        soon("HTTP/2", Peer::start(tls)).await.unwrap()
    }

    /// A client that shows no certificate and has no token.
    pub(crate) async fn stranger(&self) -> TlsStream<TcpStream> {
        let connector = ControlConnector::new(RootSource::Pem(self.root.clone()));
        connector.connect(self.tcp().await, HOST_NAME, PATIENCE).await.unwrap()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
