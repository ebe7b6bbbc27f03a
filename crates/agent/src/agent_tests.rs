use std::collections::HashSet;
use std::os::unix::fs::symlink;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leno_capture::links;
use leno_capture::zds::{Client, PodHandler};
use leno_objects::{Kind, Labels, Mode, Object, Pod, decode};
use leno_testkit::network::may_run;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::PodName;
use crate::plugin::{self, Environment};

/// Nothing here takes this long, unless it never happens.
const LONG: Duration = Duration::from_secs(60);

/// Waits for something that others do.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LONG, wait).await.is_ok(), "{what} never happened");
}

/// An API server: what it has, and what it was told.
#[derive(Default)]
struct Api {
    pods: Mutex<HashMap<String, Value>>,
    told: Mutex<Vec<(String, bool)>>,
    farewell: Mutex<Option<Farewell>>,
}

impl Cluster for Api {
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Pod>, String>> {
        let pod = self.pods.lock().get(&format!("{namespace}/{name}")).map(|value| match object(Kind::Pod, value) {
            Object::Pod(pod) => pod,
            other => panic!("{other:?}"),
        });
        async move { Ok(pod) }.boxed()
    }

    fn namespace<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<Option<Labels>, String>> {
        async { Ok(None) }.boxed()
    }

    fn tell<'a>(&'a self, pod: &'a PodName, captured: bool) -> BoxFuture<'a, Result<(), String>> {
        self.told.lock().push((pod.uid.clone(), captured));
        async { Ok(()) }.boxed()
    }

    fn farewell(&self) -> BoxFuture<'_, Farewell> {
        let farewell = self.farewell.lock().unwrap_or(Farewell::Restart);
        async move { farewell }.boxed()
    }
}

/// A proxy that listens in the pods that it takes.
#[derive(Clone, Default)]
struct Proxy(Arc<Mutex<HashMap<String, Vec<TcpListener>>>>);

impl PodHandler for Proxy {
    async fn add(&self, pod: PodInfo, namespace: NetworkNamespace) -> Result<(), String> {
        let ports = [pod_rules::OUTBOUND_PORT, pod_rules::INBOUND_PORT, pod_rules::TUNNEL_PORT];
        let listen = |port| {
            let bound = namespace.run(|| std::net::TcpListener::bind(("0.0.0.0", port))).unwrap().unwrap();
            bound.set_nonblocking(true).unwrap();
            TcpListener::from_std(bound).unwrap()
        };
        self.0.lock().entry(pod.uid).or_insert_with(|| ports.map(listen).into());
        Ok(())
    }

    async fn remove(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    async fn retain(&self, uids: HashSet<String>) {
        self.0.lock().retain(|uid, _| uids.contains(uid));
    }
}

impl Proxy {
    fn serves(&self, uid: &str) -> bool {
        self.0.lock().contains_key(uid)
    }
}

/// A node of a cluster: its directories, processes and network.
struct Node {
    dir: TempDir,
    api: Arc<Api>,
    proxy: Proxy,
    proxy_task: Option<JoinHandle<()>>,
    network: NetworkNamespace,
    namespaces: Vec<String>,
}

/// An agent that runs.
struct Running {
    news: mpsc::UnboundedSender<News>,
    readiness: Readiness,
    started: ReadyTask,
    socket: PathBuf,
    shutdown: oneshot::Sender<()>,
    task: JoinHandle<Result<Ended, Error>>,
}

fn uid(name: &str) -> String {
    format!("00000000-0000-4000-8000-{:0>12}", name.bytes().map(|byte| format!("{byte:x}")).collect::<String>())
}

fn object(kind: Kind, value: &Value) -> Object {
    decode(kind, Mode::Lenient, value).unwrap().object
}

fn pod(name: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": uid(name)},
        "spec": {"containers": [], "nodeName": "n-1", "serviceAccountName": "web"},
        "status": {"phase": "Running", "podIP": address},
    })
}

