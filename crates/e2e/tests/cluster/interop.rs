//! Istio's own parts in place of Leno's: the same traffic and the same policies.
//!
//! They are programs of this machine (`LENO_ZTUNNEL`, `LENO_ISTIOD`). The first one runs on the nodes, so these must see this
//! machine's files, as those of the cluster do that `cargo xtask cluster up` starts.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use leno_testkit::skips::skip;
use serde_json::json;

use crate::mesh::{SYSTEM, Stand};
use crate::stand::comes_true;
use crate::{policies, traffic};

const PROXIES: &str = "daemonset/leno-node";
const CONTROL: &str = "deployment/leno-control";

/// A ztunnel on every node, under Leno's agent and control plane.
pub(crate) fn a_ztunnel_carries(stand: &Stand) {
    const TEST: &str = "a ztunnel carries the pods of Leno's agent";
    let Some(given) = program("LENO_ZTUNNEL", TEST, "set LENO_ZTUNNEL=PATH to a ztunnel") else { return };
    let Some(directory) = on_nodes(stand, "ztunnel", &[&given]) else {
        return skip(TEST, "the nodes don't see this machine's files");
    };
    let program = directory.join(given.file_name().unwrap());
    // With the libraries that it is linked to, which Leno's image has not.
    let host = [("program", directory.to_str().unwrap()), ("lib", "/lib"), ("lib64", "/lib64")];
    let mounts = host.map(|(name, path)| json!({"name": format!("host-{name}"), "mountPath": path, "readOnly": true}));
    let volumes = host.map(|(name, path)| json!({"name": format!("host-{name}"), "hostPath": {"path": path}}));
    let container = json!({
        "name": "node", "command": [program], "args": ["proxy", "ztunnel"], "volumeMounts": mounts,
        "env": [{"name": "CA_ADDRESS", "value": format!("https://leno-control.{SYSTEM}.svc:15012")}],
    });
    let patch = json!({"spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}}});
    stand.cluster.kubectl().run(&["patch", PROXIES, "--namespace", SYSTEM, "--patch", &patch.to_string()]).unwrap();
    let _undo = Undo(stand);
    settled(stand, PROXIES);
    traffic::in_and_out(stand);
    policies::decide(stand);
}

/// A directory with copies of files that every node sees. `None` if the nodes are other machines.
pub(crate) fn on_nodes(stand: &Stand, name: &str, files: &[&Path]) -> Option<PathBuf> {
    // Nodes on this machine see its files, except some directories of which they have their own.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("of-nodes").join(name);
    std::fs::create_dir_all(&directory).unwrap();
    for file in files {
        std::fs::copy(file, directory.join(file.file_name().unwrap())).unwrap();
    }
    let there = format!("test -e {}", directory.join(files[0].file_name().unwrap()).display());
    stand.hosts.nodes().iter().all(|node| stand.hosts.shell(node, &there).is_ok()).then_some(directory)
}

/// Leno's proxies as they were.
struct Undo<'a>(&'a Stand);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        undone(self.0, &[&["rollout", "undo", PROXIES], &["rollout", "status", PROXIES, "--timeout=300s"]]);
    }
}

/// Takes these steps, each of which is tried whatever became of the others. A chapter that has failed is about to end, and a
/// panic then would end all of them.
fn undone(stand: &Stand, steps: &[&[&str]]) {
    for step in steps {
        if let Err(error) = stand.cluster.kubectl().run(&[*step, &["--namespace", SYSTEM]].concat()) {
            eprintln!("what the chapter has changed is not as it was: {error}");
        }
    }
}

/// Istio's control plane above Leno's agents and proxies. It runs on this machine, with the rights of the kubeconfig.
pub(crate) fn an_istiod_drives(stand: &Stand) {
    const TEST: &str = "an istiod drives Leno's agents and proxies";
    let Some(program) = program("LENO_ISTIOD", TEST, "set LENO_ISTIOD=PATH to Istio's pilot-discovery") else { return };
    let address = reachable(stand);
    let _istiod = Istiod::start(stand, &program, address);
    let root = comes_to_be(stand);
    let _back = Back(stand);
    let control = ["scale", CONTROL, "--namespace", SYSTEM, "--replicas", "0"];
    stand.cluster.kubectl().run(&control).unwrap();
    comes_true("Leno's control plane is gone", || {
        let pods = stand.cluster.kubectl().run(&["get", "pods", "--namespace", SYSTEM, "--output=name"]);
        pods.is_ok_and(|pods| !pods.contains("leno-control"))
    });
    // The roots that the proxies are started with are Leno's until its control plane is gone.
    let data = json!({"data": {"root-cert.pem": root}}).to_string();
    stand
        .cluster
        .kubectl()
        .run(&["patch", "configmap", "leno-ca-root", "--namespace", SYSTEM, "--patch", &data])
        .unwrap();
    let name = "istiod.istio-system.svc";
    let env = [
        ("XDS_ADDRESS", format!("https://{address}")),
        ("ALT_XDS_HOSTNAME", name.to_owned()),
        ("ALT_CA_HOSTNAME", name.to_owned()),
    ]
    .map(|(name, value)| json!({"name": name, "value": value}));
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "node", "env": env}]}}}}).to_string();
    stand.cluster.kubectl().run(&["patch", PROXIES, "--namespace", SYSTEM, "--patch", &patch]).unwrap();
    settled(stand, PROXIES);
    traffic::in_and_out(stand);
    policies::decide(stand);
}

