//! The proxy process of a node: started, watched, and followed by the next the moment it dies or begins to drain.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use leno_capture::NetworkNamespace;
use leno_model::ports;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::stage::journal::Journal;
use crate::stage::logs;
use crate::stage::spawn::{Spawn, Spawned, spawn};

/// Between looks at a proxy that isn't ready, and at one that is.
const LOOKS: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// A proxy that dies younger than this is given a pause before the next.
const INFANT: Duration = Duration::from_secs(1);
/// What a proxy gets to end by itself when the stage goes. Its pods are gone by then, so that whatever connections it still
/// drains serve nobody: those of Leno and ztunnel take their 25 seconds for it, and a person waits.
const GRACE: Duration = Duration::from_millis(500);

/// How long one that has left the agent may take to give up its own ports before it is taken for one that comes back, and how
/// often that is looked at.
const GIVING_WAY: Duration = Duration::from_secs(1);
const GIVING_WAY_LOOKS: Duration = Duration::from_millis(5);
/// Time until the end of a proxy that has given way is noticed.
const LAST_BREATH: Duration = Duration::from_millis(20);
/// Most that may drain beside the one that serves. When another begins to, the drain of the oldest is cut short: what is
/// new must not wait for what is old, however often a proxy is restarted.
const DRAINING: usize = 4;

/// A proxy as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyState {
    /// Program.
    pub program: String,
    /// Process id on the machine; `None` while it doesn't run.
    pub pid: Option<i32>,
    /// Whether it answers that it is ready.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it doesn't run.
    pub message: String,
}

/// The settings of a proxy. They are passed in ztunnel's environment variables, so that any ambient node proxy can be
/// started.
#[derive(Debug, Clone)]
pub(crate) struct ProxySettings {
    pub program: PathBuf,
    pub node: String,
    pub namespace: NetworkNamespace,
    pub node_ip: std::net::IpAddr,
    /// `host:port` of discovery and certificates.
    pub control: SocketAddr,
    pub root_cert: PathBuf,
    pub token: PathBuf,
    pub zds_socket: PathBuf,
    pub resolv_conf: PathBuf,
    pub log: PathBuf,
    pub trust_domain: String,
    pub cluster_domain: String,
    pub ipv6: bool,
    /// Variables of the supervisor that are handed on as they are.
    pub inherited: Vec<(String, String)>,
    pub journal: Journal,
}

impl ProxySettings {
    /// The arguments. Other programs have none; Leno's own get what the environment says as well, so that the system's `ps`
    /// shows which node's proxy it is.
    fn arguments(&self) -> Vec<OsString> {
        let own = std::env::current_exe().is_ok_and(|own| own == self.program);
        if own { ["node", "--node", &self.node].map(OsString::from).into() } else { Vec::new() }
    }

