use std::collections::HashSet;

use leno_testkit::skips::{NEEDS_ROOT, skip};
use tokio::sync::watch;

use super::*;
use crate::nft;
use crate::test_support::may_run;
use crate::zds::{Client, PodHandler};

fn tables(namespace: &NetworkNamespace) -> Vec<String> {
    nft::list_tables(namespace).unwrap().into_iter().map(|info| info.table.name).collect()
}

/// Whether new connections wait, seen from the kernel's side.
async fn becomes(namespace: &NetworkNamespace, held: bool) {
    while tables(namespace).iter().any(|name| name == "leno-hold") != held {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn connections_wait_for_a_proxy_only_while_one_may_come() {
    if !nix::unistd::geteuid().is_root() {
        return skip("connections_wait_for_a_proxy_only_while_one_may_come", NEEDS_ROOT);
    }
    let namespace = NetworkNamespace::create().unwrap();
    pod_hold::install(&namespace).unwrap();
    let (count, proxies) = watch::channel(1);
    let mut tasks = JoinSet::new();
    let work = Work { gate: Gate::default(), turn: Arc::default() };
    tasks.spawn(hold(proxies, namespace.clone(), work));
    let begun = tokio::time::Instant::now();
    // Away for a moment, and again.
    for _ in 0..2 {
        count.send_replace(0);
        tokio::time::sleep(HOLD / 2).await;
        count.send_replace(1);
        tokio::time::sleep(HOLD / 2).await;
    }
    becomes(&namespace, true).await;
    assert_eq!(begun.elapsed(), HOLD * 2, "nothing was changed meanwhile");
    count.send_replace(0);
    becomes(&namespace, false).await;
    assert!(begun.elapsed() >= HOLD * 3);
    count.send_replace(1);
    becomes(&namespace, true).await;
}

/// A proxy that takes every pod.
struct Willing;

impl PodHandler for Willing {
    async fn add(&self, _pod: PodInfo, _namespace: NetworkNamespace) -> Result<(), String> {
        Ok(())
    }
    async fn remove(&self, _uid: &str) {}
    async fn retain(&self, _uids: HashSet<String>) {}
}

fn enrollment(agent: &Agent) -> Enrollment {
    let info =
        PodInfo { uid: "u-1".into(), name: "web".into(), namespace: "shop".into(), service_account: "web".into() };
    Enrollment::new(NetworkNamespace::create().unwrap(), info, PodRules::default(), agent.clone(), Gate::default())
}

#[tokio::test]
async fn a_pod_is_captured_announced_acknowledged_and_released() {
    if !may_run("a_pod_is_captured_announced_acknowledged_and_released") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::bind(dir.path().join("agent.sock")).unwrap();
    let mut pod = enrollment(&agent);
    let namespace = pod.namespace.clone();
    assert_eq!(pod.state(), State::Released);

    // Without a proxy a pod that does not run yet is shut, one that runs is left alone.
    assert!(matches!(pod.announce_and_capture().await, Err(Error::Proxy(zds::Error::NoProxy { .. }))));
    assert_eq!((pod.state(), tables(&namespace)), (State::Released, Vec::new()));
    let refused = pod.capture_and_announce().await.unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
    assert_eq!(pod.state(), State::Captured);
    becomes(&namespace, true).await;

    let client = Client::new(dir.path().join("agent.sock"));
    let proxy = tokio::spawn(async move { client.run(&Willing).await });
    pod.proxy_changed().await;
    assert_eq!(pod.capture_and_announce().await.unwrap(), State::Enrolled);
    assert_eq!(pod.release().await.unwrap(), State::Announced);
    becomes(&namespace, false).await;
    assert_eq!(pod.announce_and_capture().await.unwrap(), State::Enrolled, "it came back before it was withdrawn");
    pod.release().await.unwrap();
    pod.withdraw().await;
    assert_eq!(pod.state(), State::Released);
    proxy.abort();
}

#[tokio::test]
async fn rules_that_somebody_removed_are_put_back() {
    if !may_run("rules_that_somebody_removed_are_put_back") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::bind(dir.path().join("agent.sock")).unwrap();
    let mut pod = enrollment(&agent);
    let namespace = pod.namespace.clone();
    assert_eq!(pod.repair_rules().await.unwrap(), [], "a pod outside the mesh has no rules to repair");
    assert_eq!(tables(&namespace), Vec::<String>::new());

    let client = Client::new(dir.path().join("agent.sock"));
    let proxy = tokio::spawn(async move { client.run(&Willing).await });
    pod.proxy_changed().await;
    assert_eq!(pod.announce_and_capture().await.unwrap(), State::Enrolled);
    assert_eq!(pod.repair_rules().await.unwrap(), []);
    pod_hold::remove(&namespace).unwrap();
    assert_eq!(pod.repair_rules().await.unwrap().len(), 1);
    assert!(pod_hold::is_installed(&namespace).unwrap());
    assert_eq!(pod.repair_rules().await.unwrap(), []);

    // No proxy came back in time, so connections are refused. A repair must not make them wait forever.
    proxy.abort();
    agent.proxies().wait_for(|count| *count == 0).await.unwrap();
    pod_hold::remove(&namespace).unwrap();
    pod_rules::remove_redirect(&namespace).unwrap();
    assert!(!pod_rules::redirects(&namespace).unwrap());
    assert_ne!(pod.repair_rules().await.unwrap(), []);
    assert!(pod_rules::redirects(&namespace).unwrap());
    assert!(!pod_hold::is_installed(&namespace).unwrap());
}

/// A proxy that writes down what it is told.
struct Writing(tokio::sync::mpsc::UnboundedSender<&'static str>);

impl PodHandler for Writing {
    async fn add(&self, _pod: PodInfo, _namespace: NetworkNamespace) -> Result<(), String> {
        self.0.send("add").map_err(|e| e.to_string())
    }
    async fn remove(&self, _uid: &str) {
        self.0.send("remove").unwrap();
    }
    async fn retain(&self, _uids: HashSet<String>) {}
}

#[tokio::test]
async fn a_pod_whose_listeners_are_gone_is_announced_again() {
    if !may_run("a_pod_whose_listeners_are_gone_is_announced_again") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::bind(dir.path().join("agent.sock")).unwrap();
    let mut pod = enrollment(&agent);
    let namespace = pod.namespace.clone();
    assert!(!pod.lacks_listeners().await.unwrap(), "nobody has said that it listens");

    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let client = Client::new(dir.path().join("agent.sock"));
    let proxy = tokio::spawn(async move { client.run(&Writing(told)).await });
    pod.proxy_changed().await;
    assert_eq!(pod.capture_and_announce().await.unwrap(), State::Enrolled);
    assert_eq!(heard.recv().await, Some("add"));
    let ports = [pod_rules::OUTBOUND_PORT, pod_rules::INBOUND_PORT, pod_rules::TUNNEL_PORT];
    let listen = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).unwrap();
    let mut listeners: Vec<_> = namespace.run(|| ports.iter().map(listen).collect()).unwrap();
    assert!(!pod.lacks_listeners().await.unwrap());
    listeners.pop();
    assert!(pod.lacks_listeners().await.unwrap());

    assert_eq!(pod.announce_again().await.unwrap(), State::Enrolled);
    assert_eq!((heard.recv().await, heard.recv().await), (Some("remove"), Some("add")));
    // Without a proxy, there is none to open listeners.
    proxy.abort();
    agent.proxies().wait_for(|count| *count == 0).await.unwrap();
    assert!(!pod.lacks_listeners().await.unwrap());
}

#[tokio::test]
async fn a_capture_that_was_given_up_leaves_nothing_once_it_is_abandoned() {
    if !may_run("a_capture_that_was_given_up_leaves_nothing_once_it_is_abandoned") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agent = Agent::bind(dir.path().join("agent.sock")).unwrap();
    let mut pod = enrollment(&agent);
    // Begun, and dropped before its work can have ended.
    let begun = begin(pod.capture_and_announce()).await;
    assert!(begun.is_none());
    assert_eq!(pod.state(), State::Captured);
    pod.abandon().await;
    assert_eq!(pod.state(), State::Released);
    assert_eq!(tables(&pod.namespace), Vec::<String>::new());
}

/// Polls a future until it waits for others, and drops it.
async fn begin<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    tokio::select! {
        biased;
        done = &mut future => Some(done),
        () = tokio::task::yield_now() => None,
    }
}
