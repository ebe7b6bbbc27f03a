//! What the parts of an installation say themselves, at the ports of their own: agents whether they can capture pods, control
//! planes whether the proxies follow and how long certificates last.

use std::sync::Arc;
use std::time::Duration;

use leno_kubernetes::{Client, Error, PodPage};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::nodes::seconds;
use super::{Finding, Outcome};

const CATEGORY: &str = "parts";

/// The pods of all waypoints.
const WAYPOINTS: &str = "/api/v1/pods?labelSelector=gateway.istio.io%2Fmanaged%3Dleno.mesh-waypoint-controller";

/// Ports of the parts' pages.
const AGENT: u16 = 15014;
const ADMIN: u16 = 15000;
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;

/// How many are asked at a time.
const AT_ONCE: usize = 16;

/// How long proxies may take to follow a change before they count as out of sync, and how often it is looked meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(500);

/// An authority's certificate that ends sooner than this needs a successor: a new root is announced for a day and more where a
/// ztunnel is connected, and people need time.
const ENDS_SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// With less than this left, certificates of workloads end earlier than they were asked for.
const ENDS_NOW: Duration = Duration::from_secs(24 * 3600);

/// A pod of one of the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    role: String,
    pod: String,
    node: String,
    /// Since when it is ready, in RFC 3339; `None` if it is not.
    ready_since: Option<String>,
}

pub(super) async fn all(client: &Client, namespace: &str) -> Vec<Finding> {
    within(PATIENCE, client, namespace).await
}

/// As [`all`]; proxies that are behind have this long to follow.
async fn within(patience: Duration, client: &Client, namespace: &str) -> Vec<Finding> {
    let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/part-of%3Dleno");
    let parts = match client.get::<Value>(&path).await {
        Ok(list) => running(&list),
        Err(error) => return vec![Finding::ok(CATEGORY, "its parts can be asked").unknown(&error)],
    };
    let of = |role: &str| -> Vec<Part> { parts.iter().filter(|part| part.role == role).cloned().collect() };
    let asking = Asking { client, namespace, patience };
    let mut findings = Vec::new();
    let not_ready = [("leno-agent", AGENT), ("leno-node", READINESS), ("leno-control", READINESS)];
    for (role, port) in not_ready {
        // Of none, nothing can be said; that there is none is the installation's finding.
        if of(role).is_empty() {
            continue;
        }
        let unready: Vec<_> = of(role).into_iter().filter(|part| part.ready_since.is_none()).collect();
        findings.push(ready(role, &asking.all(&unready, port, "/healthz/ready").await));
    }
    let agents = asking.all(&of("leno-agent"), AGENT, "/metrics").await;
    if !agents.is_empty() {
        findings.push(match client.get::<Value>("/api/v1/pods?fieldSelector=status.phase%3DRunning").await {
            Ok(pods) => chained(&agents, &pods),
            Err(error) => Finding::ok(CATEGORY, CHAINED).unknown(&error),
        });
    }
    // They follow the same control planes.
    let waypoints = match client.get::<Value>(WAYPOINTS).await {
        Ok(list) => running(&list).len(),
        Err(_) => 0,
    };
    findings.extend(asking.control_planes(&of("leno-control"), of("leno-node").len() + waypoints).await);
    findings.extend(asking.untold(&of("leno-node")).await);
    findings
}

fn running(list: &Value) -> Vec<Part> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = list["items"].as_array().into_iter().flatten();
    let running =
        pods.filter(|pod| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null());
    let part = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|one| one["type"] == "Ready" && one["status"] == "True");
        Part {
            role: text(&pod["metadata"]["labels"]["app.kubernetes.io/name"]),
            pod: text(&pod["metadata"]["name"]),
            node: text(&pod["spec"]["nodeName"]),
            ready_since: ready.next().map(|one| text(&one["lastTransitionTime"])),
        }
    };
    running.map(part).collect()
}

/// A part's answer.
type Answer = (Part, Result<PodPage, Arc<Error>>);

struct Asking<'a> {
    client: &'a Client,
    namespace: &'a str,
    patience: Duration,
}

