//! Waits for a subject to be ready for the measurement, and gives up early if it can't become ready.

use std::path::Path;
use std::time::{Duration, Instant};

use leno_local::{Listing, NodeListing, PodListing, Stage};
use leno_model::ports;

use crate::subject::Subject;

/// The limit until all pods of a stage answer.
const READY: Duration = Duration::from_secs(90);
/// The limit without any progress. Proxies start in a second, and pods one after the other.
const STALLED: Duration = Duration::from_secs(20);
/// If many pods wait for the same thing, this many of them are named.
const PODS_SAID: usize = 2;
/// A proxy that died this often before it was ready is given up.
const HOPELESS: u32 = 3;

/// Waits until every proxy and every pod is ready.
///
/// # Errors
/// If it does not get ready: what is not ready, and what it waited for, as a text.
pub(super) async fn wait(stage: &Stage, subject: &Subject) -> Result<(), String> {
    let mut listing = stage.watch_listing();
    let begun = Instant::now();
    let (mut most, mut since) = (0, begun);
    loop {
        let now = listing.borrow_and_update().clone();
        if now.is_ready() {
            return Ok(());
        }
        // More waiting would not help a program that dies at once.
        if let Some(node) = now.nodes.iter().find(|node| node.restarts >= HOPELESS) {
            let (name, reason) = (&node.name, without_log(&node.message, stage));
            let doubt = doubt(subject);
            return Err(format!("the proxy of {name} does not live, {HOPELESS} times in a row: {reason}{doubt}"));
        }
        if let Some(number) = further(&now, most) {
            (most, since) = (number, Instant::now());
        }
        let patience = STALLED.saturating_sub(since.elapsed()).min(READY.saturating_sub(begun.elapsed()));
        match tokio::time::timeout(patience, listing.changed()).await {
            Ok(Ok(())) if !patience.is_zero() => {}
            Ok(Err(_)) => return Err("the stage has ended".to_owned()),
            _ => return Err(without_log(&missing(&now, subject, begun.elapsed()), stage)),
        }
    }
}

/// Waits until a proxy dies, and returns that as a text. What is measured after that is not the subject any more.
pub(super) async fn death(stage: &Stage) -> String {
    let mut listing = stage.watch_listing();
    let before = listing.borrow_and_update().clone();
    loop {
        if listing.changed().await.is_err() {
            return "the stage has ended".to_owned();
        }
        if let Some(node) = died(&before, &listing.borrow_and_update()) {
            let why = if node.message.is_empty() {
                String::new()
            } else {
                format!(": {}", without_log(&node.message, stage))
            };
            return format!("the proxy of {} died while it was measured{why}", node.name);
        }
    }
}

fn died<'a>(before: &Listing, now: &'a Listing) -> Option<&'a NodeListing> {
    let died =
        |node: &NodeListing| before.nodes.iter().any(|then| then.name == node.name && then.restarts < node.restarts);
    now.nodes.iter().find(|node| died(node))
}

/// The number of ready ones, if it has grown.
fn further(now: &Listing, most: usize) -> Option<usize> {
    let nodes = now.nodes.iter().filter(|node| node.ready).count();
    let number = nodes + now.pods.iter().filter(|pod| pod.is_settled()).count();
    (number > most).then_some(number)
}

