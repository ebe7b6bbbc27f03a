//! What the agent hears of its cluster and says to it. Who talks to the API server implements it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use leno_objects::{Change, Kind, Labels, Object, Pod};

/// News of all namespaces, and of the pods of this node.
#[derive(Debug)]
pub enum News {
    /// All objects of this kind. Others that were known are gone.
    All(Kind, Vec<Arc<Object>>),
    /// Some have changed.
    Changed(Vec<Change>),
}

/// A pod in the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Unique id. A pod of the same name with another uid is another pod.
    pub uid: String,
}

/// The cluster, as far as the agent asks it or writes to it. Errors are sentences for the log.
pub trait Cluster: Send + Sync + 'static {
    /// A pod as it is now; `None` if there is none.
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Pod>, String>>;

    /// The labels of a namespace as they are now; `None` if there is none.
    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Labels>, String>>;

    /// Writes on a pod whether its traffic is captured ([`leno_objects::REDIRECTION_ANNOTATION`]). A pod that is gone is
    /// not an error.
    fn tell<'a>(&'a self, pod: &'a PodName, captured: bool) -> BoxFuture<'a, Result<(), String>>;

    /// Why the agent ends.
    fn farewell(&self) -> BoxFuture<'_, Farewell>;
}

/// Why the agent ends, by what becomes of its DaemonSet and of the node proxies'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Another one follows, or nobody knows.
    Restart,
    /// The agent is removed from the cluster. The node's proxy stays, for the next agent.
    Agent,
    /// The agent is removed, and the node's proxy with it.
    AgentAndProxy,
}
