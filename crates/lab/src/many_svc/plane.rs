//! Control planes as they are shipped, started beside the lab's API server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;

use super::api_server::{ApiServer, find};
use crate::Error;
use crate::churn::{ACCOUNT, Line, Listening, NAMESPACE, Process};
use crate::subject::Subject;

/// For it to be ready: a control plane that needs longer does not work.
const READY: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(20);
/// For an answer about readiness.
const ANSWER: Duration = Duration::from_secs(5);
/// The namespace of istiod.
const ISTIO: &str = "istio-system";
/// The settings of istiod's mesh, which in a cluster come with its chart.
const MESH: &str = "trustDomain: cluster.local\ndefaultConfig:\n  discoveryAddress: istiod.istio-system.svc:15012\n";

/// A control plane.
pub(super) struct Plane {
    process: Process,
    /// It is closed with this value.
    _input: ChildStdin,
    sort: Sort,
    told: watch::Receiver<Option<Told>>,
    /// Its files.
    _scratch: TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Leno,
    Istiod,
}

/// Where it listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    discovery: SocketAddr,
    readiness: SocketAddr,
}

impl Plane {
    /// Starts `subject`; `this` is the program that runs the lab. To be called on a thread that lives as long as the
    /// control plane is wanted.
    pub(super) fn start(subject: &Subject, this: &Path, server: &ApiServer) -> Result<Self, Error> {
        let scratch = TempDir::with_prefix("leno-lab-").map_err(Error::io("cannot make a directory for its files"))?;
        let file = |name: &str, text: &str| {
            let path = scratch.path().join(name);
            let written = std::fs::write(&path, text);
            written.map(|()| path).map_err(Error::io(format!("cannot write its {name}")))
        };
        let config = file("kubeconfig", &kubeconfig(&server.url()))?;
        let program = subject.real_control_plane(this)?;
        let mut command = Command::new(program);
        // Else it might take itself for a pod, or talk to a real cluster.
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).current_dir(scratch.path());
        let (tell, told) = watch::channel(None);
        let sort = if matches!(subject, Subject::Istiod(_)) { Sort::Istiod } else { Sort::Leno };
        match sort {
            Sort::Leno => {
                command.args(["control", "--kubernetes", "--listen", "127.0.0.1:0"]);
                command.args(["--metrics-port", "0", "--readiness-port", "0", "--kubeconfig"]).arg(config);
            }
            Sort::Istiod => {
                let told = free_ports().map_err(Error::io("cannot find free ports"))?;
                istiod(&mut command, &config, &file("mesh", MESH)?, told);
                tell.send_replace(Some(told));
            }
        }
        let said = move |line: &str| {
            if sort == Sort::Leno
                && let Some(told) = where_leno_listens(line)
            {
                tell.send_replace(Some(told));
            }
            Line::Log
        };
        let (process, input) = Process::start(command, &subject.to_string(), said)?;
        Ok(Self { process, _input: input, sort, told, _scratch: scratch })
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn into_process(self) -> Process {
        self.process
    }

    /// Waits until it says that it is ready, and has published its root.
    pub(super) async fn ready(&self, server: &ApiServer) -> Result<(), Error> {
        let ready = async {
            loop {
                let told = *self.told.borrow();
                if let Some(Told { readiness, .. }) = told
                    && is_ready(readiness, self.sort.readiness_path()).await
                    && self.sort.root(server).is_some()
                {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        self.process.wait(READY, "it is not ready", ready).await
    }

    /// Where it is.
    pub(super) fn listening(&self, server: &ApiServer) -> Result<Listening, Error> {
        let told = *self.told.borrow();
        let Told { discovery, .. } = told.ok_or_else(|| self.process.broken("it does not say where it listens"))?;
        let root = self.sort.root(server).ok_or_else(|| self.process.broken("it has not published its root"))?;
        let name = match self.sort {
            Sort::Leno => discovery.ip().to_string(),
            Sort::Istiod => format!("istiod.{ISTIO}.svc"),
        };
        Ok(Listening { address: discovery, name, root })
    }
}

impl Sort {
    fn readiness_path(self) -> &'static str {
        match self {
            Self::Leno => "/healthz/ready",
            Self::Istiod => "/ready",
        }
    }

    /// The root certificate that it has published, PEM.
    fn root(self, server: &ApiServer) -> Option<String> {
        let (namespace, name) = match self {
            Self::Leno => (NAMESPACE, "leno-ca-root"),
            Self::Istiod => ("default", "istio-ca-root-cert"),
        };
        let map = find(server, "/api/v1/configmaps", namespace, name)?;
        map.value()["data"]["root-cert.pem"].as_str().map(str::to_owned)
    }
}

/// As in a cluster, but for what it does not need there: other ports, no webhooks, one replica that need not be elected.
fn istiod(command: &mut Command, config: &Path, mesh: &Path, told: Told) {
    command
        .env("PILOT_ENABLE_AMBIENT", "true")
        .env("ENABLE_LEADER_ELECTION", "false")
        .env("INJECT_ENABLED", "false")
        .env("INJECTION_WEBHOOK_CONFIG_NAME", "")
        .env("VALIDATION_WEBHOOK_CONFIG_NAME", "")
        .env("CA_TRUSTED_NODE_ACCOUNTS", format!("{NAMESPACE}/{ACCOUNT}"))
        .env("POD_NAMESPACE", ISTIO)
        .env("POD_NAME", "istiod-0")
        .env("CLUSTER_ID", "Kubernetes")
        .args(["discovery", "--registries", "Kubernetes", "--grpcAddr", "", "--httpsAddr", ""])
        .args(["--monitoringAddr", "127.0.0.1:0", "--ctrlz_port", "0"])
        .args(["--secureGRPCAddr", &told.discovery.to_string(), "--httpAddr", &told.readiness.to_string()])
        .arg("--kubeconfig")
        .arg(config)
        .arg("--meshConfig")
        .arg(mesh);
}

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters: [{{name: lab, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: lab, user: {{}}}}]\ncontexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n"
    )
}

/// Reads the line with which Leno's control plane begins: `... address=127.0.0.1:1 metrics=2 readiness=3 ...`.
fn where_leno_listens(line: &str) -> Option<Told> {
    if !line.contains("control plane started") {
        return None;
    }
    let said = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let discovery = said("address")?.parse().ok()?;
    let readiness = said("readiness")?.parse().ok()?;
    Some(Told { discovery, readiness: (Ipv4Addr::LOCALHOST, readiness).into() })
}

/// Ports that nobody has, for a program that does not say which ones it was given.
fn free_ports() -> io::Result<Told> {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (first, second) = (free()?, free()?);
    Ok(Told { discovery: first.local_addr()?, readiness: second.local_addr()? })
}

/// Whether a program says that it is ready.
async fn is_ready(address: SocketAddr, path: &str) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        Some(answer == *b"HTTP/1.1 200")
    };
    matches!(tokio::time::timeout(ANSWER, asking).await, Ok(Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leno_says_where_it_listens() {
        let line = "2026-11-25T10:00:00Z INFO leno::control: control plane started address=127.0.0.1:41001 metrics=41002 \
                    readiness=41003 root=\"ConfigMap leno-system/leno-ca-root\"";
        let told = where_leno_listens(line).unwrap();
        assert_eq!((told.discovery.port(), told.readiness.port()), (41001, 41003));
        assert_eq!(where_leno_listens("address=127.0.0.1:41001 readiness=41003"), None);
    }
}
