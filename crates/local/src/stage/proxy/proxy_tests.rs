use std::path::PathBuf;

use leno_capture::NetworkNamespace;
use tokio::sync::oneshot;

use super::draining::DRAINING;
use super::*;
use crate::stage::journal::Journal;

fn settings_of_a_proxy() -> ProxySettings {
    ProxySettings {
        program: "/bin/proxy".into(),
        node: "node-1".into(),
        namespace: NetworkNamespace::current().unwrap(),
        node_ip: "172.30.1.1".parse().unwrap(),
        control: "172.30.0.1:15012".parse().unwrap(),
        root_cert: "/run/root.pem".into(),
        token: "/run/token".into(),
        zds_socket: "/run/ztunnel.sock".into(),
        resolv_conf: "/run/resolv.conf".into(),
        log: "/run/proxy.log".into(),
        trust_domain: "cluster.local".into(),
        cluster_domain: "cluster.local".into(),
        ipv6: true,
        journal: Journal::begin(tempfile::tempdir().unwrap().path()).unwrap(),
        inherited: vec![
            ("RUST_LOG".into(), "debug".into()),
            ("XDS_ADDRESS".into(), "https://elsewhere".into()),
            ("POOL_MAX_STREAMS_PER_CONNECTION".into(), "7".into()),
        ],
    }
}

#[test]
fn the_stage_decides_where_a_proxy_belongs() {
    let env = settings_of_a_proxy().environment();
    let get = |name: &str| {
        let found: Vec<_> = env.iter().filter(|(key, _)| key == name).collect();
        assert!(found.len() <= 1, "{name} twice");
        found.first().map(|(_, value)| value.as_str())
    };
    assert_eq!(get("XDS_ADDRESS"), Some("https://172.30.0.1:15012"));
    assert_eq!(get("CA_ADDRESS"), get("XDS_ADDRESS"));
    assert_eq!(get("POD_NAME"), Some("ztunnel-node-1"));
    assert_eq!(get("RUST_LOG"), Some("debug"));
    assert_eq!(get("POOL_MAX_STREAMS_PER_CONNECTION"), Some("7"));
}

#[test]
fn only_tuning_is_inherited() {
    let is_inherited = |name: &str| !inherited([(name.to_owned(), "x".to_owned())].into_iter()).is_empty();
    for name in [
        "PATH",
        "RUST_LOG",
        "SECRET_TTL",
        "HTTP2_FRAME_SIZE",
        "LENO_CONNECT_TIMEOUT",
        "LENO_MAX_UNPROVEN_PEERS",
        "LENO_WINDOW_BUDGET",
        "LENO_UNREAD_BUDGET",
        "LENO_CONGESTION_CONTROL",
    ] {
        assert!(is_inherited(name), "{name}");
    }
    for name in [
        "XDS_ADDRESS",
        "AUTH_TOKEN",
        "READINESS_PORT",
        "AWS_SECRET_ACCESS_KEY",
        "LENO_ROLE",
        "LENO_RUN_DIR",
        "LENO_STAGE",
        "LENO_DETACHED",
        "LENO_MAX_UNPROVEN_CLIENTS",
    ] {
        assert!(!is_inherited(name), "{name}");
    }
}

#[test]
fn where_a_proxy_belongs_is_told_by_settings_that_it_has() {
    let settings = <leno_node::Config as clap::Args>::augment_args(clap::Command::new("node"));
    let known: Vec<_> = settings.get_arguments().filter_map(|setting| setting.get_env()).collect();
    // A ztunnel's, which Leno's takes from elsewhere or not at all.
    let others = ["LENO_ROLE", "PROXY_MODE", "SERVICE_ACCOUNT", "ISTIO_META_CLUSTER_ID", "TRUST_DOMAIN", "RUST_LOG"];
    let others = [&others[..], &["TERMINATION_GRACE_PERIOD_SECONDS"]].concat();
    let told = ProxySettings { inherited: Vec::new(), ..settings_of_a_proxy() };
    for (name, _) in told.environment() {
        assert!(known.iter().any(|known| **known == *name) || others.contains(&&*name), "{name}");
    }
}

#[test]
fn replacements_come_fast() {
    let mut pause = next_pause(Duration::ZERO);
    assert!(pause < Duration::from_millis(300));
    for _ in 0..20 {
        pause = next_pause(pause);
    }
    assert_eq!(pause, Duration::from_secs(2));
}

/// A proxy whose drain has no end: told to end, it gives up its port, and ends only when it is told again.
const NEVER_DRAINED: &str = r#"#!/usr/bin/python3
import signal, socket, sys
port = socket.create_server(("127.0.0.1", 15021))
told = 0
def term(*_):
    global told
    told += 1
    if told > 1: sys.exit(0)
    port.close()
signal.signal(signal.SIGTERM, term)
while True:
    try:
        asks, _ = port.accept()
        asks.recv(1000); asks.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"); asks.close()
    except OSError: signal.pause()
"#;

