//! How much longer a pod's start takes in the mesh.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_e2e::{Namespace, Pod};

use crate::mesh::{AMBIENT, Stand};
use crate::stand;

/// Pods of each kind.
const PAIRS: usize = 8;
/// On a machine that does nothing else it is less than 100 ms.
const QUIET: Duration = Duration::from_millis(500);

/// Pods in the mesh and others are made in turn, on one node. Their program says when it starts.
pub(crate) fn beside_others(stand: &Stand) {
    let (here, _) = stand::two_nodes(&stand.cluster);
    let namespaces = [("e2e-start-in", &[AMBIENT][..]), ("e2e-start-out", &[])]
        .map(|(name, labels)| Namespace::new(&stand.cluster, name, labels).unwrap());
    let mut times = [Vec::new(), Vec::new()];
    // The first of each is not counted: it waits for the namespace's service account.
    for round in 0..=PAIRS {
        for (namespace, times) in namespaces.iter().zip(&mut times) {
            let time = start(namespace, &Pod::new(&format!("pod-{round}"), &here));
            times.extend((round > 0).then_some(time));
        }
    }
    let [inside, outside] = times.map(median);
    let delay = inside.saturating_sub(outside);
    eprintln!(
        "from the request to the program's start: {} ms in the mesh, {} ms outside: {} ms more (medians of {PAIRS})",
        inside.as_millis(),
        outside.as_millis(),
        delay.as_millis()
    );
    assert!(delay < QUIET || !stand::is_measured(), "the mesh delays a pod's start by {delay:?}");
    // What would cost seconds: an agent that has to be asked twice.
    for namespace in &namespaces {
        let failed = ["get", "events", "--field-selector", "reason=FailedCreatePodSandBox", "-n", namespace.name()];
        let events = namespace.kubectl().json(&failed).unwrap();
        assert_eq!(events["items"].as_array().map(Vec::len), Some(0), "pods were refused at first: {events}");
    }
}

/// From the request to the first line of the pod's program.
fn start(namespace: &Namespace, pod: &Pod) -> Duration {
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    namespace.start(std::slice::from_ref(pod)).unwrap();
    let said = namespace.kubectl().run(&["logs", &pod.name, "--namespace", namespace.name()]).unwrap();
    let started = said.lines().find_map(|line| line.strip_prefix("started ")).unwrap().parse().unwrap();
    Duration::from_nanos(started).saturating_sub(begin)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