fn shop(mode: &str) -> Arc<Object> {
    let value = json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": mode}}});
    Arc::new(object(Kind::Namespace, &value))
}

fn redirects(namespace: &NetworkNamespace) -> bool {
    pod_rules::redirects(namespace).unwrap()
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["net.d", "bin", "proc/1", "netns"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        symlink("/", dir.path().join("proc/1/root")).unwrap();
        fs::write(dir.path().join("bin/bridge"), "").unwrap();
        fs::write(dir.path().join("leno"), "the program").unwrap();
        let configuration = "{\"cniVersion\": \"1.0.0\", \"name\": \"net\", \"plugins\": [{\"type\": \"bridge\"}]}";
        fs::write(dir.path().join("net.d/10-net.conflist"), configuration).unwrap();
        Self {
            dir,
            api: Arc::default(),
            proxy: Proxy::default(),
            proxy_task: None,
            network: NetworkNamespace::create().unwrap(),
            namespaces: Vec::new(),
        }
    }

    /// One with the network of the pod `web`; `None` where `test` can't run.
    fn with_web(test: &str) -> Option<(Self, NetworkNamespace)> {
        if !may_run(test) {
            return None;
        }
        let mut node = Self::new();
        let web = node.sandbox("web", "10.9.0.4");
        Some((node, web))
    }

    /// As [`Self::with_web`]. The pod runs, and so does a proxy.
    fn with_running_web(test: &str) -> Option<(Self, NetworkNamespace)> {
        let (mut node, web) = Self::with_web(test)?;
        node.process(100, "web");
        node.start_proxy();
        Some((node, web))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The network of a pod's sandbox.
    fn sandbox(&mut self, name: &str, address: &str) -> NetworkNamespace {
        let namespace = NetworkNamespace::create_named(&self.path("netns"), name).unwrap();
        self.namespaces.push(name.to_owned());
        links::add_address(&namespace, "lo", address.parse().unwrap(), 32).unwrap();
        namespace
    }

    /// A process of a pod.
    fn process(&self, pid: u32, pod: &str) {
        self.process_of(pid, pod, &uid(pod));
    }

    /// As [`Self::process`]; the node knows the pod by this uid.
    fn process_of(&self, pid: u32, pod: &str, uid: &str) {
        let dir = self.path(&format!("proc/{pid}"));
        fs::create_dir_all(dir.join("ns")).unwrap();
        fs::write(dir.join("cgroup"), format!("0::/kubepods/pod{uid}/c\n")).unwrap();
        fs::write(dir.join("stat"), format!("{pid} (a) S {}{pid} 0\n", "0 ".repeat(18))).unwrap();
        symlink(self.path("netns").join(pod), dir.join("ns/net")).unwrap();
    }

    fn start_proxy(&mut self) {
        let (client, proxy) = (Client::new(self.path("ztunnel.sock")), self.proxy.clone());
        self.proxy_task = Some(tokio::spawn(async move {
            client.retry_every(Duration::from_millis(10)).run(&proxy).await;
        }));
    }

    fn config(&self) -> Config {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            config: Config,
        }
        let path = |name: &str| self.path(name).display().to_string();
        let line = [
            ("--node", "n-1".to_owned()),
            ("--cni-net-dir", path("net.d")),
            ("--cni-bin-dir", path("bin")),
            ("--cni-socket", path("cni.sock")),
            ("--state-dir", path("state")),
            ("--zds-socket", path("ztunnel.sock")),
            ("--proc-dir", path("proc")),
        ];
        let words = line.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        Line::parse_from(std::iter::once("agent".to_owned()).chain(words)).config
    }

    fn start(&self) -> Running {
        let (news, receiver) = mpsc::unbounded_channel();
        let readiness = Readiness::default();
        // As the feed of the news does.
        let started = readiness.task("start");
        let parts = Parts {
            cluster: self.api.clone(),
            news: receiver,
            readiness: readiness.clone(),
            page: Page::new("agent", "test"),
            program: self.path("leno"),
            node: self.network.clone(),
        };
        let (shutdown, told) = oneshot::channel();
        let task = tokio::spawn(run(self.config(), parts, async {
            let _ = told.await;
        }));
        Running { news, readiness, started, socket: self.path("cni.sock"), shutdown, task }
    }

    /// As a container runtime runs the plugin.
    async fn cni(&self, command: &'static str, pod: &str) -> Result<String, String> {
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID={}", uid(pod));
        let netns = self.path("netns").join(pod).display().to_string();
        let environment = Environment::new(command, format!("sandbox-of-{pod}"), netns, args).unwrap();
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin::NAME, "socket": self.path("cni.sock"),
            "stateFile": self.path("state/cni-state.json"), "prevResult": {"ips": [{"address": "10.9.0.4/24"}]},
        });
        let run = move || plugin::run(&environment, config.to_string().as_bytes());
        let outcome = tokio::task::spawn_blocking(run).await.unwrap();
        outcome.map_err(|failure| serde_json::to_string(&failure).unwrap())
    }

    fn told(&self, name: &str) -> Option<bool> {
        self.api.told.lock().iter().rev().find(|(told, _)| *told == uid(name)).map(|(_, captured)| *captured)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(task) = &self.proxy_task {
            task.abort();
        }
        for name in &self.namespaces {
            let _ = NetworkNamespace::delete_named(&self.path("netns"), name);
        }
    }
}