/// What the subject waited for.
fn missing(now: &Listing, subject: &Subject, waited: Duration) -> String {
    let waited = waited.as_secs();
    let (silent, dead): (Vec<_>, Vec<_>) =
        now.nodes.iter().filter(|node| !node.ready).partition(|node| node.pid.is_some());
    let mut lacks: Vec<String> =
        dead.iter().map(|node| format!("the proxy of {}: {}", node.name, node.message)).collect();
    if !silent.is_empty() {
        let of = |node: &&NodeListing| format!("{} (pid {})", node.name, node.pid.unwrap_or_default());
        lacks.push(format!(
            "no answer that it is ready from the proxy of {}, which runs: that would be 200 from \
             http://127.0.0.1:{}/healthz/ready in its node's network{}",
            silent.iter().map(of).collect::<Vec<_>>().join(" and "),
            ports::READINESS,
            doubt(subject)
        ));
    }
    if lacks.is_empty() {
        let pods: Vec<&PodListing> = now.pods.iter().filter(|pod| !pod.is_settled()).collect();
        let said = |pod: &&PodListing| {
            let why = if pod.message.is_empty() { String::new() } else { format!(": {}", pod.message) };
            format!("pod {}/{} is {}{why}", pod.namespace, pod.name, pod.status)
        };
        lacks.extend(pods.iter().take(PODS_SAID).map(said));
        if let Some(more @ 1..) = pods.len().checked_sub(PODS_SAID) {
            lacks.push(format!("and {more} more pods"));
        }
    }
    format!("not ready after {waited} s: {}", lacks.join("; "))
}

/// The first thing to check is the path.
fn doubt(subject: &Subject) -> String {
    let question = |program: &Path| format!(" (is {} really {}?)", program.display(), subject.kind());
    subject.program().map(question).unwrap_or_default()
}

/// The log is removed with the stage, so the error contains its last lines.
pub(super) fn without_log(text: &str, stage: &Stage) -> String {
    let run_dir = stage.run_dir().display().to_string();
    let parts = text.split("; ").filter(|part| !(part.starts_with("its log is ") && part.contains(&run_dir)));
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        let node = NodeListing {
            name: "node-1".to_owned(),
            proxy: String::new(),
            ready: false,
            ips: Vec::new(),
            netns: String::new(),
            pid: Some(7),
            restarts: 0,
            message: String::new(),
        };
        Listing { nodes: vec![node], ..Listing::default() }
    }

    #[test]
    fn only_progress_extends_the_wait() {
        let mut now = listing();
        assert_eq!(further(&now, 0), None);
        now.nodes[0].ready = true;
        assert_eq!(further(&now, 0), Some(1));
        assert_eq!(further(&now, 1), None);
    }

    #[test]
    fn a_death_is_seen_in_the_count_of_restarts() {
        let (mut before, mut now) = (listing(), listing());
        assert_eq!(died(&before, &now), None);
        now.nodes[0].restarts = 2;
        assert_eq!(died(&before, &now).map(|node| &*node.name), Some("node-1"));
        before.nodes[0].restarts = 2;
        assert_eq!(died(&before, &now), None, "that was before it was ready");
    }

    #[test]
    fn what_was_waited_for_is_said() {
        let mut now = listing();
        let text = missing(&now, &Subject::Ztunnel("/opt/zt".into()), Duration::from_secs(21));
        for word in ["21 s", "node-1", "pid 7", "15021/healthz/ready", "is /opt/zt really"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        now.nodes[0].pid = None;
        now.nodes[0].message = "cannot start it".to_owned();
        assert!(missing(&now, &Subject::Floor, STALLED).contains("the proxy of node-1: cannot start it"));
        now.nodes[0].ready = true;
        let pod = |name: &str| PodListing {
            namespace: "lab".to_owned(),
            name: name.to_owned(),
            node: "node-1".to_owned(),
            ips: Vec::new(),
            in_mesh: false,
            ready: false,
            status: "Pending".to_owned(),
            restarts: 0,
            message: "no luck".to_owned(),
            wants_mesh: true,
            netns: String::new(),
            waypoint: false,
            gateway: String::new(),
            pid: None,
        };
        now.pods = ["a", "b"].map(pod).into();
        let text = missing(&now, &Subject::Floor, STALLED);
        assert!(text.ends_with("pod lab/a is Pending: no luck; pod lab/b is Pending: no luck"), "{text}");
        now.pods.extend(["c", "d"].map(pod));
        assert!(missing(&now, &Subject::Floor, STALLED).ends_with("no luck; and 2 more pods"));
    }
}
