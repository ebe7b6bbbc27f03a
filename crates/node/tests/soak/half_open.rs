//! Peers that connect to a pod's HBONE port and never get as far as a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leno_testkit::certs::{Leaf, TestCertificate};
use leno_testkit::hbone;
use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::process::order;
use crate::support::{Pod, eventually, soon};
use crate::{ALONE, Field, open};

/// How far a peer goes before it sends nothing more.
#[derive(Clone, Copy)]
enum Silent {
    /// It sends nothing.
    AtOnce,
    /// In the middle of a ClientHello.
    InHello,
    /// After TLS, without HTTP/2's preface.
    AfterTls,
}

/// Record header of a ClientHello that never comes in full, and its first bytes.
const HALF_A_HELLO: [u8; 11] = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];

/// How soon a good peer is answered: much sooner than the ten seconds that a silent peer may take.
const NEWCOMER: Duration = Duration::from_secs(1);

/// A peer that reconnects whenever it is refused.
async fn besiege(from: Arc<Pod>, to: SocketAddr, silent: Silent, certificate: TestCertificate) {
    loop {
        if let Ok(mut tcp) = from.host().connect(to).await {
            match silent {
                Silent::AtOnce => drop(tcp.read(&mut [0]).await),
                Silent::InHello => {
                    if tcp.write_all(&HALF_A_HELLO).await.is_ok() {
                        drop(tcp.read(&mut [0]).await);
                    }
                }
                Silent::AfterTls => {
                    if let Ok(mut tls) = hbone::tls(tcp, Some(&certificate)).await {
                        drop(tls.read(&mut [0]).await);
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Peers on a thread of their own. They end when this is dropped.
struct Besiegers {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Besiegers {
    /// `behind`: they compute only when nobody else on this machine wants to. In the field they have machines of their
    /// own; here a neighbour would wait for theirs, not for the proxy.
    fn begin(behind: bool, peers: Vec<impl Future<Output = ()> + Send + 'static>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            if behind {
                yield_to_all();
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let _peers: JoinSet<()> = peers.into_iter().collect();
                let _ = stopped.await;
            });
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Besiegers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The calling thread runs only when no other wants to (sched(7), SCHED_IDLE).
#[allow(unsafe_code, reason = "no library has this call")]
fn yield_to_all() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads `parameters`, which lives, and changes nothing but the calling thread's class.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[tokio::test]
async fn half_open_peers_disturb_nobody_and_leave_nothing() {
    if !may_run("half_open_peers_disturb_nobody_and_leave_nothing") {
        return;
    }
    let _alone = ALONE.lock().await;
    half_open_peers(Field::new().await).await;
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn half_open_peers_slow_nobody_down() {
    if !may_run("half_open_peers_slow_nobody_down") {
        return;
    }
    let _alone = ALONE.lock().await;
    half_open_peers(Field::measured().await).await;
}

async fn half_open_peers(mut field: Field) {
    // A pod of another mesh, or none: nothing captures it.
    let attacker = Arc::new(field.mesh.uncaptured_pod("attacker", "node-1"));
    let certificate = field.mesh.certificate(&Leaf::uri("spiffe://cluster.local/ns/default/sa/attacker"));
    let neighbour = field.neighbour();
    let base = neighbour.base(&field.size).await;
    let held = field.descriptors()[1];

    let to = SocketAddr::new(field.server.v4, 15008);
    let peer = |number| {
        let silent = [Silent::AtOnce, Silent::InHello, Silent::AfterTls][number % 3];
        besiege(attacker.clone(), to, silent, certificate.clone())
    };
    let peers = Besiegers::begin(field.size.behind, (0..field.size.half_open).map(peer).collect());
    eventually("the siege", || field.descriptors()[1] >= held + field.size.half_open * 9 / 10).await;
    // One that has no tunnel to that pod yet gets in between them.
    let begun = Instant::now();
    drop(soon("an answer", open(&field.beside.0, field.target(), order::ECHO)).await.unwrap());
    println!("a newcomer had an answer after {:?}", begun.elapsed());
    if field.size.measured {
        assert!(begun.elapsed() < NEWCOMER, "{:?}", begun.elapsed());
    }
    neighbour.is_undisturbed(base, "half-open peers", &field.size).await;
    tokio::time::sleep(field.size.besieged).await;
    println!("{:?} descriptors and {:?} bytes more during the siege", field.descriptors(), field.taken());
    drop(peers);
    drop(neighbour);
    field.is_given_back().await;
}
