//! The configuration of a node's programs, as text.

use super::certificates::Identities;
use super::layout::Layout;
use super::node::Settings;
use super::plan::DNS_SERVICE;
use super::{build, cgroups};

/// Where containerd listens, in every node's own `/run`.
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// The directory of a node's files, as the node sees it.
fn own(layout: &Layout, settings: &Settings) -> String {
    layout.node(settings.node).display().to_string()
}

pub(crate) fn cni(settings: &Settings) -> String {
    let node = settings.node;
    let mut ranges = format!(r#"[{{"subnet": "{}"}}]"#, node.pods_4());
    let mut routes = r#"{"dst": "0.0.0.0/0"}"#.to_owned();
    if settings.plan.dual() {
        ranges.push_str(&format!(r#", [{{"subnet": "{}"}}]"#, node.pods_6()));
        routes.push_str(r#", {"dst": "::/0"}"#);
    }
    format!(
        r#"{{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {{
      "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
      "ipam": {{"type": "host-local", "ranges": [{ranges}], "routes": [{routes}]}}
    }},
    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
  ]
}}
"#
    )
}

pub(crate) fn containerd(runc: &str) -> String {
    // `restrict_oom_score_adj`: a machine without CAP_SYS_RESOURCE can't make a process less likely to be killed than its
    // parent, and runc then ends with "can't get final child's PID from pipe".
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
"#,
        build::PAUSE
    )
}

pub(crate) fn kubelet(layout: &Layout, settings: &Settings) -> String {
    let identities = Identities::of(layout);
    let name = settings.node.name();
    // Kubernetes wants version 2 by now, and is told so only where there is none.
    let version_1 = if settings.cgroup_version_2 { "" } else { "failCgroupV1: false\n" };
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
{version_1}cgroupDriver: cgroupfs
cgroupRoot: /{group}/{name}
containerRuntimeEndpoint: unix://{CONTAINERD_SOCKET}
clusterDNS: [{DNS_SERVICE}]
clusterDomain: cluster.local
resolvConf: {own}/resolv.conf
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {ca}}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {certificate}
tlsPrivateKeyFile: {key}
volumePluginDir: /var/lib/kubelet/plugins-volume
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 100Mi, nodefs.available: \"0%\", nodefs.inodesFree: \"0%\", imagefs.available: \"0%\"}}
maxPods: 250
",
        group = cgroups::NAME,
        own = own(layout, settings),
        ca = identities.certificate("ca"),
        certificate = identities.certificate(&name),
        key = identities.key(&name),
    )
}

pub(crate) fn kube_proxy(layout: &Layout, settings: &Settings) -> String {
    // The limits of connection tracking are the host's, and can't be set from within a namespace.
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: {}}}
clusterCIDR: {}
hostnameOverride: {}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
",
        Identities::of(layout).kubeconfig("proxy"),
        settings.plan.pod_ranges(),
        settings.node.name(),
    )
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::cluster::plan::{Families, Node, Plan};

    fn settings(families: Families) -> Settings {
        Settings {
            plan: Plan { nodes: 3, families },
            node: Node { number: 2 },
            cgroup_version_2: false,
            cache: PathBuf::from("/cache"),
        }
    }

    #[test]
    fn pods_get_addresses_of_their_node_in_each_family() {
        let dual: serde_json::Value = serde_json::from_str(&cni(&settings(Families::Dual))).unwrap();
        let ranges = &dual["plugins"][0]["ipam"]["ranges"];
        assert_eq!(ranges[0][0]["subnet"], "10.244.2.0/24");
        assert_eq!(ranges[1][0]["subnet"], "fd4c:656e:6f00:102::/64");
        let single: serde_json::Value = serde_json::from_str(&cni(&settings(Families::Ipv4))).unwrap();
        assert_eq!(single["plugins"][0]["ipam"]["ranges"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn nodes_read_their_own_files() {
        let text = kubelet(&Layout::of(Path::new("/inside")), &settings(Families::Dual));
        assert!(text.contains("tlsCertFile: /inside/cluster/pki/n2.crt"), "{text}");
        assert!(text.contains("cgroupRoot: /leno-cluster/n2") && text.contains("failCgroupV1: false"), "{text}");
    }
}
