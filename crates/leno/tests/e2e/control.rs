//! `leno control`, a control plane by itself. Needs nothing but a port.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use leno_tls::{CaOptions, CertificateAuthority, ControlConnector, HandshakeError, RootSource};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::stage::{eventually, leno};

struct Control {
    child: Child,
    address: std::net::SocketAddr,
    directory: TempDir,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Control {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("mesh.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n").unwrap();
        std::fs::write(path("tokens"), "").unwrap();
        let mut child = leno()
            .args(["control", "--listen", "127.0.0.1:0", "-f"])
            .arg(path("mesh.yaml"))
            .arg("--tokens")
            .arg(path("tokens"))
            .arg("--ca-dir")
            .arg(path("ca"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains("control plane started"));
        let line = line.expect("it ended before it listened");
        let (_, address) = line.split_once("address=").expect("it says where it listens");
        let address = address.split_whitespace().next().unwrap().trim_matches('"').parse().expect("an address");
        // What it says later must go somewhere.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, directory }
    }

    /// Processor time of each of its serving threads so far, in nanoseconds.
    fn serving_threads(&self) -> Vec<u64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of_task = |task: std::fs::DirEntry| {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let serves = read("comm").trim() == "serve";
            serves.then(|| read("schedstat").split_whitespace().next().unwrap_or("0").parse().unwrap())
        };
        tasks.filter_map(|task| of_task(task.unwrap())).collect()
    }
}

/// A handshake with the control plane that believes `roots`.
async fn handshake(control: &Control, roots: &RootSource) -> Result<(), HandshakeError> {
    let tcp = TcpStream::connect(control.address).await.unwrap();
    let connector = ControlConnector::new(roots.clone());
    connector.connect(tcp, "localhost", Duration::from_secs(20)).await.map(drop)
}

#[test]
fn another_root_in_the_directory_is_taken_over_while_it_runs() {
    let control = Control::start();
    let ca = control.directory.path().join("ca");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let believing = |roots: &str| runtime.block_on(handshake(&control, &RootSource::Pem(roots.to_owned())));
    let old = std::fs::read_to_string(ca.join("root-cert.pem")).unwrap();
    believing(&old).unwrap();
    for rotation in 1..=3 {
        let other = control.directory.path().join(format!("other-{rotation}"));
        drop(CertificateAuthority::open(&other, "cluster.local", CaOptions::default()).unwrap());
        for file in ["root-key.pem", "root-cert.pem"] {
            std::fs::copy(other.join(file), ca.join(file)).unwrap();
        }
        let new = std::fs::read_to_string(other.join("root-cert.pem")).unwrap();
        eventually("the new root to sign", || believing(&new).map_err(|error| error.to_string()));
    }
    assert!(matches!(believing(&old), Err(HandshakeError::UntrustedCa)));
}

#[test]
fn several_threads_serve() {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores == 1 {
        leno_testkit::skips::skip("several_threads_serve", "this machine has one core");
        return;
    }
    let control = Control::start();
    let roots = RootSource::File(control.directory.path().join("ca/root-cert.pem"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    eventually("work on two threads", || {
        runtime.block_on(async {
            let handshake = async || handshake(&control, &roots).await.unwrap();
            let (a, b, c, d) = (handshake(), handshake(), handshake(), handshake());
            tokio::join!(a, b, c, d);
        });
        let mut spent = control.serving_threads();
        assert!(spent.len() >= cores.min(2), "one thread per core: {spent:?}");
        spent.sort_unstable();
        // Whoever has nothing to do still wakes now and then.
        if spent[spent.len() - 2] * 10 > spent[spent.len() - 1] { Ok(()) } else { Err(format!("{spent:?}")) }
    });
}