impl Asking<'_> {
    /// Asks each for a page. The answers are in the order of the parts.
    async fn all(&self, parts: &[Part], port: u16, path: &'static str) -> Vec<Answer> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut asking = JoinSet::new();
        for (index, part) in parts.iter().cloned().enumerate() {
            let (client, namespace, places) = (self.client.clone(), self.namespace.to_owned(), places.clone());
            asking.spawn(async move {
                // It is never closed.
                let _place = places.acquire().await;
                let page = client.page(&namespace, &part.pod, port, path).await.map_err(Arc::new);
                (index, (part, page))
            });
        }
        let mut answers = asking.join_all().await;
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Whether the proxies follow, and how long the authority lasts.
    async fn control_planes(&self, planes: &[Part], proxies: usize) -> Vec<Finding> {
        if planes.is_empty() {
            return Vec::new();
        }
        let end = tokio::time::Instant::now() + self.patience;
        loop {
            let answers = self.all(planes, METRICS, "/metrics").await;
            let in_sync = in_sync(&answers, proxies);
            // A change may be on its way right now.
            if in_sync.outcome == Outcome::Ok || tokio::time::Instant::now() >= end {
                return vec![in_sync, lasting(&answers)];
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Asking<'_> {
    /// Whether the proxies know the pods that they were handed. A pod that starts while no control plane answers is unknown.
    async fn untold(&self, proxies: &[Part]) -> Option<Finding> {
        let end = tokio::time::Instant::now() + self.patience;
        loop {
            let finding = untold(&self.all(proxies, ADMIN, "/status").await)?;
            // A pod that has just started is told of in a moment.
            if finding.outcome == Outcome::Ok || tokio::time::Instant::now() >= end {
                return Some(finding);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Which pods proxies carry that no control plane has told them of; `None` if no proxy tells, as a ztunnel doesn't.
fn untold(proxies: &[Answer]) -> Option<Finding> {
    let check = Finding::ok(CATEGORY, "every proxy has been told of its pods");
    let mut found = Vec::new();
    let mut asked = false;
    for (part, answer) in proxies {
        let Ok(page) = answer else { continue };
        let Ok(told) = serde_json::from_str::<Value>(&page.body) else { continue };
        let Some(pods) = told["untoldPods"].as_array() else { continue };
        asked = true;
        if !pods.is_empty() {
            let pods: Vec<_> = pods.iter().filter_map(Value::as_str).collect();
            let away = if told["controlPlane"]["connected"] == false { "has no control plane and " } else { "" };
            found.push(format!("{} on {} {away}does not know {}", part.pod, part.node, pods.join(", ")));
        }
    }
    let hint = "nobody is let in to these pods, and what they open is refused too, but for pods whose service account has another pod on \
                the node: bring the control plane back (`leno logs control` and `kubectl get deployment leno-control` show more); \
                then they work without a restart";
    asked.then(|| check.unless(&found, Outcome::Failed, hint))
}

/// Why a part can't be asked, as a finding.
fn unasked(check: Finding, answers: &[Answer]) -> Option<Finding> {
    let error = answers.iter().find_map(|(_, answer)| answer.as_ref().err())?;
    Some(check.unknown(error))
}

/// Each that is not ready says what it waits for, and what to do.
fn ready(role: &str, unready: &[Answer]) -> Finding {
    let check = Finding::ok(CATEGORY, format!("every {role} is ready"));
    let mut waiting = Vec::new();
    let mut unknown = None;
    for (part, answer) in unready {
        match answer {
            Ok(page) => {
                let reasons: Vec<_> = page.body.lines().filter_map(|line| line.strip_prefix("- ")).collect();
                if !reasons.is_empty() {
                    waiting.push(format!("{} on {}: {}", part.pod, part.node, reasons.join("; ")));
                }
            }
            Err(error) => unknown = Some(error),
        }
    }
    match unknown {
        Some(error) if waiting.is_empty() => check.unknown(error),
        _ => check.unless(&waiting, Outcome::Failed, hint(&waiting.join(" "))),
    }
}

fn hint(said: &str) -> &'static str {
    if said.contains("does not exist") || said.contains("which is not in") {
        return "name this cluster's directories with --set agent.cniBinDir=… and --set agent.cniConfDir=… (k3s, MicroK8s and \
                others have their own), and run `leno upgrade`";
    }
    if said.contains("no CNI configuration") {
        return "install a network plugin first, or name the directory where this cluster's is with --set agent.cniConfDir=…";
    }
    if said.contains("read-write") || said.contains("Read-only file system") {
        return "the node's CNI directories must be writable: remount them, or name ones that are with --set agent.cniBinDir=… \
                and --set agent.cniConfDir=…";
    }
    if said.contains("no plugin can be added") {
        return "the first file of the node's CNI directory must be a list of plugins (.conflist): let the network plugin write \
                one, and remove what an earlier plugin left";
    }
    if said.contains("forbidden") || said.contains("may not") {
        return "something has changed its rights: `leno upgrade` restores them";
    }
    "follow the words of the part; `leno logs` shows what led to it"
}

const CHAINED: &str = "the network plugin runs the plugins that are chained to it";

/// A primary plugin that runs no others never lets ours know of a pod. Then pods are captured only after they have started.
fn chained(agents: &[Answer], pods: &Value) -> Finding {
    let check = Finding::ok(CATEGORY, CHAINED);
    let mut ignored = Vec::new();
    for (agent, answer) in agents {
        let Ok(page) = answer else { continue };
        let since = agent.ready_since.as_deref().and_then(seconds);
        let Some(since) = since else { continue };
        let asked = total(&page.body, "leno_agent_cni_requests_total", "command=\"add\"");
        // Seconds are the finest that objects tell.
        let later = started_after(pods, &agent.node, since + Duration::from_secs(2));
        if asked == 0.0 && later > 0 {
            ignored.push(format!(
                "{}: {later} pods started since its agent was ready, and it was asked for none",
                agent.node
            ));
        }
    }
    if ignored.is_empty()
        && let Some(unknown) = unasked(check.clone(), agents)
    {
        return unknown;
    }
    let hint = "let it run chained plugins and leave other configurations alone (Cilium: cni.exclusive=false; others: whatever \
                writes another file than a .conflist); until then, pods are in the clear for a moment when they start";
    check.unless(&ignored, Outcome::Failed, hint)
}

/// How many pods with a network of their own were started on a node after `since`.
fn started_after(pods: &Value, node: &str, since: Duration) -> usize {
    let pods = pods["items"].as_array().into_iter().flatten();
    let of_node = pods.filter(|pod| pod["spec"]["nodeName"] == node && pod["spec"]["hostNetwork"] != true);
    of_node
        .filter(|pod| pod["status"]["startTime"].as_str().and_then(seconds).is_some_and(|start| start > since))
        .count()
}

fn in_sync(planes: &[Answer], proxies: usize) -> Finding {
    let check = Finding::ok(CATEGORY, "every proxy is connected and follows the control plane");
    if let Some(unknown) = unasked(check.clone(), planes) {
        return unknown;
    }
    let sum = |name: &str| -> f64 {
        planes.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(|page| total(&page.body, name, "")).sum()
    };
    let (connected, behind, refused) = (sum("pilot_xds"), sum("leno_proxies_behind"), sum("pilot_total_xds_rejects"));
    let mut found = Vec::new();
    if connected < proxies as f64 {
        found.push(format!("{connected} of {proxies} proxies are connected"));
    }
    if behind > 0.0 {
        found.push(format!("{behind} have not accepted the latest version of the mesh"));
        if refused > 0.0 {
            found.push(format!("{refused} times one has refused a part of it"));
        }
    }
    let hint = "`leno logs` shows what a proxy can't reach or refuses; `leno config all NODE` what it believes. One that stays \
                behind starts anew with `kubectl delete pod`, and no connection is lost by that";
    check.unless(&found, Outcome::Failed, hint)
}

fn lasting(planes: &[Answer]) -> Finding {
    let check = Finding::ok(CATEGORY, "the authority's certificates last for 30 days and more");
    if let Some(unknown) = unasked(check.clone(), planes) {
        return unknown;
    }
    let mut found = Vec::new();
    let mut outcome = Outcome::Warning;
    let names = [
        ("the root", "citadel_server_root_cert_expiry_seconds"),
        ("the certificate that signs", "citadel_server_cert_chain_expiry_seconds"),
    ];
    for (what, name) in names {
        let pages = planes.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let Some(left) = pages.filter_map(|page| sample(&page.body, name)).reduce(f64::min) else { continue };
        if left < ENDS_SOON.as_secs_f64() {
            let days = (left / 86400.0).floor();
            found.push(if left > 0.0 { format!("{what} ends in {days} days") } else { format!("{what} has ended") });
        }
        if left < ENDS_NOW.as_secs_f64() {
            outcome = Outcome::Failed;
        }
    }
    let hint = "put another authority into the Secret that this one came from (leno-ca, or your own cacerts): \
                docs/operating.md, \"Another root, while everything runs\"";
    check.unless(&found, outcome, hint)
}

/// The sum of the samples of a metric that have these words among their labels.
fn total(page: &str, name: &str, labels: &str) -> f64 {
    lines(page, name).filter(|(found, _)| found.contains(labels)).map(|(_, value)| value).sum()
}

/// The first sample of a metric.
fn sample(page: &str, name: &str) -> Option<f64> {
    lines(page, name).next().map(|(_, value)| value)
}

/// Labels and value of each sample of a metric.
fn lines<'p>(page: &'p str, name: &'p str) -> impl Iterator<Item = (&'p str, f64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        let (labels, value) = rest.rsplit_once(' ')?;
        Some((labels, value.parse().ok()?))
    })
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
