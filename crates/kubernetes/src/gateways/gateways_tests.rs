use leno_control::Feed;
use leno_control::translate::Options;
use leno_objects::{Change, Kind, Mode, decode};
use leno_testkit::api_server::ApiServer;
use serde_json::json;

use super::*;

const API: &str = "gateway.networking.k8s.io/v1";
const TEMPLATE: &str = "
- apiVersion: v1
  kind: ServiceAccount
  metadata: {name: '@NAME@'}
- apiVersion: v1
  kind: Service
  metadata: {name: '@NAME@', labels: {app: waypoint}}
  spec: {selector: {gateway: '@NAME@.@NAMESPACE@'}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: '@NAME@'}
  spec:
    template:
      metadata: {labels: {gateway: '@NAME@'}, annotations: {a: b}}
      spec: {containers: [{name: waypoint, resources: {requests: {cpu: 50m}}}]}
";

fn gateway(uid: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": API, "kind": "Gateway",
        "metadata": {"name": "gate", "namespace": "shop", "uid": uid, "generation": 2, "annotations": annotations},
        "spec": {
            "gatewayClassName": "leno-waypoint",
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}],
            "infrastructure": {"labels": {"team": "a", "gateway": "other"}, "annotations": {"note": "n"}},
        },
        "status": {"conditions": [{"type": "Theirs", "status": "True"}]},
    })
}

fn object(value: &Value) -> Object {
    decode(Kind::Gateway, Mode::Lenient, value).expect("sound").object
}

