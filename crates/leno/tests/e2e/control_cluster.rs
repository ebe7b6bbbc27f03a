//! `leno control --kubernetes` with an API server that the test provides. Needs only free ports.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use leno_testkit::api_server::ApiServer;
use leno_tls::{ControlConnector, RootSource};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::stage::{eventually, leno};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

struct Control {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    _directory: tempfile::TempDir,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn kubeconfig(path: &Path, server: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(path, text).unwrap();
}

impl Control {
    fn start(server: &str) -> Self {
        Self::start_with(server, &[])
    }

    fn start_with(server: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        kubeconfig(&file, server);
        let mut child = leno()
            .args(["control", "--kubernetes", "--listen", "127.0.0.1:0"])
            .args(["--metrics-port", "0", "--readiness-port", "0", "--kubeconfig"])
            .arg(&file)
            .args(flags)
            .env_remove("POD_NAMESPACE")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines, _directory: directory }
    }

    /// Waits for the next line that contains this text.
    fn line(&self, wanted: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(Duration::from_secs(60)) {
                Ok(line) if line.contains(wanted) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no {wanted:?} ({error}) after {seen:#?}"),
            }
        }
    }

    /// Ends it with SIGTERM, as a kubelet does, and returns its exit code.
    fn end(&mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A list that is refused keeps it from being ready, and the readiness port says so.
#[test]
fn readiness_names_the_missing_permission() {
    let runtime = runtime();
    let server = runtime.block_on(ApiServer::start());
    server.forbid("/api/v1/pods");
    let mut control = Control::start(&server.url());
    let line = control.line("control plane started");
    let (_, port) = line.split_once(" readiness=").expect("it says where");
    let port: u16 = port.split_whitespace().next().unwrap().parse().unwrap();
    eventually("the reason", || match get(port, "/healthz/ready").map_err(|error| error.to_string())? {
        answer if answer.contains("500") && answer.contains("pods") && answer.contains("by `leno upgrade`") => Ok(()),
        answer => Err(answer),
    });
    assert_eq!(control.end(), Some(0));
}

#[test]
fn a_cluster_is_served_with_an_authority_of_its_own() {
    let runtime = runtime();
    let server = runtime.block_on(ApiServer::start());
    let mut control = Control::start(&server.url());
    let line = control.line("control plane started");
    let said = |name: &str| {
        let (_, value) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
        value.split_whitespace().next().unwrap().trim_matches('"').to_owned()
    };
    let address: SocketAddr = said("address").parse().unwrap();
    let readiness: u16 = said("readiness").parse().unwrap();
    eventually("readiness", || match get(readiness, "/healthz/ready").map_err(|error| error.to_string())? {
        answer if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
        answer => Err(answer),
    });
    let roots = eventually("the roots in the ConfigMap", || {
        let map = server.get("v1", "configmaps", "leno-system", "leno-ca-root").ok_or("there is none")?;
        map["data"]["root-cert.pem"].as_str().map(str::to_owned).ok_or_else(|| map.to_string())
    });
    for name in ["leno-control.leno-system.svc", "leno-control.leno-system.svc.cluster.local"] {
        runtime.block_on(async {
            let tcp = TcpStream::connect(address).await.unwrap();
            let connector = ControlConnector::new(RootSource::Pem(roots.clone()));
            connector.connect(tcp, name, Duration::from_secs(60)).await.map(drop).unwrap();
        });
    }
    assert!(server.get("v1", "secrets", "leno-system", "leno-ca").is_some());
    // A replica that follows need not wait for the Lease to expire.
    let holder = || {
        let lease = server.get("coordination.k8s.io/v1", "leases", "leno-system", "leno-control").expect("there");
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    };
    assert!(holder().is_some_and(|holder| !holder.is_empty()));
    assert_eq!(control.end(), Some(0));
    assert_eq!(holder().as_deref(), Some(""));
}

#[test]
fn authorisers_come_from_a_file_that_is_followed() {
    let runtime = runtime();
    let server = runtime.block_on(ApiServer::start());
    server.put(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.1.0.1", "clusterIPs": ["10.1.0.1"], "ports": [{"name": "http", "port": 80}]},
    }));
    server.put(&json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "ask", "namespace": "shop"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "web"}],
            "action": "CUSTOM", "provider": {"name": "opa"}, "rules": [{}],
        },
    }));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mesh");
    std::fs::write(&file, "extensionProviders: []\n").unwrap();
    let mut control = Control::start_with(&server.url(), &["--mesh-config", file.to_str().unwrap()]);
    control.line("mesh configuration read");
    // The finding is the policy's, in the cluster.
    let condition = |wanted: &str| {
        eventually(wanted, || {
            let policy = server.get("security.istio.io/v1", "authorizationpolicies", "shop", "ask").unwrap();
            let said = policy["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned();
            if said.contains(wanted) { Ok(said) } else { Err(policy.to_string()) }
        })
    };
    condition("what matches is DENIED: ConfigMap leno-system/leno-mesh-config (mesh) has no provider \"opa\"");
    let next = directory.path().join("next");
    std::fs::write(&next, "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: opa.auth.svc, port: 1}}]")
        .unwrap();
    std::fs::rename(&next, &file).unwrap();
    eventually("it has somebody to ask", || {
        let policy = server.get("security.istio.io/v1", "authorizationpolicies", "shop", "ask").unwrap();
        if policy["status"].to_string().contains("has no provider") { Err(policy.to_string()) } else { Ok(()) }
    });
    std::fs::write(&next, "extensionProviders: [").unwrap();
    std::fs::rename(&next, &file).unwrap();
    control.line("can't be read, so the providers of the last good version stay");
    let said = condition("the provider is that of the last good version");
    assert!(!said.contains("what matches is DENIED"), "{said}");
    assert_eq!(control.end(), Some(0));
}

#[test]
fn it_waits_for_an_api_server_and_says_so_and_ends_when_told() {
    let runtime = runtime();
    let mut server = runtime.block_on(ApiServer::start());
    runtime.block_on(server.stop());
    let mut control = Control::start(&server.url());
    let line = control.line("can't be reached");
    assert!(line.contains("is it running"), "{line}");
    runtime.block_on(server.restart());
    control.line("control plane started");
    assert_eq!(control.end(), Some(0));
    runtime.block_on(server.stop());
    let mut control = Control::start(&server.url());
    control.line("can't be reached");
    assert_eq!(control.end(), Some(0));
}

#[test]
fn a_kubeconfig_that_is_not_there_is_named() {
    let output = leno().args(["control", "--kubernetes", "--kubeconfig", "/no/such/file"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("/no/such/file") && text.contains("--kubeconfig"), "{text}");
}
