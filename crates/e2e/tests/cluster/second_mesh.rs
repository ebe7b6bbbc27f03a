//! Another mesh is there already: it is named before anything is changed, and what it does already is refused.

use leno_e2e::{Cluster, Hosts, Leno, Namespace};
use leno_testkit::skips::skip;

use crate::interop::program;
use crate::mesh::Stand;
use crate::policies;

/// The parts of Istio that do what Leno's agent and proxies do, by the labels of its charts. None of them runs.
const ISTIO: &str = "---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ztunnel, labels: {app: ztunnel}}
spec:
  selector: {matchLabels: {app: ztunnel}}
  template:
    metadata: {labels: {app: ztunnel}}
    spec: {nodeSelector: {e2e: nowhere}, containers: [{name: istio-proxy, image: nowhere/ztunnel}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: istio-cni-node, labels: {k8s-app: istio-cni-node}}
spec:
  selector: {matchLabels: {k8s-app: istio-cni-node}}
  template:
    metadata: {labels: {k8s-app: istio-cni-node}}
    spec: {nodeSelector: {e2e: nowhere}, containers: [{name: install-cni, image: nowhere/install-cni}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: istiod, labels: {app: istiod}}
spec:
  replicas: 0
  selector: {matchLabels: {app: istiod}}
  template:
    metadata: {labels: {app: istiod}}
    spec: {containers: [{name: discovery, image: nowhere/pilot}]}
";

pub(crate) fn is_named_and_not_doubled(cluster: &Cluster, leno: &Leno) {
    let istio = Namespace::new(cluster, "e2e-istio", &[]).unwrap();
    istio.apply(ISTIO).unwrap();
    let found = leno.call(&["check", "--pre"]).unwrap().stdout;
    for part in ["Istio's ztunnel", "Istio's CNI agent", "istiod"] {
        assert!(found.contains(&format!("{part} runs in {}", istio.name())), "{found}");
    }
    let refused = |sets: &[&str], part: &str, instead: &str| {
        let ran = leno.call(&[&["install"], sets].concat()).unwrap();
        assert!(ran.code != 0 && ran.stderr.contains(part) && ran.stderr.contains(instead), "{}", ran.stderr);
        // Nothing of it is there.
        let ours = ["get", "namespace,clusterrole", "-l", "app.kubernetes.io/part-of=leno", "-o", "name"];
        assert_eq!(cluster.kubectl().run(&ours).unwrap().trim(), "");
    };
    refused(&[], "Istio's ztunnel", "node.enabled=false");
    refused(&["--set", "node.enabled=false"], "Istio's CNI agent", "agent.enabled=false");
    cluster.kubectl().run(&["delete", "namespace", istio.name(), "--timeout=120s"]).unwrap();
}

/// Istio's own definitions, all of them, as its chart `base` brings them, and its entry in the nodes' CNI configuration, as an earlier
/// installation may have left both. Leno lives with them and goes without touching them.
pub(crate) fn what_istio_has_defined_is_left_alone(stand: &Stand) {
    const TEST: &str = "Istio's definitions and its CNI entry are left alone";
    let hint = "set LENO_ISTIO_CRDS=PATH to files/crd-all.gen.yaml of Istio's chart `base`";
    let Some(file) = program("LENO_ISTIO_CRDS", TEST, hint) else { return };
    if leno_e2e::Hands::find(&stand.cluster).is_none() {
        return skip(TEST, "this cluster is not this machine's, and its nodes' CNI configuration is not changed");
    }
    let definitions = Definitions::apply(&stand.cluster, file.to_str().unwrap());
    let entry = Entry::add(&stand.hosts);
    let (before, files) = (definitions.all(), entry.read());
    stand.leno.run(&["check", "--pre"]).unwrap();
    let image = stand.leno.image();
    let mut arguments = vec!["install", "--wait", "--timeout", "3m"];
    arguments.extend(image.iter().map(String::as_str));
    let said = stand.leno.run(&arguments).unwrap();
    let _gone = Gone(stand);
    for plural in ["authorizationpolicies", "peerauthentications"] {
        let alone = said.lines().any(|line| line.contains(plural) && line.contains("alone"));
        assert!(alone, "{plural}: {said}");
    }
    for (node, text) in entry.read() {
        let (istio, leno) = (text.find("istio-cni"), text.find("leno-cni"));
        assert!(istio.is_some() && istio < leno, "{node}: {text}");
    }
    stand.leno.run(&["check"]).unwrap();
    policies::decide(stand);
    stand.leno.run(&["uninstall"]).unwrap();
    assert_eq!(definitions.all(), before, "Istio's definitions have changed");
    assert_eq!(entry.read(), files, "the nodes' CNI configuration has changed");
}

/// Takes an installation away that a failed test has left.
struct Gone<'a>(&'a Stand);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let _ = self.0.leno.call(&["uninstall"]);
    }
}

