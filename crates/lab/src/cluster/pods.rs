//! The lab's pods: made, awaited, and asked why they do not run.

use std::net::IpAddr;
use std::time::Duration;

use leno_kubernetes::Client;
use leno_objects::{DATAPLANE_MODE, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::nodes::HOSTNAME;
use super::space::{ACCOUNT, LAB, MANAGED_BY, NAMESPACE};
use crate::Error;
use crate::cluster_info::Node;
use crate::load::ServerSpec;

/// For a pod to run: its image may have to be fetched.
const RUNS: Duration = Duration::from_secs(120);
/// For the scheduler to find room; a cluster may be growing.
const SCHEDULED: Duration = Duration::from_secs(20);
const GONE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(200);

/// Pods of one turn.
pub(super) struct Pods<'a> {
    pub(super) client: &'a Client,
    pub(super) image: &'a str,
    /// Whether the mesh is to capture them.
    pub(super) in_mesh: bool,
    /// Seconds after which they are ended.
    pub(super) deadline: u64,
}

/// Why a pod does not run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// This does not go away by itself.
    Lasting(String),
    /// There may be room soon.
    NoRoom(String),
}

impl Pods<'_> {
    /// Makes a pod that runs this program with `arguments`; a server gets a readiness probe.
    pub(super) async fn start(
        &self,
        name: &str,
        node: &Node,
        arguments: &[&str],
        is_server: bool,
    ) -> Result<(), Error> {
        let pod = self.manifest(name, node, arguments, is_server);
        let made = self.client.create::<Value>(&collection(), &pod).await;
        made.map(drop).map_err(Error::cluster(format!("cannot make pod {name}")))
    }

    fn manifest(&self, name: &str, node: &Node, arguments: &[&str], is_server: bool) -> Value {
        let mode = if self.in_mesh { "ambient" } else { "none" };
        let mut container = json!({
            "name": "lab",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "args": arguments,
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        });
        if is_server {
            container["readinessProbe"] =
                json!({"tcpSocket": {"port": ServerSpec::default().http}, "periodSeconds": 1});
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {MANAGED_BY: LAB, DATAPLANE_MODE: mode}},
            "spec": {
                "nodeSelector": {HOSTNAME: node.hostname},
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": false,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": self.deadline,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
            },
        })
    }

    /// Waits until a server is ready, and captured if it is to be. Returns its address.
    pub(super) async fn ready(&self, name: &str) -> Result<IpAddr, Error> {
        let pod = self.until(name, RUNS, |pod| is_ready(pod) && self.is_as_wanted(pod)).await?;
        let address = pod["status"]["podIP"].as_str().and_then(|address| address.parse().ok());
        address.ok_or_else(|| Error::Unfit(format!("pod {name} has no address")))
    }

    /// Waits until a load has ended. Returns its log.
    pub(super) async fn log(&self, name: &str, patience: Duration) -> Result<String, Error> {
        let pod = self.until(name, patience, has_ended).await?;
        if !self.is_as_wanted(&pod) {
            return Err(Error::Unfit(self.capture_failed(name)));
        }
        let path = format!("{}/log?container=lab", path(name));
        let log =
            self.client.text(&path).await.map_err(Error::cluster(format!("cannot read the log of pod {name}")))?;
        if log.trim().is_empty() {
            return Err(Error::Unfit(format!("pod {name} ended without a word: {}", how_it_ended(&pod))));
        }
        Ok(log)
    }

    /// Removes all pods, and waits until they are gone.
    pub(super) async fn remove_all(&self) -> Result<(), Error> {
        let what = "cannot remove the lab's pods";
        self.client.delete(&collection()).await.map_err(Error::cluster(what))?;
        let begun = Instant::now();
        loop {
            let list: Value = self.client.get(&collection()).await.map_err(Error::cluster(what))?;
            let Some(pod) = list["items"].get(0) else { return Ok(()) };
            if begun.elapsed() > GONE {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                return Err(Error::Unfit(format!("{what}: {name} is still there after {} s", GONE.as_secs())));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether the mesh has captured a pod or not, as it should.
    pub(super) fn is_as_wanted(&self, pod: &Value) -> bool {
        let captured = pod["metadata"]["annotations"][REDIRECTION_ANNOTATION] == REDIRECTION_ENABLED;
        captured == self.in_mesh
    }

    fn capture_failed(&self, name: &str) -> String {
        if self.in_mesh {
            format!(
                "the mesh has not captured pod {name} (its annotation {REDIRECTION_ANNOTATION} is not {REDIRECTION_ENABLED}); \
                 `leno check` and the log of the node's agent show why"
            )
        } else {
            format!("the mesh has captured pod {name}, which has the label {DATAPLANE_MODE}=none")
        }
    }

    /// Waits until a pod is as wanted.
    async fn until(&self, name: &str, patience: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value, Error> {
        let begun = Instant::now();
        loop {
            let asked = self.client.get::<Value>(&path(name)).await;
            let pod = asked.map_err(Error::cluster(format!("cannot ask for pod {name}")))?;
            if wanted(&pod) {
                return Ok(pod);
            }
            let why = match trouble(&pod) {
                Some(Trouble::Lasting(why)) => Some(why),
                Some(Trouble::NoRoom(why)) if begun.elapsed() > SCHEDULED => Some(why),
                _ if begun.elapsed() > patience => {
                    let late = format!("it is not done after {} s", patience.as_secs());
                    let why = if is_ready(&pod) && !self.is_as_wanted(&pod) {
                        self.capture_failed(name)
                    } else {
                        self.last_event(name).await
                    };
                    Some(format!("{late}: {why}"))
                }
                _ => None,
            };
            if let Some(why) = why {
                let node = pod["spec"]["nodeSelector"][HOSTNAME].as_str().unwrap_or_default();
                return Err(Error::Unfit(format!("pod {name} of node {node} does not run: {why}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What the cluster said last of a pod.
    async fn last_event(&self, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name%3D{name}");
        let list = self.client.get::<Value>(&path).await.unwrap_or_default();
        let last = list["items"].as_array().and_then(|events| events.last()?["message"].as_str().map(str::to_owned));
        last.unwrap_or_else(|| format!("`kubectl -n {NAMESPACE} describe pod {name}` shows more"))
    }
}

fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

fn path(name: &str) -> String {
    format!("{}/{name}", collection())
}

pub(super) fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn how_it_ended(pod: &Value) -> String {
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let reason = ended["reason"].as_str().or(pod["status"]["reason"].as_str()).unwrap_or("no reason given");
    format!("{reason}, exit status {}", ended["exitCode"])
}

/// What keeps a pod from running.
pub(super) fn trouble(pod: &Value) -> Option<Trouble> {
    if has_ended(pod) {
        return Some(Trouble::Lasting(format!("it has ended ({})", how_it_ended(pod))));
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let unscheduled =
        conditions.into_iter().find(|condition| condition["type"] == "PodScheduled" && condition["status"] == "False");
    if let Some(condition) = unscheduled {
        let message = condition["message"].as_str().unwrap_or("no reason given");
        return Some(Trouble::NoRoom(format!("it can't be scheduled: {message}")));
    }
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let message = waiting["message"].as_str().unwrap_or_default();
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
    match waiting["reason"].as_str()? {
        reason @ ("ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName") => {
            Some(Trouble::Lasting(format!(
                "the node can't have the image {image} ({reason}: {message}); load it into every node, or name another one that \
                 has this version of leno with --image"
            )))
        }
        reason @ ("CreateContainerError" | "CreateContainerConfigError" | "RunContainerError" | "CrashLoopBackOff") => {
            Some(Trouble::Lasting(format!("{reason}: {message}")))
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
