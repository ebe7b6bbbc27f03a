//! Finding the cluster.

use std::path::PathBuf;

use crate::error::Error;
use crate::kubectl::Kubectl;

/// The command that helps where there is no cluster.
const HELP: &str = "`cargo xtask cluster up` starts one (as root)";

/// A cluster that answers.
#[derive(Debug, Clone)]
pub struct Cluster {
    kubectl: Kubectl,
    nodes: Vec<String>,
}

/// Whether there is one.
#[derive(Debug)]
pub enum Found {
    /// Yes.
    Cluster(Cluster),
    /// No, and why a test is skipped.
    None(String),
}

impl Cluster {
    /// The cluster of `LENO_KUBECONFIG`, else that of `cargo xtask cluster up`.
    ///
    /// # Errors
    ///
    /// If one was named and does not answer: then the tests were meant to run.
    pub fn find() -> Result<Found, Error> {
        if let Some(kubeconfig) = variable("LENO_KUBECONFIG") {
            let kubectl = Kubectl::new(PathBuf::from("kubectl"), kubeconfig.clone());
            return match Self::with(kubectl) {
                Ok(cluster) => Ok(Found::Cluster(cluster)),
                Err(error) => {
                    Err(Error::Silent { kubeconfig: kubeconfig.display().to_string(), said: error.to_string() })
                }
            };
        }
        let Some(cache) = cache() else { return Ok(Found::None(format!("no cluster runs; {HELP}"))) };
        let kubeconfig = cache.join("kubeconfig");
        if !kubeconfig.exists() {
            return Ok(Found::None(format!("no cluster runs; {HELP}")));
        }
        Ok(match Self::with(Kubectl::new(cache.join("bin/kubectl"), kubeconfig)) {
            Ok(cluster) => Found::Cluster(cluster),
            Err(_) => Found::None(format!("the cluster does not answer; {HELP}")),
        })
    }

    fn with(kubectl: Kubectl) -> Result<Self, Error> {
        let list = kubectl.json(&["get", "nodes", "--request-timeout=20s"])?;
        let nodes = list["items"].as_array().into_iter().flatten();
        let nodes = nodes.filter_map(|node| Some(node["metadata"]["name"].as_str()?.to_owned())).collect();
        Ok(Self { kubectl, nodes })
    }

    /// To talk to it.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Its nodes' names.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }
}

/// The directory that `cargo xtask cluster` uses.
fn cache() -> Option<PathBuf> {
    variable("LENO_CLUSTER_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|caches| caches.join("leno-cluster")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/leno-cluster")))
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