impl Running {
    fn hear(&self, mode: &str, pods: &[Value]) {
        let pods = pods.iter().map(|value| Arc::new(object(Kind::Pod, value))).collect();
        self.news.send(News::All(Kind::Namespace, vec![shop(mode)])).unwrap();
        self.news.send(News::All(Kind::Pod, pods)).unwrap();
    }

    fn hear_of(&self, value: &Value) {
        self.news.send(News::Changed(vec![leno_objects::Change::upsert(object(Kind::Pod, value))])).unwrap();
    }

    async fn ready(&mut self) {
        eventually("its socket", || std::os::unix::net::UnixStream::connect(&self.socket).is_ok()).await;
        self.started.ready();
        eventually("readiness", || self.readiness.is_ready()).await;
    }

    async fn end(self) -> Ended {
        self.shutdown.send(()).unwrap();
        timeout(LONG, self.task).await.unwrap().unwrap().unwrap()
    }
}

#[tokio::test]
async fn a_pod_is_captured_before_it_starts_and_let_go_when_it_ends() {
    let Some((mut node, web)) = Node::with_web("a_pod_is_captured_before_it_starts_and_let_go_when_it_ends") else {
        return;
    };
    let mut agent = node.start();
    agent.hear("ambient", &[]);
    agent.ready().await;
    assert!(node.read("net.d/10-net.conflist").contains(plugin::NAME), "the plugin is in place");
    assert!(node.read("state/cni-state.json").contains("shop"));

    // The watch is late: the API server knows the pod, and is asked.
    let mut value = pod("web", "10.9.0.4");
    value["status"] = json!({"phase": "Pending"});
    node.api.pods.lock().insert("shop/web".to_owned(), value.clone());
    let refused = node.cni("ADD", "web").await.unwrap_err();
    assert!(refused.contains("no node proxy") && refused.contains("\"code\":11"), "{refused}");
    assert!(redirects(&web), "it may not run, and could not send anything in the clear");
    node.cni("DEL", "web").await.unwrap();

    node.start_proxy();
    node.cni("ADD", "web").await.unwrap();
    assert!(redirects(&web) && node.proxy.serves(&uid("web")));
    agent.hear_of(&value);
    eventually("the annotation", || node.told("web") == Some(true)).await;
    node.cni("CHECK", "web").await.unwrap();
    eventually("its name on disk", || node.read("state/pods.json").contains(&uid("web"))).await;

    node.cni("DEL", "web").await.unwrap();
    assert!(!node.proxy.serves(&uid("web")));
    eventually("its end on disk", || !node.read("state/pods.json").contains(&uid("web"))).await;
    assert_eq!(agent.end().await, Ended::Left);
}

