//! `leno control`, a control plane by itself. Needs nothing but a port.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use leno_tls::{
    CaOptions, CertificateAuthority, ControlConnector, HandshakeError, Issuer as _, RootSource, certificate_request,
};
use leno_xds::ca_client::CaClient;
use leno_xds::{ChannelConfig, TokenSource};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::stage::{eventually, leno, run};

struct Control {
    child: Child,
    address: std::net::SocketAddr,
    metrics: u16,
    readiness: u16,
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
        Self::start_with("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", "", &[])
    }

    fn start_with(objects: &str, tokens: &str, args: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("mesh.yaml"), objects).unwrap();
        std::fs::write(path("tokens"), tokens).unwrap();
        let mut child = leno()
            .args(["control", "--listen", "127.0.0.1:0", "--metrics-port", "0", "--readiness-port", "0", "-f"])
            .arg(path("mesh.yaml"))
            .arg("--tokens")
            .arg(path("tokens"))
            .arg("--ca-dir")
            .arg(path("ca"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains("control plane started"));
        let line = line.expect("it ended before it listened");
        let said = |name: &str| {
            let (_, value) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
            value.split_whitespace().next().unwrap().trim_matches('"').to_owned()
        };
        let address = said("address").parse().expect("an address");
        let (metrics, readiness) = (said("metrics").parse().unwrap(), said("readiness").parse().unwrap());
        // Its output must be read, or it blocks once the pipe is full.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, metrics, readiness, directory }
    }

    /// The answer to `GET path` on a port of the control plane.
    fn get(port: u16, path: &str) -> Result<String, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().map_err(|error| error.to_string())
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

/// A handshake with the control plane by a client that trusts `roots`.
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
        // An idle thread also wakes now and then, so the comparison is relative.
        if spent[spent.len() - 2] * 10 > spent[spent.len() - 1] { Ok(()) } else { Err(format!("{spent:?}")) }
    });
}

#[test]
fn it_says_whether_it_is_ready_and_what_it_counts() {
    let control = Control::start();
    eventually("readiness", || match Control::get(control.readiness, "/healthz/ready")? {
        answer if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
        answer => Err(answer),
    });
    for path in ["/metrics", "/stats/prometheus"] {
        let page = Control::get(control.metrics, path).unwrap();
        for line in [
            concat!("istio_build{component=\"control\",tag=\"leno-", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "pilot_xds 0",
            "pilot_services 0",
            "citadel_server_csr_count 0",
        ] {
            assert!(page.lines().any(|shown| shown.trim_end() == line), "no {line} in\n{page}");
        }
        let left = page.lines().find_map(|line| line.strip_prefix("citadel_server_root_cert_expiry_seconds "));
        let left: u64 = left.expect("when the root ends").trim_end().parse().unwrap();
        assert!(left > 9 * 365 * 24 * 3600, "a new root lasts ten years: {left}");
    }
}

#[test]
fn a_port_in_use_is_named_with_the_flag_for_another() {
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("mesh.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n").unwrap();
    std::fs::write(path("tokens"), "").unwrap();
    let mut command = leno();
    command.args(["control", "--listen", "127.0.0.1:0", "--metrics-port", &port, "-f"]).arg(path("mesh.yaml"));
    command.arg("--tokens").arg(path("tokens")).arg("--ca-dir").arg(path("ca"));
    let ran = run(&mut command);
    assert_eq!(ran.code, 1);
    for part in [&port, "--metrics-port", "metrics"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

/// A node proxy that runs under another account than Leno's and ztunnel's.
#[test]
fn the_accounts_of_node_proxies_can_be_told() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web-1, namespace: shop}\n\
        spec: {nodeName: node-1, serviceAccountName: web, containers: [{name: c}]}\n";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |args: &[&str]| {
        let control = Control::start_with(WEB, &format!("{TOKEN} mesh/proxy node-1"), args);
        let issuer = CaClient::new(ChannelConfig {
            address: format!("https://localhost:{}", control.address.port()).parse().unwrap(),
            root: RootSource::File(control.directory.path().join("ca/root-cert.pem")),
            alt_hostname: None,
            token: Some(TokenSource::Literal(TOKEN.to_owned())),
            cluster_id: "Kubernetes".to_owned(),
            headers: Vec::new(),
        });
        let identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let (_, request) = certificate_request(&identity).unwrap();
        runtime.block_on(issuer.issue(&identity, request, Duration::from_secs(3600))).map_err(|error| error.to_string())
    };
    let refused = ask(&[]).expect_err("it is not trusted by default");
    assert!(refused.contains("start the control plane with --node-account mesh/proxy"), "{refused}");
    let chain = ask(&["--node-account", "istio-system/ztunnel", "--node-account", "mesh/proxy"]).unwrap();
    assert!(chain[0].contains("BEGIN CERTIFICATE"));
}
