use leno_objects::{Deployment, Service, WAYPOINT_REPLICAS};

use super::*;

fn manifests(class: &str) -> Manifests {
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "gate", "namespace": "shop"},
        "spec": {"gatewayClassName": class, "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
    });
    let object = decode(Kind::Gateway, Mode::Strict, gateway).expect("a gateway").object;
    let mut manifests = Manifests::default();
    manifests.objects.insert(object.key(), Sourced { object: Arc::new(object), origin: None });
    manifests
}

fn around() -> Surroundings {
    Surroundings {
        program: "/bin/leno".into(),
        control: "10.0.0.1:15012".parse().expect("an address"),
        roots: "PEM".to_owned(),
        cluster_domain: "cluster.local".into(),
        ipv6: true,
        inherited: Vec::new(),
    }
}

#[test]
fn a_waypoint_has_its_parts_and_others_have_none() {
    for (class, count) in [("leno-waypoint", 1), ("istio-waypoint", 1), ("nginx", 0)] {
        assert_eq!(waypoints(&manifests(class)).len(), count, "{class}");
    }
    let mut all = manifests("leno-waypoint");
    let (key, gateway) = waypoints(&all).remove(0);
    add(&mut all, (&key, &gateway), &[], "secret", &around()).expect("sound parts");
    let part = |kind| &all.objects[&ObjectKey::new(kind, "shop", "gate")].object;
    let service = Service::of(part(Kind::Service)).expect("a service");
    assert!(service.spec.ports.iter().any(|port| port.port.0 == 15008));
    let deployment = Deployment::of(part(Kind::Deployment)).expect("a deployment");
    let template = &deployment.spec.template;
    assert_eq!(template.metadata.label("istio.io/dataplane-mode"), Some("none"));
    assert_eq!((template.metadata.label(GATEWAY_NAME), template.spec.account()), (Some("gate"), "gate"));
    assert!(all.objects.contains_key(&ObjectKey::new(Kind::ServiceAccount, "shop", "gate")));
}

#[test]
fn a_gateway_says_how_many_pods_its_waypoint_has_and_where() {
    let made = |annotations: &[(&str, &str)]| {
        let mut all = manifests("leno-waypoint");
        let (key, mut gateway) = waypoints(&all).remove(0);
        gateway.metadata.annotations =
            annotations.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect();
        add(&mut all, (&key, &gateway), &["node-1", "node-2"], "secret", &around())?;
        let deployment = Deployment::of(&all.objects[&ObjectKey::new(Kind::Deployment, "shop", "gate")].object);
        assert_eq!(
            all.warnings.iter().any(|said| said.contains("disk=ssd has no effect on a stage")),
            annotations.iter().any(|(_, text)| text.contains("disk"))
        );
        let spec = &deployment.expect("a deployment").spec;
        Ok::<_, String>((spec.replicas, spec.template.spec.node_name.to_string()))
    };
    assert_eq!(made(&[]), Ok((1, String::new())));
    assert_eq!(made(&[(WAYPOINT_REPLICAS, "3")]), Ok((3, String::new())));
    assert_eq!(made(&[(WAYPOINT_NODE_SELECTOR, "kubernetes.io/hostname=node-2")]), Ok((1, "node-2".to_owned())));
    assert_eq!(made(&[(WAYPOINT_NODE_SELECTOR, "disk=ssd")]), Ok((1, String::new())), "that is said, and no mistake");
    for (text, says) in [
        ("kubernetes.io/hostname=node-9", "there is no node node-9; the nodes are node-1, node-2"),
        ("kubernetes.io/hostname=node-1,kubernetes.io/hostname=node-2", "more than once"),
        ("node-2", "node-2 is no list"),
    ] {
        assert!(made(&[(WAYPOINT_NODE_SELECTOR, text)]).is_err_and(|why| why.contains(says)), "{text}");
    }
    let refused = made(&[(WAYPOINT_REPLICAS, "many")]).expect_err("no number");
    assert_eq!(refused, "annotation leno.mesh/waypoint-replicas=many is no number of pods");
}

#[test]
fn only_what_tunes_it_is_handed_on() {
    let of = |names: &[&str]| {
        let all = names.iter().map(|name| ((*name).to_owned(), "1".to_owned()));
        inherited(all).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(of(&["RUST_LOG", "XDS_ADDRESS", "LENO_HEAD_TIMEOUT", "SECRET"]), ["RUST_LOG", "LENO_HEAD_TIMEOUT"]);
}
