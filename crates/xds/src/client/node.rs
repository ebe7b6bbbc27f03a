//! How the client identifies itself to the control plane.

use std::collections::BTreeMap;

use leno_proto::discovery::Node;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

/// How this proxy identifies itself to the control plane.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    /// Address of the proxy itself. `1.1.1.1` if it has none, as ztunnel.
    pub instance_ip: String,
    /// Its pod's name.
    pub pod_name: String,
    /// Its pod's namespace, which must be that of its token.
    pub pod_namespace: String,
    /// The node it serves.
    pub node_name: String,
    /// The cluster it is in.
    pub cluster_id: String,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// Further metadata (`ISTIO_META_*`).
    pub metadata: BTreeMap<String, String>,
}

impl NodeInfo {
    pub(super) fn to_node(&self) -> Node {
        let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
        let ip = or(&self.instance_ip, "1.1.1.1");
        let domain = or(&self.cluster_domain, "cluster.local");
        let mut fields: BTreeMap<String, String> = [
            ("NAME", self.pod_name.clone()),
            ("NAMESPACE", self.pod_namespace.clone()),
            ("INSTANCE_IPS", ip.clone()),
            ("NODE_NAME", self.node_name.clone()),
            ("CLUSTER_ID", self.cluster_id.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        fields.extend(self.metadata.clone());
        let fields = fields.into_iter().map(|(k, v)| (k, Value { kind: Some(Kind::StringValue(v)) })).collect();
        Node {
            id: format!("ztunnel~{ip}~{}.{}~{}.svc.{domain}", self.pod_name, self.pod_namespace, self.pod_namespace),
            metadata: Some(Struct { fields }),
            ..Default::default()
        }
    }
}
