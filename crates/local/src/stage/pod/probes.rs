//! Asking a container whether it can serve, as the kubelet does: from the node, with the source
//! address that the rules inside an enrolled pod let pass.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_capture::pod_rules::{PROBE_SOURCE_V4, PROBE_SOURCE_V6};
use leno_objects::{Container, HttpGetAction, HttpScheme, IntOrString, Probe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::stage::pod::sandbox::{Program, Sandbox};

/// How much of an answer is read, as the kubelet does.
const ANSWER: usize = 10 * 1024;

/// How one probe went; `Err` says why not, for the operator.
pub(crate) type Outcome = Result<(), String>;

/// The surroundings that a probe needs to know.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub node: NetworkNamespace,
    pub pod_ip: IpAddr,
    pub sandbox: Sandbox,
    /// Environment and directory of the container, for `exec`.
    pub env: Vec<(String, String)>,
    pub cwd: String,
}

/// Counts outcomes: ready after `successThreshold` successes in a row, unready after
/// `failureThreshold` failures.
#[derive(Debug)]
pub(crate) struct Counter {
    successes: u32,
    failures: u32,
    needed: u32,
    tolerated: u32,
    pub ready: bool,
}

impl Counter {
    pub(crate) fn new(probe: &Probe) -> Self {
        Self {
            successes: 0,
            failures: 0,
            needed: probe.success_threshold.max(1),
            tolerated: probe.failure_threshold.max(1),
            ready: false,
        }
    }

    /// Counts a result. Returns whether readiness changed.
    pub(crate) fn count(&mut self, success: bool) -> bool {
        let before = self.ready;
        if success {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            self.ready |= self.successes >= self.needed;
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            self.ready &= self.failures < self.tolerated;
        }
        before != self.ready
    }
}

/// Time until the next try. A container that isn't ready yet is asked more often than its period
/// says, as the kubelet asks at once on start: nobody wants to wait ten seconds for a demo.
pub(crate) fn pause(probe: &Probe, ready: bool, tries: u32) -> Duration {
    let period = Duration::from_secs(u64::from(probe.period_seconds.max(1)));
    if ready { period } else { period.min(Duration::from_millis(50 * u64::from(tries.clamp(1, 20)))) }
}

/// Asks once.
pub(crate) async fn ask(probe: &Probe, container: &Container, around: &Surroundings) -> Outcome {
    let limit = Duration::from_secs(u64::from(probe.timeout_seconds.max(1)));
    let question = async {
        if let Some(http) = &probe.http_get {
            let stream = connect(around, &http.host, port_of(&http.port, container)?).await?;
            get(stream, http, around.pod_ip).await
        } else if let Some(tcp) = &probe.tcp_socket {
            connect(around, &tcp.host, port_of(&tcp.port, container)?).await.map(drop)
        } else if let Some(exec) = &probe.exec {
            run(&exec.command, around).await
        } else {
            Ok(())
        }
    };
    tokio::time::timeout(limit, question).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

fn port_of(port: &IntOrString, container: &Container) -> Result<u16, String> {
    match port {
        IntOrString::Int(number) => Ok(*number),
        IntOrString::String(name) => container
            .ports
            .iter()
            .find(|port| port.name == *name)
            .map(|port| port.container_port.0)
            .ok_or_else(|| format!("the container has no port named {name:?}")),
    }
}

async fn connect(around: &Surroundings, host: &str, port: u16) -> Result<TcpStream, String> {
    let ip = if host.is_empty() {
        around.pod_ip
    } else {
        host.parse().map_err(|_| format!("the probe's host {host:?} is not an address"))?
    };
    let source: IpAddr = if ip.is_ipv4() { PROBE_SOURCE_V4.into() } else { PROBE_SOURCE_V6.into() };
    let socket = || -> io::Result<TcpSocket> {
        let socket = if ip.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(source, 0))?;
        Ok(socket)
    };
    let socket = around
        .node
        .run(socket)
        .map_err(|reason| reason.to_string())?
        .map_err(|reason| format!("no socket on the node: {reason}"))?;
    socket.connect(SocketAddr::new(ip, port)).await.map_err(|reason| format!("port {port}: {reason}"))
}

