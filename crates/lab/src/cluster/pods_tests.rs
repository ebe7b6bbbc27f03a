//! What is said of pods that do not run.

use super::*;

fn waiting(reason: &str) -> Value {
    json!({
        "spec": {"containers": [{"image": "example.com/leno:9"}]},
        "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "no such host"}}}]},
    })
}

#[test]
fn an_image_that_cant_be_had_is_named_with_what_to_do() {
    let Some(Trouble::Lasting(why)) = trouble(&waiting("ImagePullBackOff")) else { panic!("no trouble") };
    for part in ["example.com/leno:9", "no such host", "--image"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(trouble(&waiting("ContainerCreating")), None);
}

#[test]
fn a_pod_without_room_gets_time() {
    let pod = json!({"status": {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"},
    ]}});
    assert_eq!(trouble(&pod), Some(Trouble::NoRoom("it can't be scheduled: 0/3 nodes are available".to_owned())));
}

#[test]
fn a_server_that_ended_is_told_with_its_exit_status() {
    let pod = json!({"status": {"phase": "Failed", "containerStatuses": [
        {"state": {"terminated": {"reason": "Error", "exitCode": 1}}},
    ]}});
    assert_eq!(trouble(&pod), Some(Trouble::Lasting("it has ended (Error, exit status 1)".to_owned())));
}

#[tokio::test]
async fn pods_go_where_they_should_and_have_no_rights() {
    let client = Client::anonymous("http://127.0.0.1:1").unwrap();
    let pods = Pods { client: &client, image: "example.com/leno:9", in_mesh: true, deadline: 60 };
    let node = Node { hostname: "n1.example".to_owned(), ..Node::default() };
    let pod = pods.manifest("server-near", &node, &["lab-server", "{}"], true);
    assert_eq!(pod["metadata"]["labels"][DATAPLANE_MODE], "ambient");
    assert_eq!(pod["spec"]["nodeSelector"][HOSTNAME], "n1.example");
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 60);
    assert_eq!(pod["spec"]["containers"][0]["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(pod["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"], 8080);
    let captured = json!({"metadata": {"annotations": {REDIRECTION_ANNOTATION: REDIRECTION_ENABLED}}});
    assert!(pods.is_as_wanted(&captured) && !pods.is_as_wanted(&json!({})));
}
