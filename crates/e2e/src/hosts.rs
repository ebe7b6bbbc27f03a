//! The cluster's nodes themselves, as a privileged pod on each of them sees them.

use crate::cluster::Cluster;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::toolbox::TOOLBOX_IMAGE;

/// A pod on each node, in the node's network and with its processes. They go away with this value.
#[derive(Debug)]
pub struct Hosts {
    namespace: Namespace,
    nodes: Vec<String>,
}

impl Hosts {
    /// Starts the pods.
    ///
    /// # Errors
    ///
    /// If the cluster refuses them, or they don't become ready.
    pub fn new(cluster: &Cluster) -> Result<Self, Error> {
        let privileged = ("pod-security.kubernetes.io/enforce", "privileged");
        let namespace = Namespace::new(cluster, "e2e-hosts", &[privileged])?;
        let nodes = cluster.nodes().to_vec();
        namespace.apply(&nodes.iter().map(|node| manifest(node)).collect::<String>())?;
        let pods: Vec<_> = nodes.iter().map(|node| format!("pod/{node}")).collect();
        namespace.wait("condition=Ready", &pods.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(Self { namespace, nodes })
    }

    /// The nodes' names.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// What a shell script of the node prints, run with the node's own files and programs.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn shell(&self, node: &str, script: &str) -> Result<String, Error> {
        self.toolbox(node, &["host", "sh", "-c", script])
    }

    /// What came of the same on several nodes, done at the same time.
    ///
    /// # Errors
    ///
    /// If it fails on one of them.
    pub fn on_each<T: Send>(
        &self,
        nodes: &[String],
        what: impl Fn(&str) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let what = &what;
        std::thread::scope(|scope| {
            let running: Vec<_> = nodes.iter().map(|node| scope.spawn(move || what(node))).collect();
            let ended =
                running.into_iter().map(|thread| thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why)));
            ended.collect()
        })
    }

    /// Asks once from the node itself, which is in no mesh (`http://`, `tcp://`).
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub fn ask(&self, node: &str, url: &str) -> Result<String, Error> {
        self.toolbox(node, &["ask", url])
    }

    /// Ends by SIGKILL every process of the node whose command line begins with these words. Says whether there was one.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn kill(&self, node: &str, words: &[&str]) -> Result<bool, Error> {
        match self.toolbox(node, &[&["kill"], words].concat()) {
            Ok(_) => Ok(true),
            Err(error) if error.to_string().contains("no process is called") => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn toolbox(&self, node: &str, arguments: &[&str]) -> Result<String, Error> {
        let exec = ["exec", "--namespace", self.namespace.name(), node, "--", "/toolbox"];
        self.namespace.kubectl().run(&[&exec, arguments].concat())
    }
}

fn manifest(node: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {node}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  tolerations: [{{operator: Exists}}]
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  hostNetwork: true
  hostPID: true
  containers:
  - name: toolbox
    image: {TOOLBOX_IMAGE}
    imagePullPolicy: IfNotPresent
    command: [/toolbox, sleep]
    securityContext: {{privileged: true}}
"
    )
}
