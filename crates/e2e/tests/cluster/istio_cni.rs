//! Istio's CNI agent and plugin in the place of Leno's: they hand pods to Leno's proxies, by the same protocol.
//!
//! The plugin and its installer are programs of this machine (`LENO_ISTIO_CNI` names the plugin; `install-cni` lies beside it).
//! They run on the nodes, so these must see this machine's files, as those of the cluster do that `cargo xtask cluster up` starts.

use std::path::Path;

use leno_e2e::{Error, Namespace, TOOLBOX_IMAGE};
use leno_testkit::skips::skip;

use crate::interop::{on_nodes, program};
use crate::mesh::{SYSTEM, Stand};
use crate::stand::comes_true;
use crate::{policies, traffic};

const TEST: &str = "Istio's CNI agent hands pods to Leno's proxies";

pub(crate) fn hands_over(stand: &Stand) {
    let Some(plugin) =
        program("LENO_ISTIO_CNI", TEST, "set LENO_ISTIO_CNI=PATH to Istio's istio-cni, with install-cni beside it")
    else {
        return;
    };
    let installer = plugin.with_file_name("install-cni");
    // The installer copies all that lies beside the plugin.
    let copies = (on_nodes(stand, "istio-cni", &[&plugin]), on_nodes(stand, "install-cni", &[&installer]));
    let (Some(plugins), Some(installers)) = copies else {
        return skip(TEST, "the nodes don't see this machine's files");
    };
    // Members that go on through all chapters are Leno's agent's. They leave, and come back in the end.
    let _members = Members::leave(stand);
    stand.leno.run(&["upgrade", "--wait", "--timeout", "4m", "--set", "agent.enabled=false"]).unwrap();
    let _agent = Agent(stand);
    let privileged = ("pod-security.kubernetes.io/enforce", "privileged");
    let namespace = Namespace::new(&stand.cluster, "e2e-istio-cni", &[privileged]).unwrap();
    for node in stand.hosts.nodes() {
        let keep =
            "mkdir -p /run/e2e-cni && cp -a /etc/cni/net.d /run/e2e-cni/net.d && cp -a /opt/cni/bin /run/e2e-cni/bin";
        stand.hosts.shell(node, keep).unwrap();
    }
    let _files = Files { stand, namespace: namespace.name().to_owned() };
    namespace.apply(&manifests(namespace.name(), &plugins, &installers)).unwrap();
    // Leno's agent has taken the directory of its socket away, and they still look into that.
    let settled = ["rollout", "status", "daemonset/istio-cni-node", "-n", namespace.name(), "--timeout=120s"];
    if let Err(error) = restarted(stand).and_then(|()| stand.cluster.kubectl().run(&settled)) {
        let logs = ["logs", "-n", namespace.name(), "-l", "k8s-app=istio-cni-node", "--tail=40", "--prefix"];
        panic!("{error}\n{}", stand.cluster.kubectl().run(&logs).unwrap_or_default());
    }
    traffic::in_and_out(stand);
    policies::decide(stand);
}

/// Which pods are to be in the mesh, as Istio's chart has it: those with the label, and those of namespaces with it.
const SELECTORS: &str = r#"[{"podSelector":{"matchLabels":{"istio.io/dataplane-mode":"ambient"}}},{"podSelector":{"matchExpressions":[{"key":"istio.io/dataplane-mode","operator":"NotIn","values":["none"]}]},"namespaceSelector":{"matchLabels":{"istio.io/dataplane-mode":"ambient"}}}]"#;

