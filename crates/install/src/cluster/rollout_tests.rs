use serde_json::json;

use super::*;

#[test]
fn a_deployment_is_done_when_all_its_pods_are_new_and_available() {
    let object = |generation: i64, status: Value| json!({"metadata": {"name": "leno-control", "generation": generation}, "spec": {"replicas": 2}, "status": status});
    let all = json!({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
    assert!(deployment(&object(3, all.clone())).done);
    assert!(!deployment(&object(4, all)).done, "the status is about an earlier version");
    let old = json!({"observedGeneration": 3, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3});
    assert!(!deployment(&object(3, old)).done, "an old pod is left");
    let fresh = deployment(&object(1, json!({})));
    assert_eq!((fresh.done, fresh.wanted, fresh.ready), (false, 2, 0));
}

#[test]
fn a_daemon_set_is_done_when_each_node_has_the_new_one() {
    let object = |status: Value| json!({"metadata": {"name": "leno-node", "generation": 2}, "status": status});
    let all = json!({"observedGeneration": 2, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3});
    assert!(daemon_set(&object(all)).done);
    let half = json!({
        "observedGeneration": 2, "desiredNumberScheduled": 3, "updatedNumberScheduled": 1, "numberAvailable": 3
    });
    let half = daemon_set(&object(half));
    assert_eq!((half.done, half.wanted, half.ready), (false, 3, 1));
    assert!(!daemon_set(&object(json!({}))).done, "nobody has looked at it yet");
}

#[test]
fn what_is_wrong_with_a_pod_is_said() {
    let pod = |status: Value| {
        trouble(&json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "n1"}, "status": status}))
    };
    let waiting = json!({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}}}]});
    assert_eq!(pod(waiting).as_deref(), Some("p on n1: ErrImageNeverPull: no such image"));
    let ended = json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]});
    assert_eq!(pod(ended).as_deref(), Some("p on n1: ended with 1; see `kubectl logs -n n p`"));
    let crashed = json!({"containerStatuses": [{
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}},
        "lastState": {"terminated": {"exitCode": 1, "message": "starting\nerror: can't listen on port 15014\n  because: it is in use\n"}},
    }]});
    assert_eq!(
        pod(crashed).as_deref(),
        Some("p on n1: CrashLoopBackOff: error: can't listen on port 15014; because: it is in use")
    );
    let said =
        json!({"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "error: no root\n"}}}]});
    assert_eq!(pod(said).as_deref(), Some("p on n1: ended with 1: error: no root"));
    let unscheduled = json!({"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"},
    ]});
    assert_eq!(pod(unscheduled).as_deref(), Some("p on n1: Unschedulable: 0/3 nodes are available"));
    assert_eq!(pod(json!({"conditions": [{"type": "Ready", "status": "True"}]})), None);
    assert_eq!(pod(json!({"phase": "Running"})).as_deref(), Some("p on n1: runs and is not ready yet"));
}

#[test]
fn of_a_pod_that_drains_it_is_said_when_it_ends() {
    let pod = |status: Value| {
        trouble(&json!({
            "metadata": {"name": "p", "namespace": "n", "deletionTimestamp": "2026-11-26T10:05:00Z"},
            "spec": {"nodeName": "n1"}, "status": status,
        }))
    };
    let running = json!({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]});
    assert_eq!(
        pod(running).as_deref(),
        Some("p on n1: lets its connections end, and ends itself at 2026-11-26T10:05:00Z at the latest")
    );
    let ended = json!({"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]});
    assert_eq!(pod(ended).as_deref(), Some("p on n1: has ended and is being removed"));
}

/// The rollout waits for the new pod, so what is wrong with that one counts.
#[tokio::test]
async fn of_a_pod_that_drains_little_is_said_beside_one_that_does_not_start() {
    let server = leno_testkit::api_server::ApiServer::start().await;
    let client = Client::anonymous(&server.url()).expect("a URL");
    let labels = json!({"app.kubernetes.io/part-of": "leno", "app.kubernetes.io/name": "leno-node"});
    server.put(&json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "leno-node", "namespace": "leno-system", "labels": labels, "generation": 2},
        "status": {"observedGeneration": 2, "desiredNumberScheduled": 1, "updatedNumberScheduled": 0},
    }));
    let pod = |name: &str, metadata: Value, state: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "containerStatuses": [{"state": state}]},
        });
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["namespace"] = "leno-system".into();
        pod["metadata"]["labels"] = labels.clone();
        server.put(&pod);
    };
    let because = async || rollouts(&client, "leno-system").await.expect("an answer")[0].because.clone();
    pod("a", json!({"deletionTimestamp": "2026-11-26T10:05:00Z"}), json!({"running": {}}));
    assert!(because().await.is_some_and(|why| why.contains("at 2026-11-26T10:05:00Z at the latest")));
    pod("b", json!({}), json!({"waiting": {"reason": "ErrImageNeverPull"}}));
    assert_eq!(because().await.as_deref(), Some("b on n1: ErrImageNeverPull"));
}

#[test]
fn a_pod_that_is_being_started_is_told_with_its_latest_event() {
    let event = |pod: &str, kind: &str, reason: &str, second: u8, message: &str| {
        json!({
            "involvedObject": {"name": pod}, "type": kind, "reason": reason, "message": message,
            "lastTimestamp": format!("2026-11-26T10:00:{second:02}Z"),
        })
    };
    let mut events = vec![
        event("p", "Normal", "Pulling", 2, "Pulling image \"registry.example/leno:1\""),
        event("p", "Normal", "Scheduled", 1, "Successfully assigned"),
        event("other", "Warning", "FailedMount", 9, "not about this one"),
    ];
    assert_eq!(latest(&events, "p").as_deref(), Some("Pulling image \"registry.example/leno:1\""));
    events.push(event("p", "Normal", "Created", 3, "Created container"));
    assert_eq!(latest(&events, "p"), None, "it is past that");
    events.push(event("p", "Warning", "Failed", 3, "Failed to pull image: not found\nand more"));
    events.push(event("p", "Warning", "FailedMount", 2, "an earlier one"));
    assert_eq!(latest(&events, "p").as_deref(), Some("Failed to pull image: not found"));
}
