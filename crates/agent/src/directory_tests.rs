use leno_objects::{Mode, Object, ObjectKey, decode};
use serde_json::{Value, json};

use super::*;

fn object(kind: Kind, value: &Value) -> Arc<Object> {
    Arc::new(decode(kind, Mode::Lenient, value).unwrap().object)
}

fn namespace(name: &str, mode: Option<&str>) -> Arc<Object> {
    let labels = mode.map_or(json!({}), |mode| json!({ DATAPLANE_MODE: mode }));
    object(Kind::Namespace, &json!({"metadata": {"name": name, "labels": labels}}))
}

fn value(namespace: &str, name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("u-{name}")},
        "spec": {"containers": [], "nodeName": "n-1"},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    })
}

fn pod(value: &Value) -> Arc<Object> {
    object(Kind::Pod, value)
}

fn directory() -> Directory {
    let mut directory = Directory::new("leno-system".to_owned(), PodRules::default(), Vec::new());
    let all = [
        ("shop", Some("ambient")),
        ("other", None),
        ("leno-system", Some("ambient")),
        ("kube-system", Some("ambient")),
    ];
    directory.take(News::All(Kind::Namespace, all.map(|(name, mode)| namespace(name, mode)).into()));
    directory
}

#[test]
fn who_is_wanted() {
    let mut directory = directory();
    let mut host = value("shop", "host");
    host["spec"]["hostNetwork"] = true.into();
    let mut over = value("shop", "over");
    over["status"]["phase"] = "Succeeded".into();
    let mut out = value("shop", "out");
    out["metadata"]["labels"] = json!({ DATAPLANE_MODE: "none" });
    let mut own = value("other", "own");
    own["metadata"]["labels"] = json!({ DATAPLANE_MODE: "ambient" });
    let pods = [
        value("shop", "web"),
        value("other", "web-2"),
        value("leno-system", "leno-node"),
        value("kube-system", "dns"),
        host,
        over,
        out,
        own,
    ];
    directory.take(News::All(Kind::Pod, pods.iter().map(pod).collect()));
    let wishes = directory.wishes();
    let wanted: Vec<&str> = wishes.iter().filter(|(_, wish)| wish.in_mesh).map(|(uid, _)| &**uid).collect();
    assert_eq!(wanted, ["u-own", "u-web"]);
    assert!(
        !wishes.contains_key("u-over") && !wishes.contains_key("u-host"),
        "they have ended, or no network of their own"
    );
    // By the label of a pod, its namespace can have such pods.
    assert_eq!(directory.mesh_namespaces().unwrap(), ["other".to_owned(), "shop".to_owned()].into());
}

#[test]
fn changes_of_labels_change_wishes_and_what_ends_is_gone() {
    let mut directory = directory();
    directory.take(News::All(Kind::Pod, vec![pod(&value("other", "web"))]));
    let wanted = |directory: &mut Directory| directory.wishes().get("u-web").map(|wish| wish.in_mesh);
    assert_eq!(wanted(&mut directory), Some(false));
    directory.take(News::Changed(vec![Change::Upsert(namespace("other", Some("ambient")))]));
    assert_eq!(wanted(&mut directory), Some(true));
    directory.take(News::Changed(vec![Change::Remove(ObjectKey::new(Kind::Pod, "other", "web"))]));
    assert_eq!(wanted(&mut directory), None);
}

/// An agent that starts while the API server is away must not let go of anybody.
#[test]
fn what_was_written_down_counts_until_there_is_news() {
    let known = Remembered {
        uid: "u-web".to_owned(),
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
        service_account: "web".to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        runtime_uid: Some("of-a-file".to_owned()),
    };
    let mut directory = Directory::new("leno-system".to_owned(), PodRules::default(), vec![known]);
    assert!(directory.wishes()["u-web"].in_mesh && !directory.is_complete());
    assert_eq!(directory.wishes()["u-web"].runtime_uid, "of-a-file");
    directory.take(News::All(Kind::Pod, Vec::new()));
    assert!(directory.wishes().is_empty());
}

/// With the pods known and the namespaces not, who says that it is captured stays so.
#[test]
fn nobody_leaves_for_want_of_knowledge() {
    let mut directory = Directory::new("leno-system".to_owned(), PodRules::default(), Vec::new());
    let mut captured = value("shop", "web");
    captured["metadata"]["annotations"] = json!({"ambient.istio.io/redirection": "enabled"});
    directory.take(News::All(Kind::Pod, vec![pod(&captured)]));
    assert!(directory.wishes()["u-web"].in_mesh);
    directory.take(News::All(Kind::Namespace, vec![namespace("shop", None)]));
    let wish = &directory.wishes()["u-web"];
    assert!(!wish.in_mesh && wish.annotated);
}

#[test]
fn a_pod_is_found_by_name_and_uid() {
    let mut directory = directory();
    directory.take(News::All(Kind::Pod, vec![pod(&value("shop", "web"))]));
    let found = |uid: &str| directory.pod("shop", "web", uid).is_some();
    assert!(found("u-web") && found(""));
    assert!(!found("0f5c1f0e-4c1b-4c57-9b0a-8d3f5c2b7a61"), "another pod of this name, of which there is no news yet");
    assert!(found("9a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d"), "one that the kubelet has from a file");
}

#[test]
fn annotations_say_what_is_captured() {
    let mut directory = directory();
    let mut special = value("shop", "web");
    special["metadata"]["annotations"] = json!({
        "ambient.istio.io/bypass-inbound-capture": "true",
        "ambient.istio.io/dns-capture": "false",
        "istio.io/reroute-virtual-interfaces": "kubevirt0, tap1",
    });
    directory.take(News::All(Kind::Pod, vec![pod(&special)]));
    let rules = &directory.wishes()["u-web"].rules;
    assert!(rules.ingress_only && !rules.dns_capture);
    assert_eq!(rules.virtual_interfaces, ["kubevirt0", "tap1"]);
}

/// The kubelet knows a pod from a file by another uid than that of the object which stands for it. No annotation makes a pod
/// pass for one that the API server knows.
#[test]
fn the_uid_on_the_node_is_that_of_the_file() {
    let mut directory = directory();
    let of_a_file = "0123456789abcdef0123456789abcdef";
    let pods = [("web", of_a_file), ("db", "00000000-0000-4000-8000-000000000001")].map(|(name, uid)| {
        let mut value = value("shop", name);
        value["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": uid});
        pod(&value)
    });
    directory.take(News::All(Kind::Pod, pods.into()));
    let wishes = directory.wishes();
    assert_eq!(wishes["u-web"].runtime_uid, of_a_file);
    assert_eq!(wishes["u-web"].info.uid, "u-web");
    assert_eq!(wishes["u-db"].runtime_uid, "u-db");
}