fn is_alive(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

const LIMIT: Duration = Duration::from_secs(60);
const PYTHON: &str = "/usr/bin/python3";

/// A supervised proxy in a network namespace of its own.
struct Supervised {
    dir: tempfile::TempDir,
    departures: watch::Sender<u64>,
    seen: watch::Receiver<ProxyState>,
    upgrades: mpsc::Sender<Upgrade>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    _namespace: leno_testkit::network::TestNamespace,
}

impl Supervised {
    /// `None` where `test` can't run; that is said.
    fn start(test: &str, program: &str) -> Option<Self> {
        if !leno_testkit::network::may_run(test) {
            return None;
        }
        if !Path::new(PYTHON).exists() {
            leno_testkit::skips::skip(test, &leno_testkit::skips::not_installed(PYTHON));
            return None;
        }
        let namespace = leno_testkit::network::TestNamespace::new();
        let dir = tempfile::tempdir().unwrap();
        let settings = ProxySettings {
            program: script(dir.path(), "proxy", program),
            namespace: namespace.handle().clone(),
            log: dir.path().join("proxy.log"),
            ..settings_of_a_proxy()
        };
        let (departures, departing) = watch::channel(0);
        let (state, seen) = watch::channel(ProxyState::default());
        let (stop, stopping) = watch::channel(false);
        let (upgrades, ordered) = mpsc::channel(1);
        let orders = Orders { departures: departing, upgrades: ordered, stop: stopping };
        let task = tokio::spawn(supervise(settings, orders, state));
        Some(Self { dir, departures, seen, upgrades, stop, task, _namespace: namespace })
    }

    /// The process that is ready and none of those. Says all the while that a proxy has left the agent.
    async fn ready(&mut self, none_of: &[i32]) -> Option<i32> {
        let next = async {
            loop {
                // The agent is left as the port is given up; on a busy machine that takes a while.
                self.departures.send_modify(|count| *count += 1);
                let is_next = |now: &ProxyState| now.ready && now.pid.is_some_and(|pid| !none_of.contains(&pid));
                if let Ok(now) = tokio::time::timeout(Duration::from_millis(200), self.seen.wait_for(is_next)).await {
                    return now.unwrap().pid.unwrap();
                }
            }
        };
        tokio::time::timeout(LIMIT, next).await.ok()
    }

    /// Exchanges the program, while the agent is told of departures.
    async fn upgrade(&mut self, program: PathBuf) -> Result<Upgraded, String> {
        let (done, mut answer) = oneshot::channel();
        self.upgrades.send(Upgrade { program, done }).await.map_err(drop).unwrap();
        let asked = async {
            loop {
                self.departures.send_modify(|count| *count += 1);
                if let Ok(answer) = tokio::time::timeout(Duration::from_millis(50), &mut answer).await {
                    return answer.unwrap();
                }
            }
        };
        tokio::time::timeout(LIMIT, asked).await.expect("an answer")
    }

    async fn end(self) {
        self.stop.send(true).unwrap();
        tokio::time::timeout(LIMIT, self.task).await.unwrap().unwrap();
    }
}

fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn however_many_proxies_drain_the_next_one_starts_at_once() {
    const TEST: &str = "however_many_proxies_drain_the_next_one_starts_at_once";
    let Some(mut proxy) = Supervised::start(TEST, NEVER_DRAINED) else { return };
    let mut draining: Vec<i32> = Vec::new();
    const ROUNDS: usize = DRAINING + 3;
    for round in 0..=ROUNDS {
        let pid = proxy.ready(&draining).await.unwrap_or_else(|| panic!("{round} drain, and none serves"));
        if round < ROUNDS {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).unwrap();
            draining.push(pid);
        }
    }
    // The oldest have made room, the others go on.
    let begun = Instant::now();
    let alive = || draining.iter().copied().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
    while alive().len() > DRAINING {
        assert!(begun.elapsed() < LIMIT, "{:?} drain of {draining:?}", alive());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(alive(), draining[draining.len() - DRAINING..]);
    proxy.end().await;
    assert_eq!(alive(), [0; 0]);
}

#[tokio::test]
async fn a_proxy_is_exchanged_while_the_old_one_drains() {
    const TEST: &str = "a_proxy_is_exchanged_while_the_old_one_drains";
    let Some(mut proxy) = Supervised::start(TEST, NEVER_DRAINED) else { return };
    let old = proxy.ready(&[]).await.unwrap();
    let next = script(proxy.dir.path(), "next", NEVER_DRAINED);
    let upgraded = proxy.upgrade(next.clone()).await.unwrap();
    assert_eq!((upgraded.from, proxy.ready(&[old]).await), (proxy.dir.path().join("proxy"), Some(upgraded.pid)));
    let state = proxy.seen.borrow().clone();
    assert_eq!((state.program, state.restarts), (next.display().to_string(), 0), "an exchange is no restart");
    assert!(is_alive(old), "what it carries has the time of the drain");
    proxy.end().await;
}

#[tokio::test]
async fn a_program_that_does_not_get_ready_is_taken_back() {
    const TEST: &str = "a_program_that_does_not_get_ready_is_taken_back";
    let Some(mut proxy) = Supervised::start(TEST, NEVER_DRAINED) else { return };
    let (mut used, old) = (vec![proxy.ready(&[]).await.unwrap()], proxy.dir.path().join("proxy"));
    for (name, text, why) in [
        ("dies", "#!/bin/sh\nexit 7\n", "exit code 7"),
        ("hangs", "#!/bin/sh\nexec sleep 1000\n", "was not ready in time"),
        ("broken", "#!/nowhere\n", "broken"),
    ] {
        let bad = script(proxy.dir.path(), name, text);
        let refused = proxy.upgrade(bad).await.unwrap_err();
        assert!(refused.contains(why) && refused.contains("serves again"), "{refused}");
        let again = proxy.ready(&used).await.unwrap();
        assert_eq!(proxy.seen.borrow().program, old.display().to_string());
        used.push(again);
    }
    proxy.end().await;
}
