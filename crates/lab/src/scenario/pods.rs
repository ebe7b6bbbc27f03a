//! The pods of scenarios.

/// Kubernetes namespace of the lab's pods.
pub const NAMESPACE: &str = "lab";

/// Pods that every scenario has.
pub(crate) const CLIENT: &str = "client";
pub(crate) const NEAR: &str = "server-near";
pub(crate) const FAR: &str = "server-far";

/// Pods of hops, none of them in the mesh: the client, the places of one proxy and of a pair's second, and the server.
pub(crate) const HOP_CLIENT: &str = "hop-client";
pub(crate) const HOP: &str = "hop";
pub(crate) const HOP_SECOND: &str = "hop-second";
pub(crate) const HOP_SERVER: &str = "hop-server";

/// A pod, which runs the lab's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name, and that of its service account.
    pub name: String,
    /// Its node.
    pub node: &'static str,
    /// Whether it has a part in the mesh, if there is one.
    pub can_join: bool,
}

/// A pod that has a part in the mesh.
pub(super) fn pod(name: impl Into<String>, node: &'static str) -> Pod {
    Pod { name: name.into(), node, can_join: true }
}

/// The pods of hops: all on one node, so that every subject has the same network.
pub(super) fn of_hops() -> impl Iterator<Item = Pod> {
    [HOP_CLIENT, HOP, HOP_SECOND, HOP_SERVER].into_iter().map(|name| Pod { can_join: false, ..pod(name, "node-1") })
}