    /// The environment.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        let control = format!("https://{}", self.control);
        let mut all: Vec<(String, String)> = [
            ("LENO_ROLE", "node".to_owned()),
            ("PROXY_MODE", "shared".to_owned()),
            ("NODE_NAME", self.node.clone()),
            ("POD_NAME", format!("ztunnel-{}", self.node)),
            ("POD_NAMESPACE", "istio-system".to_owned()),
            ("SERVICE_ACCOUNT", "ztunnel".to_owned()),
            ("INSTANCE_IP", self.node_ip.to_string()),
            ("CLUSTER_ID", "Kubernetes".to_owned()),
            ("ISTIO_META_CLUSTER_ID", "Kubernetes".to_owned()),
            ("ISTIO_META_DNS_CAPTURE", "true".to_owned()),
            ("XDS_ADDRESS", control.clone()),
            ("CA_ADDRESS", control),
            ("XDS_ROOT_CA", path(&self.root_cert)),
            ("CA_ROOT_CA", path(&self.root_cert)),
            ("AUTH_TOKEN", path(&self.token)),
            ("INPOD_UDS", path(&self.zds_socket)),
            ("TRUST_DOMAIN", self.trust_domain.clone()),
            ("CLUSTER_DOMAIN", self.cluster_domain.clone()),
            ("IPV6_ENABLED", self.ipv6.to_string()),
            ("TERMINATION_GRACE_PERIOD_SECONDS", "30".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for (name, value) in &self.inherited {
            match all.iter_mut().find(|(known, _)| known == name) {
                // The operator's log level wins; settings that tie the proxy to this stage don't give way.
                Some(known) if name == "RUST_LOG" => known.1.clone_from(value),
                Some(_) => {}
                None => all.push((name.clone(), value.clone())),
            }
        }
        all
    }
}

/// Variables of the supervisor that a proxy inherits: what tunes Leno's, what tunes a ztunnel and Leno's does not have, and
/// what every process needs.
pub(crate) fn inherited(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    const PROCESS: [&str; 5] = ["PATH", "HOME", "RUST_LOG", "RUST_BACKTRACE", "TZ"];
    const ZTUNNEL: [&str; 5] = [
        "LOCALHOST_APP_TUNNEL",
        "TLS12_ENABLED",
        "COMPLIANCE_POLICY",
        "AUTHZ_POLICY_INFO_LOGGING",
        "TERMINATION_GRACE_PERIOD_SECONDS",
    ];
    const ZTUNNEL_PREFIXES: [&str; 3] = ["POOL_", "HTTP2_", "KEEPALIVE_"];
    let ours = leno_proxy::config::tuning::<leno_node::Config>();
    let is_inherited = |name: &str| {
        PROCESS.contains(&name)
            || ZTUNNEL.contains(&name)
            || ZTUNNEL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || ours.iter().any(|known| known == name)
    };
    variables.filter(|(name, _)| is_inherited(name)).collect()
}

/// Keeps a proxy running until told to stop. `departures` is how often a proxy has left the node's agent.
///
/// Runs a node's proxy. When one begins to drain, the next is started at once. It is told of the pods and listens in
/// them as well, and only then does the first stop accepting.
pub(crate) async fn supervise(
    settings: ProxySettings,
    mut departures: watch::Receiver<u64>,
    state: watch::Sender<ProxyState>,
    mut stop: watch::Receiver<bool>,
) {
    let mut pause = Duration::ZERO;
    let mut draining = Draining::default();
    state.send_modify(|state| state.program = settings.program.display().to_string());
    while !*stop.borrow_and_update() {
        let born = Instant::now();
        departures.mark_unchanged();
        let message = match start(&settings).await {
            Ok(proxy) => {
                let program = settings.program.display();
                settings
                    .journal
                    .note(format_args!("node {}: proxy started (pid {}, {program})", settings.node, proxy.pid));
                state.send_modify(|state| {
                    state.pid = Some(proxy.pid);
                    state.message.clear();
                });
                let end = attend(proxy, &settings, &mut departures, &state, &mut stop).await;
                match end {
                    End::Exited(code) => {
                        format!("the proxy ended with {}; its log is {}", told(code), settings.log.display())
                    }
                    End::Draining(proxy) => {
                        let text = format!("the proxy (pid {}) drains, and the next one takes over", proxy.pid);
                        draining.add(proxy, &settings, &stop);
                        text
                    }
                    End::Stopped => break,
                }
            }
            Err(reason) => reason,
        };
        pause = if born.elapsed() >= INFANT { Duration::ZERO } else { next_pause(pause) };
        tracing::warn!(node = settings.node, "{message}");
        settings.journal.note(format_args!("node {}: {message}", settings.node));
        state.send_modify(|state| {
            state.pid = None;
            state.ready = false;
            state.restarts += 1;
            state.message = message;
        });
        let _ = tokio::time::timeout(pause, stop.wait_for(|stop| *stop)).await;
    }
    while draining.tasks.join_next().await.is_some() {}
}

/// The proxies that drain.
#[derive(Default)]
struct Draining {
    tasks: JoinSet<()>,
    /// Of each, the oldest first: its process, and what ends it.
    oldest_first: VecDeque<(i32, oneshot::Sender<()>)>,
}

impl Draining {
    fn add(&mut self, proxy: Spawned, settings: &ProxySettings, stop: &watch::Receiver<bool>) {
        let node = settings.node.as_str();
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|(_, cut)| !cut.is_closed());
        while self.oldest_first.len() >= DRAINING
            && let Some((pid, cut)) = self.oldest_first.pop_front()
        {
            tracing::warn!(
                node,
                pid,
                "{DRAINING} proxies drain already and another begins to; the oldest is ended, and the connections that it \
                 still has are cut. A proxy that is restarted less often keeps them until its drain ends"
            );
            settings.journal.note(format_args!(
                "node {node}: the proxy that drains (pid {pid}) is ended: {DRAINING} drain already"
            ));
            // One that has ended meanwhile needs no telling.
            let _ = cut.send(());
        }
        let (cut, is_cut) = oneshot::channel();
        self.oldest_first.push_back((proxy.pid, cut));
        self.tasks.spawn(see_off(proxy, settings.clone(), stop.clone(), is_cut));
    }
}

/// Waits for the end of a proxy that drains, or ends it with the stage or when it is told to.
async fn see_off(
    mut proxy: Spawned,
    settings: ProxySettings,
    mut stop: watch::Receiver<bool>,
    cut: oneshot::Receiver<()>,
) {
    let pid = proxy.pid;
    let code = tokio::select! {
        code = &mut proxy.ended => Some(code.unwrap_or(1)),
        _ = stop.wait_for(|stop| *stop) => None,
        Ok(()) = cut => None,
    };
    match code {
        Some(code) => {
            let node = &settings.node;
            settings
                .journal
                .note(format_args!("node {node}: the proxy that drained (pid {pid}) ended with {}", told(code)));
        }
        None => end(proxy).await,
    }
}