/// Istio's definitions, as long as this lives.
struct Definitions<'a> {
    cluster: &'a Cluster,
    file: String,
}

impl<'a> Definitions<'a> {
    fn apply(cluster: &'a Cluster, file: &str) -> Self {
        let this = Self { cluster, file: file.to_owned() };
        cluster.kubectl().run(&["apply", "--server-side", "-f", file]).unwrap();
        cluster.kubectl().run(&["wait", "--for=condition=Established", "--timeout=60s", "-f", file]).unwrap();
        this
    }

    /// Each with the number of its latest change.
    fn all(&self) -> String {
        let list = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.generation} {.metadata.labels}{\"\\n\"}{end}";
        let all = self.cluster.kubectl().run(&["get", "customresourcedefinitions", "-o", list]).unwrap();
        all.lines().filter(|line| line.contains(".istio.io ")).map(|line| format!("{line}\n")).collect()
    }
}

impl Drop for Definitions<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.cluster.kubectl().run(&["delete", "--ignore-not-found", "-f", &self.file]) {
            eprintln!("Istio's definitions stay: {error}");
        }
    }
}

/// The node's configuration, and a plugin that passes on what it is given, as Istio's does for pods that are not in its mesh.
const ENTRY: &str = r#"set -e
cd /etc/cni/net.d
cp 10-pods.conflist /run/e2e-conflist
jq '.plugins += [{"type": "istio-cni", "log_level": "info", "kubernetes": {"cni_bin_dir": "/opt/cni/bin"}}]' /run/e2e-conflist >.e2e
mv .e2e 10-pods.conflist
cat >/opt/cni/bin/istio-cni <<'END'
#!/bin/sh
PATH=/usr/local/bin:/usr/bin:/bin
case $CNI_COMMAND in
ADD) jq -c .prevResult ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
esac
END
chmod 755 /opt/cni/bin/istio-cni
"#;

/// The entry, as long as this lives.
struct Entry<'a>(&'a Hosts);

impl<'a> Entry<'a> {
    fn add(hosts: &'a Hosts) -> Self {
        let this = Self(hosts);
        for node in hosts.nodes() {
            hosts.shell(node, ENTRY).unwrap();
        }
        this
    }

    fn read(&self) -> Vec<(String, String)> {
        let read = |node: &String| (node.clone(), self.0.shell(node, "cat /etc/cni/net.d/10-pods.conflist").unwrap());
        self.0.nodes().iter().map(read).collect()
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        for node in self.0.nodes() {
            let back = "[ ! -e /run/e2e-conflist ] || cat /run/e2e-conflist >/etc/cni/net.d/10-pods.conflist
                rm -f /run/e2e-conflist /opt/cni/bin/istio-cni";
            if let Err(error) = self.0.shell(node, back) {
                eprintln!("the CNI configuration of {node} is not as it was: {error}");
            }
        }
    }
}