fn read(value: &Value) -> Gateway {
    match object(value) {
        Object::Gateway(gateway) => gateway,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_template_is_filled_in_for_a_gateway() {
    let wishes = json!({
        "leno.mesh/waypoint-replicas": "3", "leno.mesh/waypoint-memory": "1Gi",
        "leno.mesh/waypoint-forward-client-cert": "true", "leno.mesh/waypoint-node-selector": "disk=ssd, example.org/a=",
    });
    let made = parts::parts(TEMPLATE, &read(&gateway("u", &wishes)), "roots").expect("sound");
    let paths: Vec<_> = made.iter().map(|part| parts::path(part).expect("known")).collect();
    assert_eq!(
        paths,
        [
            "/api/v1/namespaces/shop/serviceaccounts/gate",
            "/api/v1/namespaces/shop/services/gate",
            "/apis/apps/v1/namespaces/shop/deployments/gate"
        ]
    );
    for part in &made {
        assert!(parts::is_owned(part, &read(&gateway("u", &wishes))));
        assert!(!parts::is_owned(part, &read(&gateway("another", &wishes))), "one of that name that is gone");
        assert_eq!(part["metadata"]["labels"]["team"], "a");
        assert_eq!(part["metadata"]["annotations"]["note"], "n");
    }
    assert_eq!(made[1]["spec"]["selector"]["gateway"], "gate.shop");
    let deployment = &made[2]["spec"];
    assert_eq!(deployment["replicas"], 3);
    let pod = &deployment["template"];
    assert_eq!(pod["metadata"]["labels"], json!({"gateway": "gate", "team": "a"}), "the mesh finds pods by its labels");
    assert_eq!(pod["metadata"]["annotations"], json!({"a": "b", "note": "n", "leno.mesh/root-certificates": "roots"}));
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"], json!({"cpu": "50m", "memory": "1Gi"}));
    assert_eq!(pod["spec"]["containers"][0]["env"], json!([{"name": "LENO_FORWARD_CLIENT_CERT", "value": "true"}]));
    assert_eq!(pod["spec"]["nodeSelector"], json!({"disk": "ssd", "example.org/a": ""}));
    let plain = parts::parts(TEMPLATE, &read(&gateway("u", &json!({}))), "roots").expect("sound");
    assert_eq!(plain[2]["spec"]["replicas"], Value::Null, "whoever scales it decides");
    let slip = parts::parts(TEMPLATE, &read(&gateway("u", &json!({"leno.mesh/waypoint-replicas": "many"}))), "");
    assert!(slip.is_err_and(|why| why.contains("many is no number")));
    let slip = parts::parts(TEMPLATE, &read(&gateway("u", &json!({"leno.mesh/waypoint-node-selector": "ssd"}))), "");
    assert!(slip.is_err_and(|why| why.contains("ssd is no list")));
    assert!(parts::path(&json!({"kind": "Secret"})).is_err(), "only what a waypoint consists of");
}

/// Waits until an object of the server is as wished.
async fn until(server: &ApiServer, wished: impl Fn(&Value) -> bool) -> Value {
    loop {
        let now = server.get(API, "gateways", "shop", "gate").expect("there");
        if wished(&now["status"]) {
            return now["status"].clone();
        }
        sleep(Duration::from_millis(5)).await;
    }
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let all = status["conditions"].as_array().expect("conditions");
    all.iter().find(|it| it["type"] == kind).expect(kind)
}

#[tokio::test]
async fn who_leads_makes_waypoints_and_tells_what_became_of_them() {
    let server = ApiServer::start().await;
    server.put(&gateway("u", &json!({})));
    // Somebody's own, which must stay as it is.
    let theirs = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gate", "namespace": "shop"}, "spec": {"mine": true}});
    server.put(&theirs);
    let client = Client::anonymous(&server.url()).expect("a URL");
    let controller = Controller::new(Options::default());
    let feed = Feed::announce(controller.clone(), &[Kind::Gateway, Kind::GatewayClass, Kind::Service, Kind::Pod]);
    feed.replace([object(&gateway("u", &json!({})))]);
    controller.publish();
    let file = std::env::temp_dir().join(format!("leno-waypoint-template-{}", std::process::id()));
    std::fs::write(&file, TEMPLATE).expect("a file");
    let roots = watch::Sender::new(Arc::<str>::from("old root"));
    let template = WaypointTemplate { file: file.clone(), roots: roots.subscribe() };
    let leads = watch::Sender::new(false);
    let keeper = GatewayKeeper::new(client, controller.clone(), Some(template));
    let running = tokio::spawn(keeper.run(leads.subscribe()));
    tokio::task::yield_now().await;
    assert_eq!(server.requests(), [""; 0], "a follower writes nothing");
    leads.send_replace(true);
    let class = || server.get(API, "gatewayclasses", "", "leno-waypoint");
    while class().is_none() {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(class().expect("there")["spec"]["controllerName"], "leno.mesh/waypoint-controller");
    let refused = until(&server, |status| status["listeners"].is_array()).await;
    assert_eq!(condition(&refused, "Accepted")["status"], "True");
    assert_eq!(condition(&refused, "Programmed")["reason"], "NoResources");
    let why = condition(&refused, "Programmed")["message"].as_str().expect("text").to_owned();
    assert!(why.contains("there is a Service of that name which is not the waypoint's"), "{why}");
    assert_eq!(condition(&refused, "Theirs")["status"], "True", "what others wrote stays");
    assert_eq!(server.get("v1", "services", "shop", "gate").expect("there")["spec"], theirs["spec"]);

    server.delete("v1", "services", "shop", "gate");
    feed.apply([Change::upsert(object(&gateway("u", &json!({"leno.mesh/waypoint-replicas": "2"}))))]);
    let pending = until(&server, |status| condition(status, "Programmed")["reason"] == "AddressNotAssigned").await;
    assert_eq!(pending["listeners"][0]["attachedRoutes"], 0);
    let deployment = || server.get("apps/v1", "deployments", "shop", "gate").expect("it is made");
    assert_eq!(deployment()["spec"]["replicas"], 2);
    assert_eq!(deployment()["metadata"]["ownerReferences"][0]["uid"], "u");
    // A new root reaches the pods with the next look at the Gateways.
    roots.send_replace("new root".into());
    feed.apply([Change::upsert(object(&gateway("u", &json!({}))))]);
    while deployment()["spec"]["template"]["metadata"]["annotations"]["leno.mesh/root-certificates"] != "new root" {
        sleep(Duration::from_millis(5)).await;
    }
    running.abort();
    let _ = std::fs::remove_file(file);
}
