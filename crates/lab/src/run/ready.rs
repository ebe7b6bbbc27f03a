//! Waiting for a subject to be what it must be before anything is measured, and no longer than there is hope.

use std::time::{Duration, Instant};

use leno_local::{Listing, NodeListing, PodListing, Stage};

use crate::floor::READINESS_PORT;
use crate::subject::Subject;

/// How long a stage may take until all of its pods answer.
const READY: Duration = Duration::from_secs(90);
/// How long nothing may get any further meanwhile: proxies come up in a second, and pods one after the other.
const STALLED: Duration = Duration::from_secs(20);
/// A proxy that died this often before it was ready will not live.
const HOPELESS: u32 = 3;

/// Waits until every proxy and every pod is ready.
///
/// # Errors
/// In words: what is not, and what was waited for.
pub(super) async fn wait(stage: &Stage, subject: &Subject) -> Result<(), String> {
    let mut listing = stage.watch_listing();
    let begun = Instant::now();
    let (mut most, mut since) = (0, begun);
    loop {
        let now = listing.borrow_and_update().clone();
        if now.is_ready() {
            return Ok(());
        }
        // Waiting longer for a program that can't live would change nothing.
        if let Some(node) = now.nodes.iter().find(|node| node.restarts >= HOPELESS) {
            let reason = without_log(&node.message, stage);
            return Err(format!("the proxy of {} does not live, {HOPELESS} times in a row: {reason}", node.name));
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

/// How many are ready, if that is more than there were.
fn further(now: &Listing, most: usize) -> Option<usize> {
    let nodes = now.nodes.iter().filter(|node| node.ready).count();
    let number = nodes + now.pods.iter().filter(|pod| pod.is_settled()).count();
    (number > most).then_some(number)
}

/// What was waited for in vain.
fn missing(now: &Listing, subject: &Subject, waited: Duration) -> String {
    let waited = waited.as_secs();
    let silent: Vec<_> = now.nodes.iter().filter(|node| !node.ready).map(|node| silence(node, subject)).collect();
    if !silent.is_empty() {
        return format!("not ready after {waited} s: {}", silent.join("; "));
    }
    let lacking: Vec<&PodListing> = now.pods.iter().filter(|pod| !pod.is_settled()).collect();
    let outside = lacking.iter().filter(|pod| pod.ready && pod.wants_mesh && !pod.in_mesh).count();
    let hint = if outside > 0 {
        "; its proxies say that they are ready, and have not taken over these pods from the node agent"
    } else {
        ""
    };
    format!("not ready after {waited} s: {}{hint}", now.missing())
}

fn silence(node: &NodeListing, subject: &Subject) -> String {
    let (name, message) = (&node.name, &node.message);
    let Some(pid) = node.pid else { return format!("the proxy of {name}: {message}") };
    let doubt = match subject.program() {
        Some(program) => format!(" (is {} really {}?)", program.display(), subject.kind()),
        None => String::new(),
    };
    format!(
        "the proxy of {name} runs (pid {pid}), and does not say that it is ready, which is to answer \
         http://127.0.0.1:{READINESS_PORT}/healthz/ready in its node's network with 200{doubt}"
    )
}

/// A log that goes with the stage is no use to anybody afterwards: its end is in the error instead.
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
    fn only_what_gets_further_is_hope() {
        let mut now = listing();
        assert_eq!(further(&now, 0), None);
        now.nodes[0].ready = true;
        assert_eq!(further(&now, 0), Some(1));
        assert_eq!(further(&now, 1), None);
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
    }
}