/// Leno's own control plane, as it was.
struct Back<'a>(&'a Stand);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        let steps: [&[&str]; 4] = [
            &["scale", CONTROL, "--replicas", "1"],
            &["rollout", "status", CONTROL, "--timeout=300s"],
            &["rollout", "undo", PROXIES],
            &["rollout", "status", PROXIES, "--timeout=300s"],
        ];
        undone(self.0, &steps);
    }
}

/// Istio's root, from the namespace in which the proxies are.
fn comes_to_be(stand: &Stand) -> String {
    let mut root = String::new();
    comes_true("istiod publishes its root", || {
        let get = [
            "get",
            "configmap",
            "istio-ca-root-cert",
            "--namespace",
            SYSTEM,
            "--output",
            "jsonpath={.data.root-cert\\.pem}",
        ];
        root = stand.cluster.kubectl().run(&get).unwrap_or_default();
        !root.is_empty()
    });
    root
}

struct Istiod<'a> {
    stand: &'a Stand,
    child: Child,
}

impl<'a> Istiod<'a> {
    fn start(stand: &'a Stand, program: &PathBuf, address: SocketAddr) -> Self {
        let kubectl = stand.cluster.kubectl();
        kubectl.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system}\n").unwrap();
        let secure = address.to_string();
        let mut command = Command::new(program);
        command
            .args(["discovery", "--registries", "Kubernetes", "--secureGRPCAddr", &secure, "--grpcAddr", "127.0.0.1:0"])
            .args(["--httpAddr", "127.0.0.1:18081", "--httpsAddr", "", "--monitoringAddr", "127.0.0.1:18014"])
            .arg("--kubeconfig")
            .arg(kubectl.kubeconfig())
            .env_remove("KUBERNETES_SERVICE_HOST")
            .envs([
                ("PILOT_ENABLE_AMBIENT", "true"),
                ("ENABLE_LEADER_ELECTION", "false"),
                ("INJECT_ENABLED", "false"),
                ("INJECTION_WEBHOOK_CONFIG_NAME", ""),
                ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
                ("CA_TRUSTED_NODE_ACCOUNTS", "leno-system/leno-node"),
                ("POD_NAMESPACE", "istio-system"),
                ("POD_NAME", "istiod-0"),
                ("CLUSTER_ID", "Kubernetes"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self { stand, child: command.spawn().unwrap() }
    }
}

impl Drop for Istiod<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let kubectl = self.stand.cluster.kubectl();
        let _ = kubectl.run(&["delete", "namespace", "istio-system"]);
        // Its classes are users' objects to Leno, which leaves their definition behind for them.
        let list = "jsonpath={range .items[*]}{.metadata.name} {.spec.controllerName}{\"\\n\"}{end}";
        let classes = kubectl.run(&["get", "gatewayclasses", "--output", list]).unwrap_or_default();
        for (name, controller) in classes.lines().filter_map(|line| line.split_once(' ')) {
            if controller.starts_with("istio.io/") {
                let _ = kubectl.run(&["delete", "gatewayclass", name]);
            }
        }
        // It puts these into every namespace.
        for name in ["istio-ca-root-cert", "istio-ca-crl"] {
            let each = ["--all-namespaces", "--field-selector", &format!("metadata.name={name}")];
            let _ = kubectl.run(&[&["delete", "configmap"], &each[..]].concat());
        }
    }
}

/// An address of this machine that the nodes reach, with istiod's port.
fn reachable(stand: &Stand) -> SocketAddr {
    let nodes =
        ["get", "nodes", "--output", "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}"];
    let node = stand.cluster.kubectl().run(&nodes).unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((node.split_whitespace().next().unwrap(), 9)).unwrap();
    SocketAddr::new(socket.local_addr().unwrap().ip(), 15012)
}

pub(crate) fn program(variable: &str, test: &str, hint: &str) -> Option<PathBuf> {
    let program = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    if program.is_none() {
        skip(test, hint);
    }
    program
}

fn settled(stand: &Stand, workload: &str) {
    stand.cluster.kubectl().run(&["rollout", "status", workload, "--namespace", SYSTEM, "--timeout=300s"]).unwrap();
}