async fn get(mut stream: TcpStream, http: &HttpGetAction, ip: IpAddr) -> Outcome {
    if http.scheme == HttpScheme::Https {
        // A TLS listener that accepts is what can be told without trusting its certificate.
        return Ok(());
    }
    let path = if http.path.is_empty() { "/" } else { &http.path };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let host = http.http_headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"));
    let host = host.map_or_else(|| SocketAddr::new(ip, 0).ip().to_string(), |header| header.value.clone());
    let mut request =
        format!("GET {slash}{path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: kube-probe/leno\r\nconnection: close\r\n");
    for header in http.http_headers.iter().filter(|header| !header.name.eq_ignore_ascii_case("host")) {
        request.push_str(&format!("{}: {}\r\n", header.name, header.value));
    }
    request.push_str("\r\n");
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        while head.len() < 12 && stream.read_buf(&mut head).await? > 0 {}
        // Programs complain about a caller that leaves in the middle of an answer.
        while head.len() < ANSWER && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
        io::Result::Ok(head)
    };
    let head = exchange.await.map_err(|reason| format!("GET {path}: {reason}"))?;
    match status(&head) {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("GET {path} answered {code}")),
        None => Err(format!("GET {path}: the answer is not HTTP")),
    }
}

/// The status of an HTTP/1 answer: `HTTP/1.x NNN`.
fn status(head: &[u8]) -> Option<u16> {
    let head = std::str::from_utf8(head.get(..12)?).ok()?;
    let code = head.strip_prefix("HTTP/1.")?.get(2..)?;
    code.parse().ok()
}

async fn run(command: &[String], around: &Surroundings) -> Outcome {
    let null = || -> io::Result<std::os::fd::OwnedFd> {
        Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
    };
    let stdio = || -> io::Result<_> { Ok([null()?, null()?, null()?]) };
    let stdio = stdio().map_err(|reason| format!("/dev/null: {reason}"))?;
    let mut process = around
        .sandbox
        .run(Program { argv: command.to_vec(), env: around.env.clone(), cwd: Some(around.cwd.clone()), stdio })
        .await
        .map_err(|failed| failed.reason)?;
    // Dropped on timeout: the command must not pile up.
    let guard = KillOnDrop(Some(process.killer()));
    let code = process.ended().await;
    guard.disarm();
    if code == 0 { Ok(()) } else { Err(format!("{:?} ended with {code}", command.join(" "))) }
}

struct KillOnDrop(Option<crate::stage::pod::sandbox::Killer>);

impl KillOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(killer) = self.0.take() {
            tokio::spawn(async move { killer.signal(nix::sys::signal::Signal::SIGKILL as i32).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let mut counter = Counter::new(&Probe { success_threshold: 2, failure_threshold: 2, ..Probe::default() });
        assert!(!counter.count(true));
        assert!(counter.count(true) && counter.ready);
        assert!(!counter.count(false) && counter.ready);
        assert!(!counter.count(true) && counter.ready);
        assert!(!counter.count(false));
        assert!(counter.count(false) && !counter.ready);
    }

    #[test]
    fn reads_statuses() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503 No"), Some(503));
        for bad in [&b""[..], b"HTTP/1.1 2", b"SSH-2.0-OpenSSH_9", b"HTTP/2.0 200 OK"] {
            assert_eq!(status(bad), None);
        }
    }

    #[test]
    fn asks_often_until_ready() {
        let probe = Probe { period_seconds: 10, ..Probe::default() };
        assert_eq!(pause(&probe, true, 1), Duration::from_secs(10));
        assert!(pause(&probe, false, 1) < Duration::from_millis(100));
        assert!(pause(&probe, false, 1000) <= Duration::from_secs(1));
    }
}