#[tokio::test]
async fn pods_outside_the_mesh_start_untouched() {
    let Some((mut node, web)) = Node::with_web("pods_outside_the_mesh_start_untouched") else { return };
    let mut agent = node.start();
    agent.hear("none", &[pod("web", "10.9.0.4")]);
    agent.ready().await;
    node.cni("ADD", "web").await.unwrap();
    // One that the API server does not know, too.
    node.sandbox("ghost", "10.9.0.5");
    node.cni("ADD", "ghost").await.unwrap();
    assert!(!redirects(&web) && node.told("web").is_none());
    agent.end().await;
    node.cni("ADD", "web").await.unwrap();
}

#[tokio::test]
async fn a_check_of_a_pod_that_has_ended_is_answered_at_once() {
    let Some((node, _web)) = Node::with_web("a_check_of_a_pod_that_has_ended_is_answered_at_once") else { return };
    let mut agent = node.start();
    let mut value = pod("web", "10.9.0.4");
    value["status"]["phase"] = json!("Succeeded");
    agent.hear("ambient", &[value]);
    agent.ready().await;
    let refused = node.cni("CHECK", "web").await.unwrap_err();
    assert!(refused.contains("it is ending"), "{refused}");
    agent.end().await;
}

#[tokio::test]
async fn a_running_pod_joins_and_leaves_with_its_namespace() {
    let Some((node, web)) = Node::with_running_web("a_running_pod_joins_and_leaves_with_its_namespace") else { return };
    let mut agent = node.start();
    agent.hear("none", &[pod("web", "10.9.0.4")]);
    agent.ready().await;
    assert!(!redirects(&web));
    agent.news.send(News::Changed(vec![leno_objects::Change::Upsert(shop("ambient"))])).unwrap();
    eventually("the annotation", || node.told("web") == Some(true)).await;
    assert!(redirects(&web) && node.proxy.serves(&uid("web")));
    agent.news.send(News::Changed(vec![leno_objects::Change::Upsert(shop("none"))])).unwrap();
    eventually("the proxy lets go", || !node.proxy.serves(&uid("web"))).await;
    assert!(!redirects(&web) && node.told("web") == Some(false));
    agent.end().await;
}

#[tokio::test]
async fn what_others_change_is_put_right() {
    let Some((node, web)) = Node::with_running_web("what_others_change_is_put_right") else { return };
    let agent = node.start();
    agent.hear("ambient", &[pod("web", "10.9.0.4")]);
    eventually("the annotation", || node.told("web") == Some(true)).await;
    pod_rules::remove_redirect(&web).unwrap();
    eventually("the rules are back", || redirects(&web)).await;
    node.proxy.0.lock().remove(&uid("web"));
    eventually("the listeners are back", || node.proxy.serves(&uid("web"))).await;
    agent.end().await;
}

/// The API server is away while the agent is replaced, and a new proxy comes.
#[tokio::test]
async fn pods_stay_captured_from_agent_to_agent() {
    let Some((mut node, web)) = Node::with_running_web("pods_stay_captured_from_agent_to_agent") else { return };
    let agent = node.start();
    agent.hear("ambient", &[pod("web", "10.9.0.4")]);
    eventually("its name on disk", || node.read("state/pods.json").contains(&uid("web"))).await;
    // Killed: what it would do at its end is not done.
    agent.task.abort();
    let _ = agent.task.await;
    assert!(redirects(&web) && node.proxy.serves(&uid("web")));
    let refused = node.cni("ADD", "late").await.unwrap_err();
    assert!(refused.contains("must wait for the node agent"), "{refused}");

    let fresh = Proxy::default();
    node.proxy_task.take().unwrap().abort();
    node.proxy = fresh;
    node.start_proxy();
    let mut agent = node.start();
    eventually("the new proxy serves it", || node.proxy.serves(&uid("web"))).await;
    assert!(redirects(&web));
    // Then the API server is back.
    let mut value = pod("web", "10.9.0.4");
    value["metadata"]["annotations"] = json!({"ambient.istio.io/redirection": "enabled"});
    agent.hear("ambient", &[value]);
    agent.ready().await;
    assert!(redirects(&web) && node.proxy.serves(&uid("web")));
    agent.end().await;
}

