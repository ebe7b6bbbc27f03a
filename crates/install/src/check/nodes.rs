//! What the mesh needs of nodes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_kubernetes::Client;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Finding, Outcome};

const CATEGORY: &str = "nodes";

/// The oldest kernel: nf_tables has everything that the rules use from then on.
const OLDEST_KERNEL: (u64, u64) = (5, 4);

/// Certificates allow for five minutes; half of that is a reason to look.
const SKEW_MAX: Duration = Duration::from_secs(150);

pub(super) async fn all(client: &Client) -> Vec<Finding> {
    let check = Finding::ok(CATEGORY, "nodes can be listed");
    let nodes = match client.get::<Value>("/api/v1/nodes").await {
        Ok(list) => list["items"].as_array().cloned().unwrap_or_default(),
        Err(error) => return vec![check.unknown(&error)],
    };
    let mut findings = vec![networked(&nodes), kernels(&nodes)];
    let leases = client.get::<Value>("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases").await;
    findings.push(match leases {
        Ok(list) => clocks(list["items"].as_array().map_or(&[][..], Vec::as_slice), SystemTime::now()),
        Err(error) => Finding::ok(CATEGORY, CLOCKS).unknown(&error),
    });
    findings
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// A node without a network plugin is not ready, and the kubelet says so.
pub(super) fn networked(nodes: &[Value]) -> Finding {
    let check = Finding::ok(CATEGORY, "every node has a network plugin and is ready");
    let mut unready = Vec::new();
    let mut without_plugin = false;
    for node in nodes {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        for condition in conditions.filter(|condition| condition["type"] == "Ready" && condition["status"] != "True") {
            let message = condition["message"].as_str().unwrap_or("it does not say why");
            without_plugin |= message.contains("cni") || message.contains("network plugin");
            unready.push(format!("{}: {message}", name(node)));
        }
    }
    let hint = if without_plugin {
        "install a network plugin such as Calico, Cilium, Flannel or kindnet first: Leno adds to one and does not replace it"
    } else {
        "`kubectl describe node` shows more; pods of that node are not brought into the mesh until it is ready"
    };
    check.unless(&unready, Outcome::Failed, hint)
}

pub(super) fn kernels(nodes: &[Value]) -> Finding {
    let check = Finding::ok(CATEGORY, format!("every kernel is {}.{} or newer", OLDEST_KERNEL.0, OLDEST_KERNEL.1));
    let old = nodes.iter().filter(|node| node["status"]["nodeInfo"]["operatingSystem"] == "linux").filter_map(|node| {
        let version = node["status"]["nodeInfo"]["kernelVersion"].as_str()?;
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u64>);
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        ((major, minor) < OLDEST_KERNEL).then(|| format!("{} has {version}", name(node)))
    });
    check.unless(
        &old.collect::<Vec<_>>(),
        Outcome::Failed,
        "upgrade these nodes, or keep the mesh from them with agent.nodeSelector",
    )
}

const CLOCKS: &str = "clocks agree";

/// Each kubelet writes its own time into its lease, every ten seconds.
pub(super) fn clocks(leases: &[Value], now: SystemTime) -> Finding {
    let check = Finding::ok(CATEGORY, CLOCKS);
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let off = leases.iter().filter_map(|lease| {
        let renewed = seconds(lease["spec"]["renewTime"].as_str()?)?;
        let (behind, ahead) = (now.checked_sub(renewed), renewed.checked_sub(now));
        let (by, word) = behind.map(|by| (by, "behind")).or(ahead.map(|by| (by, "ahead of")))?;
        (by > SKEW_MAX).then(|| format!("{} is {} s {word} this machine", name(lease), by.as_secs()))
    });
    let off: Vec<_> = off.collect();
    // That all nodes are off says that it is this machine's clock, or that none of them lives.
    let hint = if off.len() == leases.len() {
        "all nodes are: set this machine's clock (NTP), or look whether they live with `kubectl get nodes`"
    } else {
        "set these nodes' clocks (NTP), or look whether they live with `kubectl get nodes`; certificates allow for five minutes"
    };
    check.unless(&off, Outcome::Warning, hint)
}

/// Since 1970, of an RFC 3339 time as Kubernetes writes it: `2026-11-25T04:50:28.123456Z`.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp()).ok().map(Duration::from_secs)
}
