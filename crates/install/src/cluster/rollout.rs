//! Whether everything of an installation runs, and why not.

use leno_kubernetes::Client;
use serde::Serialize;
use serde_json::Value;

use super::ClusterError;
use super::requests::list;

/// How far one Deployment or DaemonSet is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Rollout {
    /// Its name.
    pub name: String,
    /// Pods that it should have.
    pub wanted: u64,
    /// Pods of its latest version that are ready.
    pub ready: u64,
    /// Whether nothing of an earlier version is left, and all are ready.
    pub done: bool,
    /// Why one of its pods is not ready, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// The version of Leno, as its label says it.
    pub version: String,
}

/// Those of the installation in a namespace.
///
/// # Errors
///
/// If the API server can't tell.
pub async fn rollouts(client: &Client, namespace: &str) -> Result<Vec<Rollout>, ClusterError> {
    let of = |plural: &str| {
        format!("/apis/apps/v1/namespaces/{namespace}/{plural}?labelSelector=app.kubernetes.io/part-of%3Dleno")
    };
    let mut rollouts: Vec<_> = list(client, &of("deployments")).await?.iter().map(deployment).collect();
    rollouts.extend(list(client, &of("daemonsets")).await?.iter().map(daemon_set));
    if rollouts.iter().any(|rollout| !rollout.done) {
        let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/part-of%3Dleno");
        let pods = list(client, &path).await?;
        for rollout in rollouts.iter_mut().filter(|rollout| !rollout.done) {
            let own = || pods.iter().filter(|pod| is_of(pod, &rollout.name));
            // One that goes says little about the one that is to come.
            let (going, staying): (Vec<_>, Vec<_>) = own().partition(|pod| drains(pod).is_some());
            let troubled = staying.into_iter().chain(going).find_map(|pod| Some((pod, trouble(pod)?)));
            let Some((pod, mut trouble)) = troubled else { continue };
            if trouble.ends_with(STARTING)
                && let Some(event) = event(client, namespace, pod).await
            {
                trouble = format!("{trouble}: {event}");
            }
            rollout.because = Some(trouble);
        }
    }
    Ok(rollouts)
}

/// What is said of a pod whose state says nothing.
const STARTING: &str = "is being started";

/// What the kubelet says of a pod that does not start, or is busy with. Whoever may not read events is told less.
async fn event(client: &Client, namespace: &str, pod: &Value) -> Option<String> {
    let name = pod["metadata"]["name"].as_str()?;
    let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{name}");
    latest(&list(client, &path).await.ok()?, name)
}

/// The latest warning, or else that its image is being fetched.
fn latest(events: &[Value], pod: &str) -> Option<String> {
    let of_pod = || events.iter().filter(|event| event["involvedObject"]["name"] == pod);
    let time = |event: &&Value| {
        let times = ["lastTimestamp", "eventTime"].map(|field| event[field].as_str().unwrap_or_default().to_owned());
        times.into_iter().max()
    };
    let warning = of_pod().filter(|event| event["type"] == "Warning").max_by_key(time);
    let event = warning.or_else(|| of_pod().max_by_key(time).filter(|event| event["reason"] == "Pulling"))?;
    Some(event["message"].as_str()?.lines().next()?.to_owned())
}

fn is_of(pod: &Value, name: &str) -> bool {
    pod["metadata"]["labels"]["app.kubernetes.io/name"] == name
}

fn deployment(object: &Value) -> Rollout {
    let status = |field: &str| object["status"][field].as_u64().unwrap_or(0);
    let wanted = object["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = status("availableReplicas").min(status("updatedReplicas"));
    let done = is_observed(object) && ready >= wanted && status("replicas") == wanted;
    rollout(object, [wanted, ready], done)
}

fn daemon_set(object: &Value) -> Rollout {
    let status = |field: &str| object["status"][field].as_u64().unwrap_or(0);
    let wanted = status("desiredNumberScheduled");
    let ready = status("numberAvailable").min(status("updatedNumberScheduled"));
    let done = is_observed(object) && ready >= wanted && status("numberUnavailable") == 0;
    rollout(object, [wanted, ready], done)
}

/// Whether the status is about what the object says now.
fn is_observed(object: &Value) -> bool {
    let observed = object["status"]["observedGeneration"].as_i64();
    observed.is_some() && observed >= object["metadata"]["generation"].as_i64()
}

fn rollout(object: &Value, [wanted, ready]: [u64; 2], done: bool) -> Rollout {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["metadata"]["labels"]["app.kubernetes.io/version"]);
    Rollout { name: text(&object["metadata"]["name"]), wanted, ready, done, because: None, version }
}

/// What keeps a pod from being ready.
fn trouble(pod: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let name = text(&pod["metadata"]["name"])?;
    let place = text(&pod["spec"]["nodeName"]).map(|node| format!(" on {node}")).unwrap_or_default();
    let with = |reason: Option<String>, message: Option<String>| {
        let words: Vec<_> = [reason, message].into_iter().flatten().collect();
        (!words.is_empty()).then(|| format!("{name}{place}: {}", words.join(": ")))
    };
    if let Some(drains) = drains(pod) {
        return with(Some(drains), None);
    }
    let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    for container in containers {
        let waiting = &container["state"]["waiting"];
        // That it is being made is no trouble.
        if waiting.is_object() && waiting["reason"] != "ContainerCreating" {
            let last = last_words(&container["lastState"]["terminated"]);
            return with(text(&waiting["reason"]), last.or_else(|| text(&waiting["message"])));
        }
        let ended = &container["state"]["terminated"];
        if ended.is_object() {
            if let Some(last) = last_words(ended) {
                return with(Some(format!("ended with {}", ended["exitCode"])), Some(last));
            }
            let message = format!(
                "ended with {}; see `kubectl logs -n {} {name}`",
                ended["exitCode"],
                text(&pod["metadata"]["namespace"])?
            );
            return with(Some(message), None);
        }
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let unscheduled =
        conditions.clone().find(|condition| condition["type"] == "PodScheduled" && condition["status"] == "False");
    if let Some(condition) = unscheduled {
        return with(text(&condition["reason"]), text(&condition["message"]));
    }
    let is_true =
        |name: &str| conditions.clone().any(|condition| condition["type"] == name && condition["status"] == "True");
    if is_true("Ready") {
        return None;
    }
    let running = pod["status"]["phase"] == "Running";
    with(Some(if running { "runs and is not ready yet" } else { STARTING }.to_owned()), None)
}

/// What is said of a pod that is going: its program lets live connections end, for as long as it may.
fn drains(pod: &Value) -> Option<String> {
    let latest = pod["metadata"]["deletionTimestamp"].as_str()?;
    let mut containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten().peekable();
    let has_ended = containers.peek().is_some() && containers.all(|it| it["state"]["terminated"].is_object());
    Some(match has_ended {
        true => "has ended and is being removed".to_owned(),
        false => format!("lets its connections end, and ends itself at {latest} at the latest"),
    })
}

/// What a container wrote last before it ended: its error and the causes, or else its last line.
fn last_words(terminated: &Value) -> Option<String> {
    let message = terminated["message"].as_str()?;
    let lines: Vec<_> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let begin = lines.iter().rposition(|line| line.contains("error: ")).or(lines.len().checked_sub(1))?;
    Some(lines[begin..].join("; "))
}

#[cfg(test)]
#[path = "rollout_tests.rs"]
mod tests;
