use leno_control::Feed;
use leno_control::translate::Options;
use leno_objects::{Change, Mode, decode};
use leno_testkit::api_server::ApiServer;

use super::*;

const API: &str = "security.istio.io/v1";

fn policy() -> Value {
    json!({
        "apiVersion": API, "kind": "AuthorizationPolicy",
        "metadata": {"name": "p", "namespace": "shop", "uid": "u", "generation": 3},
        "spec": {"selector": {"matchLabels": {"app": "wbe"}}, "rules": [{}]},
        "status": {"conditions": [{"type": "Theirs", "status": "True"}]},
    })
}

#[test]
fn a_condition_stands_beside_those_of_others_and_is_written_when_it_changes() {
    let object = policy();
    assert_eq!(condition_patch(&object, "", None), None, "what never was wrong needs no word");
    let patch = condition_patch(&object, "the selector selects no pod", None).expect("a change");
    let conditions = &patch["status"]["conditions"];
    assert_eq!(conditions[0], object["status"]["conditions"][0]);
    let own = &conditions[1];
    assert_eq!(
        (&own["type"], &own["status"], &own["observedGeneration"]),
        (&json!(CONDITION), &json!("False"), &json!(3))
    );
    let mut written = object;
    written["status"] = patch["status"].clone();
    assert_eq!(condition_patch(&written, "the selector selects no pod", None), None);
    let cleared = condition_patch(&written, "", None).expect("a change");
    assert_eq!(cleared["status"]["conditions"][1]["status"], "True");
    written["metadata"]["generation"] = 4.into();
    let again = condition_patch(&written, "the selector selects no pod", None).expect("it is about the new version");
    assert_eq!(again["status"]["conditions"][1]["lastTransitionTime"], own["lastTransitionTime"]);
}

#[tokio::test]
async fn only_who_leads_writes_findings_and_each_once() {
    let server = ApiServer::start().await;
    server.put(&policy());
    let client = Client::anonymous(&server.url()).expect("a URL");
    let writer = std::sync::Arc::new(StatusWriter::default());
    let controller = Controller::telling(Options::default(), writer.clone());
    let feed = Feed::announce(controller.clone(), &[Kind::AuthorizationPolicy]);
    let object = decode(Kind::AuthorizationPolicy, Mode::Lenient, &policy()).expect("sound").object;
    feed.list(Kind::AuthorizationPolicy, [object.clone()]);
    controller.publish();
    controller.lint();
    let leads = watch::Sender::new(false);
    let running = tokio::spawn({
        let (writer, client, controller, leads) = (writer.clone(), client, controller.clone(), leads.subscribe());
        async move { writer.run(&client, &controller, leads).await }
    });
    let key = ObjectKey::new(Kind::AuthorizationPolicy, "shop", "p");
    assert!(!writer.findings.lock().all[&key].is_empty());
    // A follower asks and writes nothing. What it would have asked comes before this request.
    tokio::task::yield_now().await;
    leads.send_replace(true);
    server.requested("POST /api/v1/namespaces/shop/events").await;
    let requests = server.requests();
    assert!(
        requests[0].starts_with("GET /apis/security.istio.io/v1/namespaces/shop/authorizationpolicies/p"),
        "{requests:?}"
    );
    let written = server.get(API, "authorizationpolicies", "shop", "p").expect("there");
    let condition = &written["status"]["conditions"][1];
    assert!(condition["message"].as_str().expect("text").contains("app=wbe selects no pod"), "{condition}");
    let event = server.all("v1", "events").pop().expect("one");
    assert_eq!(event["involvedObject"]["uid"], "u");
    // The finding goes when its cause does.
    let mut mended = policy();
    mended["spec"] = json!({"rules": [{}]});
    let mended = decode(Kind::AuthorizationPolicy, Mode::Lenient, &mended).expect("sound").object;
    feed.apply([Change::upsert(mended)]);
    controller.lint();
    server.requested("PATCH /apis/security.istio.io/v1/namespaces/shop/authorizationpolicies/p/status").await;
    let mended = || {
        server.get(API, "authorizationpolicies", "shop", "p").expect("there")["status"]["conditions"][1]["status"]
            == "True"
    };
    while !mended() {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.all("v1", "events").len(), 1, "good news is no Event");
    running.abort();
}

#[test]
fn what_is_said_of_parents_stands_beside_what_others_say() {
    let parent = ParentReference {
        group: Some(String::new()),
        kind: Some("Service".to_owned()),
        name: "web".to_owned(),
        ..ParentReference::default()
    };
    let said = |holds| {
        vec![ParentStatus {
            parent: parent.clone(),
            conditions: vec![Condition::new("Accepted", holds, "Because", "it is so")],
        }]
    };
    let other = json!({"parentRef": {"name": "edge"}, "controllerName": "example.org/gateways", "conditions": []});
    let mut object = json!({
        "metadata": {"name": "web", "generation": 3, "resourceVersion": "7"}, "status": {"parents": [other.clone()]},
    });
    let patch = parents_patch(&object, &said(true)).expect("news");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let parents = patch["status"]["parents"].clone();
    assert_eq!(parents[0], other);
    assert_eq!(parents[1]["parentRef"], json!({"group": "", "kind": "Service", "name": "web"}));
    assert_eq!(parents[1]["conditions"][0]["status"], "True");
    assert_eq!(parents[1]["conditions"][0]["observedGeneration"], 3);
    object["status"]["parents"] = parents;
    // Whatever the time is when it is said again, it has been so since then.
    object["status"]["parents"][1]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(parents_patch(&object, &said(true)), None);
    let turned = parents_patch(&object, &said(false)).expect("news");
    assert_ne!(turned["status"]["parents"][1]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    let gone = parents_patch(&object, &[]).expect("news");
    assert_eq!(gone["status"]["parents"], json!([other]));
}