/// Ends a proxy, with the connections that it has.
async fn end(mut proxy: Spawned) {
    proxy.handle.signal(Signal::SIGTERM);
    if tokio::time::timeout(GRACE, &mut proxy.ended).await.is_err() {
        proxy.handle.signal(Signal::SIGKILL);
        let _ = proxy.ended.await;
    }
}

/// How a proxy that served went.
enum End {
    Exited(i32),
    /// It lives on with the connections that it has.
    Draining(Spawned),
    /// The stage goes.
    Stopped,
}

/// The first replacement comes at once, however young the dead one was.
fn next_pause(last: Duration) -> Duration {
    if last.is_zero() { Duration::from_millis(50) } else { (last * 2).min(Duration::from_secs(2)) }
}

fn told(code: i32) -> String {
    if code > 128 { format!("signal {}", code - 128) } else { format!("exit code {code}") }
}

async fn start(settings: &ProxySettings) -> Result<Spawned, String> {
    let output = logs::capture(&settings.log).map_err(|reason| format!("cannot open the proxy's log: {reason}"))?;
    let errors = output.try_clone().map_err(|reason| reason.to_string())?;
    let netns = settings.namespace.try_clone_fd().map_err(|reason| reason.to_string())?;
    spawn(Spawn {
        label: format!("the proxy of {} ({})", settings.node, settings.program.display()),
        program: settings.program.clone(),
        args: settings.arguments(),
        env: settings.environment(),
        cwd: settings.log.parent().map(Path::to_owned),
        netns,
        binds: vec![(settings.resolv_conf.display().to_string(), "/etc/resolv.conf".to_owned())],
        isolated: None,
        stdin: Stdio::null(),
        stdout: output.into(),
        stderr: errors.into(),
    })
    .await
    .map_err(|reason| reason.to_string())
}

/// Watches a running proxy until another is to serve in its place, or the stage goes.
async fn attend(
    mut proxy: Spawned,
    settings: &ProxySettings,
    departures: &mut watch::Receiver<u64>,
    state: &watch::Sender<ProxyState>,
    stop: &mut watch::Receiver<bool>,
) -> End {
    let looking = async {
        loop {
            let ready = is_ready(&settings.namespace).await;
            let changed = state.send_if_modified(|state| {
                let changed = state.ready != ready;
                state.ready = ready;
                changed
            });
            if changed {
                let how = if ready { "ready" } else { "not ready" };
                settings.journal.note(format_args!("node {}: proxy {how}", settings.node));
            }
            tokio::time::sleep(if ready { LOOKS.1 } else { LOOKS.0 }).await;
        }
    };
    let mut served = state.subscribe();
    let giving_way = async {
        // Before it answers, its port is refused as that of one that drains is, and what is heard of a departure may be its
        // predecessor's, which was killed. One that ends before it was ready is seen to end.
        if served.wait_for(|state| state.ready).await.is_err() {
            std::future::pending::<()>().await;
        }
        loop {
            if departures.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if gives_way(&settings.namespace).await {
                return;
            }
        }
    };
    let gives_way = tokio::select! {
        code = &mut proxy.ended => return End::Exited(code.unwrap_or(1)),
        () = giving_way => true,
        () = looking => false,
        _ = stop.wait_for(|stop| *stop) => false,
    };
    if gives_way {
        return match tokio::time::timeout(LAST_BREATH, &mut proxy.ended).await {
            Ok(code) => End::Exited(code.unwrap_or(1)),
            Err(_) => End::Draining(proxy),
        };
    }
    end(proxy).await;
    state.send_modify(|state| {
        state.pid = None;
        state.ready = false;
    });
    End::Stopped
}

/// Whether a proxy that has left the agent has also given up its port: then it drains, or is dead. Both Leno's and ztunnel do
/// so before anything else. One that only lost its connection keeps the port, and the next could not open it.
async fn gives_way(namespace: &NetworkNamespace) -> bool {
    let end = Instant::now() + GIVING_WAY;
    while Instant::now() < end {
        let refused = async {
            let socket = namespace.run(TcpSocket::new_v4).ok()?.ok()?;
            socket.connect(SocketAddr::from(([127, 0, 0, 1], ports::READINESS))).await.err()
        };
        if refused.await.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        tokio::time::sleep(GIVING_WAY_LOOKS).await;
    }
    false
}

/// Asks the proxy in its node's namespace.
async fn is_ready(namespace: &NetworkNamespace) -> bool {
    let ask = async {
        let socket = namespace.run(TcpSocket::new_v4).map_err(io::Error::other)??;
        let mut stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], ports::READINESS))).await?;
        stream.write_all(b"GET /healthz/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        io::Result::Ok(head.ends_with(b" 200"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), ask).await, Ok(Ok(true)))
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
