//! Pods of the toolbox image: servers that say who they are and whom they see, and clients that ask.

use std::fmt::Write as _;

use crate::error::Error;
use crate::namespace::Namespace;

/// In every node of the cluster that `cargo xtask cluster up` starts. For another cluster, load the archive that
/// `cargo xtask cluster build` leaves in its cache (`bin/toolbox.tar`).
pub const TOOLBOX_IMAGE: &str = "localhost/toolbox:1";

/// A pod to be made.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its name, and the value of its label `app`.
    pub name: String,
    /// Where it has to run.
    pub node: String,
    /// Beside `app`.
    pub labels: Vec<(String, String)>,
}

/// What became of one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whom it went to.
    pub url: String,
    /// What came, or why nothing did.
    pub outcome: Result<String, String>,
}

impl Pod {
    /// A pod without further labels.
    pub fn new(name: &str, node: &str) -> Self {
        Self { name: name.to_owned(), node: node.to_owned(), labels: Vec::new() }
    }

    /// With one more label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Its manifest. It serves HTTP on port 8080, lines over TCP on 9000 and gRPC health checks on 9001, lines
    /// behind TLS on 9443, and is an external authoriser on 9191. It is ready when the HTTP server answers the kubelet, and can
    /// ask as well.
    pub fn manifest(&self) -> String {
        let mut labels = format!("app: \"{}\"", self.name);
        for (key, value) in &self.labels {
            let _ = write!(labels, ", {key}: \"{value}\"");
        }
        format!(
            "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: toolbox
    image: {TOOLBOX_IMAGE}
    imagePullPolicy: IfNotPresent
    command: [/toolbox, serve, -http, \":8080\", -tcp, \":9000\", -grpc, \":9001\", -tls, \":9443\", -authorize, \":9191\"]
    readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
",
            name = self.name,
            node = self.node,
        )
    }

    /// Its manifest as one that asks by itself, again and again, and writes the answers into its log: so it goes on while the API
    /// server, by which everybody else talks to pods, is away.
    pub fn asker(&self, every: std::time::Duration, urls: &[&str]) -> String {
        let command = format!(
            "[/toolbox, ask, -n, \"100000\", -timeout, 10s, -every, {}ms, {}]",
            every.as_millis(),
            urls.iter().map(|url| format!("\"{url}\"")).collect::<Vec<_>>().join(", ")
        );
        let manifest = self.manifest();
        let serves = "[/toolbox, serve, -http, \":8080\", -tcp, \":9000\", -grpc, \":9001\", -tls, \":9443\", -authorize, \":9191\"]\n    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}";
        debug_assert!(manifest.contains(serves));
        manifest.replace(serves, &command)
    }

    /// A Service for it, or a headless one, with ports `http`, `tcp` and `grpc`.
    pub fn service(&self, name: &str, headless: bool) -> String {
        let address = if headless { "\n  clusterIP: None" } else { "" };
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: \"{app}\"}}{address}
  ports:
  - {{name: http, port: 8080}}
  - {{name: tcp, port: 9000}}
  - {{name: grpc, port: 9001}}
",
            app = self.name,
        )
    }
}

impl Namespace {
    /// Makes pods and waits until they are ready.
    ///
    /// # Errors
    ///
    /// If the cluster refuses them, or they don't become ready.
    pub fn start(&self, pods: &[Pod]) -> Result<(), Error> {
        self.apply(&pods.iter().map(Pod::manifest).collect::<String>())?;
        let names: Vec<_> = pods.iter().map(|pod| format!("pod/{}", pod.name)).collect();
        self.wait("condition=Ready", &names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A pod's addresses.
    ///
    /// # Errors
    ///
    /// As [`crate::Kubectl::run`].
    pub fn addresses(&self, pod: &str) -> Result<Vec<String>, Error> {
        let pod = self.kubectl().json(&["get", "pod", pod, "--namespace", self.name()])?;
        let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
        Ok(addresses.filter_map(|address| Some(address["ip"].as_str()?.to_owned())).collect())
    }

    /// What a pod that asks by itself ([`Pod::asker`]) has been answered since its program started.
    ///
    /// # Errors
    ///
    /// As [`crate::Kubectl::run`].
    pub fn answers(&self, pod: &str) -> Result<Vec<Answer>, Error> {
        Ok(read(&self.kubectl().run(&["logs", pod, "--namespace", self.name()])?))
    }

    /// Asks from inside a pod, once each (`http://`, `tcp://` or `grpc://`).
    ///
    /// # Errors
    ///
    /// If the pod can't be asked to ask. That an answer stays out is an [`Answer`].
    pub fn ask(&self, pod: &str, urls: &[String]) -> Result<Vec<Answer>, Error> {
        self.ask_with(pod, &[], urls)
    }

    /// As [`Namespace::ask`], with headers (`name: value`) in the HTTP requests.
    ///
    /// # Errors
    ///
    /// As [`Namespace::ask`].
    pub fn ask_with(&self, pod: &str, headers: &[&str], urls: &[String]) -> Result<Vec<Answer>, Error> {
        let options: Vec<_> = headers.iter().flat_map(|header| ["-header", header]).collect();
        self.ask_by(pod, &options, urls)
    }

    /// As [`Namespace::ask`], with more options of the toolbox.
    ///
    /// # Errors
    ///
    /// As [`Namespace::ask`].
    pub fn ask_by(&self, pod: &str, options: &[&str], urls: &[String]) -> Result<Vec<Answer>, Error> {
        let mut arguments = vec!["exec", "--namespace", self.name(), pod, "--", "/toolbox", "ask"];
        arguments.extend(options);
        arguments.extend(urls.iter().map(String::as_str));
        let output = self.kubectl().output(&arguments)?;
        let answers = read(&String::from_utf8_lossy(&output.stdout));
        if answers.len() == urls.len() {
            return Ok(answers);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Kubectl { arguments: arguments.join(" "), said })
    }
}

/// Reads what a toolbox that asks has printed.
pub fn read(text: &str) -> Vec<Answer> {
    let answer = |line: &str| {
        let mut fields = line.splitn(4, ' ');
        let (verdict, url, _took) = (fields.next()?, fields.next()?, fields.next()?);
        let said = fields.next().unwrap_or_default().to_owned();
        let outcome = match verdict {
            "ok" => Ok(said),
            "failed" => Err(said),
            _ => return None,
        };
        Some(Answer { url: url.to_owned(), outcome })
    };
    text.lines().filter_map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_failures() {
        let text =
            "ok http://a:8080 1.2ms 200 server sees 10.0.0.1:4\nfailed tcp://b:9000 5s dial tcp: i/o timeout\nnoise\n";
        let answers = read(text);
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0].outcome, Ok("200 server sees 10.0.0.1:4".to_owned()));
        assert_eq!(answers[1].outcome, Err("dial tcp: i/o timeout".to_owned()));
    }
}