/// As Istio's chart has it. The agent calls `nft` and what that is linked to, which are the node's.
fn manifests(namespace: &str, plugins: &Path, installers: &Path) -> String {
    let host = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/alternatives"];
    let host: Vec<_> = host.into_iter().filter(|path| Path::new(path).exists()).collect();
    let mut mounts: Vec<(&str, &str, bool)> = host.iter().map(|path| (*path, *path, true)).collect();
    let [plugins, installers] = [plugins, installers].map(|directory| directory.display().to_string());
    mounts.extend([
        (plugins.as_str(), "/opt/cni/bin", true),
        (installers.as_str(), "/installers", true),
        ("/opt/cni/bin", "/host/opt/cni/bin", false),
        ("/etc/cni/net.d", "/host/etc/cni/net.d", false),
        ("/proc", "/host/proc", true),
        ("/var/run/istio-cni", "/var/run/istio-cni", false),
        ("/var/run/ztunnel", "/var/run/ztunnel", false),
    ]);
    let (mut volumes, mut mounted) = (String::new(), String::new());
    for (index, (from, at, read_only)) in mounts.iter().enumerate() {
        volumes += &format!("      - {{name: v{index}, hostPath: {{path: \"{from}\", type: DirectoryOrCreate}}}}\n");
        mounted += &format!("        - {{name: v{index}, mountPath: \"{at}\", readOnly: {read_only}}}\n");
    }
    format!(
        "---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: istio-cni}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {namespace}-istio-cni}}
rules:
- {{apiGroups: [\"\"], resources: [pods, nodes, namespaces], verbs: [get, list, watch]}}
- {{apiGroups: [\"\"], resources: [pods/status], verbs: [patch, update]}}
- {{apiGroups: [apps], resources: [daemonsets], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {namespace}-istio-cni}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {namespace}-istio-cni}}
subjects: [{{kind: ServiceAccount, name: istio-cni, namespace: {namespace}}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: istio-cni-node, labels: {{k8s-app: istio-cni-node}}}}
spec:
  selector: {{matchLabels: {{k8s-app: istio-cni-node}}}}
  template:
    metadata: {{labels: {{k8s-app: istio-cni-node, istio.io/dataplane-mode: none}}}}
    spec:
      serviceAccountName: istio-cni
      terminationGracePeriodSeconds: 5
      tolerations: [{{operator: Exists}}]
      containers:
      - name: install-cni
        image: {TOOLBOX_IMAGE}
        imagePullPolicy: IfNotPresent
        command: [/installers/install-cni, --log_output_level=info]
        readinessProbe: {{httpGet: {{path: /readyz, port: 8000}}, periodSeconds: 2}}
        securityContext: {{privileged: true, runAsUser: 0}}
        env:
        - {{name: PATH, value: \"/usr/sbin:/usr/bin:/sbin:/bin\"}}
        - {{name: AMBIENT_ENABLED, value: \"true\"}}
        - {{name: AMBIENT_ENABLEMENT_SELECTOR, value: '{SELECTORS}'}}
        - {{name: AMBIENT_DNS_CAPTURE, value: \"true\"}}
        - {{name: AMBIENT_IPV6, value: \"true\"}}
        - {{name: NATIVE_NFTABLES, value: \"true\"}}
        - {{name: CHAINED_CNI_PLUGIN, value: \"true\"}}
        - {{name: REPAIR_ENABLED, value: \"false\"}}
        - {{name: EXCLUDE_NAMESPACES, value: kube-system}}
        - {{name: ALLOW_SWITCH_TO_HOST_NS, value: \"true\"}}
        - {{name: NODE_NAME, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
        - {{name: REPAIR_NODE_NAME, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
        - {{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
        - {{name: POD_NAMESPACE, valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}}}
        volumeMounts:
        - {{name: netns, mountPath: /host/var/run/netns, mountPropagation: HostToContainer}}
{mounted}      volumes:
      - {{name: netns, hostPath: {{path: /var/run/netns, type: DirectoryOrCreate}}}}
{volumes}"
    )
}

/// Namespaces of the mesh, out of it as long as this lives.
struct Members<'a> {
    stand: &'a Stand,
    namespaces: Vec<String>,
}

impl<'a> Members<'a> {
    fn leave(stand: &'a Stand) -> Self {
        let labelled =
            ["get", "namespaces", "-l", "istio.io/dataplane-mode=ambient", "-o", "jsonpath={.items[*].metadata.name}"];
        let found = stand.cluster.kubectl().run(&labelled).unwrap();
        let namespaces: Vec<_> = found.split_whitespace().map(str::to_owned).collect();
        let this = Self { stand, namespaces };
        this.call("unenrol");
        this
    }

    fn call(&self, command: &str) {
        for namespace in &self.namespaces {
            // One of another chapter may be on its way out.
            if let Err(error) = self.stand.leno.run(&[command, namespace, "--wait"]) {
                eprintln!("{namespace}: {error}");
            }
        }
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        self.call("enrol");
    }
}

/// Leno's agent, as it was.
struct Agent<'a>(&'a Stand);

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let back = ["upgrade", "--set", "agent.enabled=true"];
        if let Err(error) = self.0.leno.run(&back).and_then(|_| restarted(self.0)) {
            eprintln!("Leno's agent is not back: {error}");
        }
    }
}

/// Starts the proxies anew. They become ready when there is an agent.
fn restarted(stand: &Stand) -> Result<(), Error> {
    let kubectl = stand.cluster.kubectl();
    kubectl.run(&["rollout", "restart", "daemonset/leno-node", "-n", SYSTEM])?;
    kubectl.run(&["rollout", "status", "daemonset/leno-node", "-n", SYSTEM, "--timeout=180s"]).map(drop)
}

/// Takes Istio's agent away, with what it leaves on the nodes, for which Leno's would be blamed.
struct Files<'a> {
    stand: &'a Stand,
    namespace: String,
}

impl Drop for Files<'_> {
    fn drop(&mut self) {
        let kubectl = self.stand.cluster.kubectl();
        let all = [
            &["delete", "daemonset", "istio-cni-node", "-n", &self.namespace, "--ignore-not-found", "--timeout=60s"][..],
            &[
                "delete",
                "clusterrole,clusterrolebinding",
                &format!("{}-istio-cni", self.namespace),
                "--ignore-not-found",
            ],
        ];
        for step in all {
            if let Err(error) = kubectl.run(step) {
                eprintln!("{error}");
            }
        }
        comes_true("Istio's agents are gone", || {
            let pods = ["get", "pods", "-n", &self.namespace, "-l", "k8s-app=istio-cni-node", "-o", "name"];
            kubectl.run(&pods).is_ok_and(|pods| pods.trim().is_empty())
        });
        for node in self.stand.hosts.nodes() {
            let script = "rm -rf /etc/cni/net.d/* /opt/cni/bin/* /var/run/istio-cni
                cp -a /run/e2e-cni/net.d/. /etc/cni/net.d/ && cp -a /run/e2e-cni/bin/. /opt/cni/bin/ && rm -rf /run/e2e-cni
                nft list tables | grep -i istio | while read -r word family name; do nft delete $word $family $name; done";
            if let Err(error) = self.stand.hosts.shell(node, script) {
                eprintln!("{error}");
            }
        }
    }
}