/// The kubelet starts it from a file, under a uid of its own.
#[tokio::test]
async fn a_pod_from_a_file_is_found_again_by_the_next_agent() {
    let Some((mut node, web)) = Node::with_web("a_pod_from_a_file_is_found_again_by_the_next_agent") else { return };
    let of_the_file = "0123456789abcdef0123456789abcdef";
    node.process_of(100, "web", of_the_file);
    node.start_proxy();
    let mut value = pod("web", "10.9.0.4");
    value["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": of_the_file});
    let agent = node.start();
    agent.hear("ambient", &[value.clone()]);
    eventually("its name on disk", || node.read("state/pods.json").contains(of_the_file)).await;
    agent.task.abort();
    let _ = agent.task.await;

    // A new proxy knows nobody but those of whom the next agent tells it, which the API server has told nothing yet.
    node.proxy_task.take().unwrap().abort();
    node.proxy = Proxy::default();
    node.start_proxy();
    let mut agent = node.start();
    eventually("the new proxy serves it", || node.proxy.serves(&uid("web"))).await;
    value["metadata"]["annotations"]["ambient.istio.io/redirection"] = json!("enabled");
    agent.hear("ambient", &[value]);
    agent.ready().await;
    assert!(redirects(&web) && node.proxy.serves(&uid("web")));
    agent.end().await;
}

#[tokio::test]
async fn removal_leaves_nothing() {
    let Some((node, web)) = Node::with_running_web("removal_leaves_nothing") else { return };
    let before = node.read("net.d/10-net.conflist");
    let mut agent = node.start();
    agent.hear("ambient", &[pod("web", "10.9.0.4")]);
    eventually("the annotation", || node.told("web") == Some(true)).await;
    agent.ready().await;
    // What a proxy has saved, with keys.
    fs::create_dir_all(node.path("node/state/certificates")).unwrap();
    fs::write(node.path("node/state/owner"), "layout 1\n").unwrap();
    *node.api.farewell.lock() = Some(Farewell::AgentAndProxy);
    assert_eq!(agent.end().await, Ended::Removed);
    assert_eq!(node.told("web"), Some(false));
    assert_eq!(node.read("net.d/10-net.conflist"), before);
    for gone in ["bin/leno-cni", "cni.sock", "state", "node"] {
        assert!(!node.path(gone).exists(), "{gone} is left");
    }
    for namespace in [&web, &node.network] {
        let tables = leno_capture::nft::list_tables(namespace).unwrap();
        assert!(tables.is_empty(), "{tables:?}");
    }
}

/// A proxy that runs on has these directories mounted: it finds the next agent only if they stay.
#[tokio::test]
async fn an_agent_that_is_removed_alone_leaves_the_proxys_directories() {
    let Some((node, web)) = Node::with_running_web("an_agent_that_is_removed_alone_leaves_the_proxys_directories")
    else {
        return;
    };
    let mut agent = node.start();
    agent.hear("ambient", &[pod("web", "10.9.0.4")]);
    agent.ready().await;
    fs::create_dir_all(node.path("node/state")).unwrap();
    fs::write(node.path("node/state/owner"), "layout 1\n").unwrap();
    *node.api.farewell.lock() = Some(Farewell::Agent);
    assert_eq!(agent.end().await, Ended::Removed);
    assert!(node.path("node/state/owner").exists() && !node.path("cni.sock").exists());
    assert!(!redirects(&web) && !node.proxy.serves(&uid("web")));
    let mut agent = node.start();
    agent.hear("ambient", &[pod("web", "10.9.0.4")]);
    agent.ready().await;
    eventually("the proxy that ran on serves it", || redirects(&web) && node.proxy.serves(&uid("web"))).await;
    agent.end().await;
}
