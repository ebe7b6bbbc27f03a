//! A namespace of a test's own, which goes away with the test.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::kubectl::Kubectl;

/// The annotation by which a node agent says that a pod is in the mesh.
const REDIRECTED: &str = "ambient.istio.io/redirection: enabled";

/// Exists as long as this value does. What it holds is removed with it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    kubectl: Kubectl,
}

impl Namespace {
    /// Makes one. Its name begins with `test` and is no other run's. Pods can be made in it at once.
    ///
    /// # Errors
    ///
    /// If the cluster refuses it.
    pub fn new(cluster: &Cluster, test: &str, labels: &[(&str, &str)]) -> Result<Self, Error> {
        let name = format!("{test}-{}", std::process::id());
        let labels: String = labels.iter().map(|(key, value)| format!("    {key}: \"{value}\"\n")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("  labels:\n{labels}") };
        cluster.kubectl().apply(&format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n{labels}"))?;
        let namespace = Self { name, kubectl: cluster.kubectl().clone() };
        // Kubernetes' controllers make it a moment later, and later still after a restart of theirs. Pods are refused
        // without it.
        namespace.wait("create", &["serviceaccount/default"])?;
        Ok(namespace)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// To talk to its cluster.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Applies manifests, those without a namespace in this one.
    ///
    /// # Errors
    ///
    /// As [`Kubectl::run`].
    pub fn apply(&self, manifests: &str) -> Result<(), Error> {
        self.kubectl.apply_in(&self.name, manifests)
    }

    /// Puts all its pods into the mesh or takes them out, and waits until the node agents have done so.
    ///
    /// # Errors
    ///
    /// If they don't within three minutes.
    pub fn enrol(&self, into: bool) -> Result<(), Error> {
        let label = if into { "istio.io/dataplane-mode=ambient" } else { "istio.io/dataplane-mode-" };
        self.kubectl.run(&["label", "namespace", &self.name, label, "--overwrite"])?;
        let pods = self.kubectl.run(&["get", "pods", "--output=name", "--namespace", &self.name])?;
        let deadline = Instant::now() + Duration::from_secs(180);
        if into {
            let enabled = "jsonpath={.metadata.annotations.ambient\\.istio\\.io/redirection}=enabled";
            return self.wait(enabled, &pods.lines().collect::<Vec<_>>());
        }
        // kubectl can't wait for an annotation to go. Each look is a call, which paces this.
        while self.kubectl.run(&["get", "pods", "--output=yaml", "--namespace", &self.name])?.contains(REDIRECTED) {
            if Instant::now() > deadline {
                let said = format!("pods of {} stay in the mesh", self.name);
                return Err(Error::Kubectl { arguments: "get pods".to_owned(), said });
            }
        }
        Ok(())
    }

    /// Waits until these objects meet a condition, for example `condition=Ready`.
    ///
    /// # Errors
    ///
    /// If they don't within three minutes. A loaded machine takes its time.
    pub fn wait(&self, condition: &str, objects: &[&str]) -> Result<(), Error> {
        let condition = format!("--for={condition}");
        let mut arguments = vec!["wait", &condition, "--timeout=180s", "--namespace", &self.name];
        arguments.extend(objects);
        self.kubectl.run(&arguments).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Not awaited: its pods take their time to end, and no other test has this name.
        let _ = self.kubectl.run(&["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"]);
    }
}
