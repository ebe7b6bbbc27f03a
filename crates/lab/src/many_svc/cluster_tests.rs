use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;
use crate::many_svc::request::Request;

const SHAPE: Shape = Shape { services: 20, pods: 100, proxies: 7, changes: 1.0, arriving: 1 };

fn started() -> (Cluster, Objects) {
    let (cluster, mut objects) = (Cluster::new(SHAPE), Objects::new());
    cluster.put_all(&mut objects);
    (cluster, objects)
}

fn all(objects: &Objects, collection: &str) -> Vec<Value> {
    let selection = Request::parse(collection).unwrap().selection();
    let page = objects.of(collection).unwrap().page(&selection, None, usize::MAX);
    page.items.iter().map(|object| object.value()).collect()
}

/// Events after `version`: what happened, the pod's name, and the pod.
fn pods_since(objects: &Objects, version: u64) -> Vec<(String, String, Value)> {
    let selection = Request::parse(POD).unwrap().selection();
    let lines = objects.of(POD).unwrap().since(version, &selection, false).unwrap();
    let lines = String::from_utf8(lines.to_vec()).unwrap();
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]), event["object"].clone())
    };
    lines.lines().map(event).collect()
}

/// What the API server has agrees with itself, and with what proxies are to know.
fn assert_sound(cluster: &Cluster, objects: &Objects) {
    let inventory = cluster.inventory();
    let pods = all(objects, POD);
    assert_eq!(pods.len(), inventory.workloads.len());
    let mut addresses = BTreeMap::new();
    for pod in &pods {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
        let expected = &inventory.workloads[&workload(&namespace, &name)];
        assert_eq!(text(&pod["status"]["podIP"]), expected.address.to_string());
        assert_eq!(text(&pod["spec"]["nodeName"]), expected.node);
        assert_eq!(text(&pod["metadata"]["labels"]["version"]), expected.revision);
        assert!(addresses.insert(text(&pod["status"]["podIP"]), namespace).is_none(), "an address twice");
    }
    let mut endpoints = BTreeMap::new();
    for slice in all(objects, ENDPOINT_SLICE) {
        let of_slice = slice["endpoints"].as_array().unwrap();
        assert!((1..=SLICE).contains(&of_slice.len()));
        for endpoint in of_slice {
            assert_eq!(endpoint["conditions"]["ready"], true);
            let address = endpoint["addresses"][0].as_str().unwrap().to_owned();
            endpoints.insert(address, slice["metadata"]["namespace"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(endpoints, addresses, "every pod is in one slice of its service");
}

#[test]
fn the_cluster_is_that_of_the_study() {
    let (cluster, objects) = started();
    assert_eq!(all(&objects, POD).len(), 2000);
    assert_eq!(all(&objects, "/api/v1/nodes").len(), 7);
    assert_eq!(all(&objects, "/api/v1/services").len(), 20);
    assert_eq!(all(&objects, NAMESPACE).len(), 20 + SYSTEM.len());
    let inventory = cluster.inventory();
    assert_eq!(inventory.resources(), 2020);
    assert!(inventory.services.contains(&"ns-007/loadservice.ns-007.svc.cluster.local".to_owned()));
    assert_sound(&cluster, &objects);
    assert_eq!((replicas(100), replicas(10), replicas(1)), ((85, 114), (9, 11), (1, 2)));
}

#[test]
fn a_rescale_is_told_step_by_step() {
    let (mut cluster, mut objects) = started();
    let (mut grown, mut shrunk) = (0, 0);
    for number in 1..=40 {
        let change = cluster.rescale();
        assert_eq!((change.number, cluster.next()), (number, number + 1));
        let begun = objects.version();
        for (stage, _) in change.stages() {
            cluster.advance(&change, *stage, &mut objects);
        }
        if !change.grows {
            cluster.take_away(&change, &mut objects);
        }
        // Reading all of it takes long in a debug build.
        if number % 10 == 0 {
            assert_sound(&cluster, &objects);
        }
        let mut steps: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        for (happened, name, pod) in pods_since(&objects, begun) {
            steps.entry(name).or_default().push((happened, pod));
        }
        assert_eq!(steps.len(), change.touched());
        for steps in steps.values() {
            let happened: Vec<&str> = steps.iter().map(|(happened, _)| happened.as_str()).collect();
            let pods: Vec<&Value> = steps.iter().map(|(_, pod)| pod).collect();
            let has = |field: &str| pods.iter().map(|pod| !pod.pointer(field).is_none_or(Value::is_null)).collect();
            let have = |field: &str| -> Vec<bool> { has(field) };
            let ready: Vec<bool> = pods.iter().map(|pod| pod["status"]["conditions"][2]["status"] == "True").collect();
            if change.grows {
                assert_eq!(happened, ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED"]);
                assert_eq!(have("/spec/nodeName"), [false, true, true, true, true]);
                let captured = have("/metadata/annotations/ambient.istio.io~1redirection");
                assert_eq!(captured, [false, false, true, true, true]);
                assert_eq!(have("/status/podIP"), [false, false, false, true, true]);
                assert_eq!(ready, [false, false, false, false, true]);
                assert_eq!(pods[4]["metadata"]["labels"]["version"], format!("change-{number}"));
            } else {
                assert_eq!(happened, ["MODIFIED", "MODIFIED", "DELETED"]);
                assert_eq!(have("/metadata/deletionTimestamp"), [true; 3]);
                assert_eq!(ready, [true, false, false]);
            }
        }
        *(if change.grows { &mut grown } else { &mut shrunk }) += 1;
    }
    assert!(grown > 5 && shrunk > 5, "{grown} {shrunk}");
    let sizes: BTreeSet<usize> = cluster.services.iter().map(|service| service.pods.len()).collect();
    assert!(sizes.iter().all(|size| (85..=114).contains(size)), "{sizes:?}");
}

#[test]
fn no_service_is_changed_again_soon_and_the_script_is_always_the_same() {
    let (mut one, mut other) = (Cluster::new(SHAPE), Cluster::new(SHAPE));
    let mut order = Vec::new();
    for _ in 0..60 {
        let change = one.rescale();
        assert_eq!(change, other.rescale());
        order.push(change.service);
    }
    for window in order.windows(10) {
        assert_eq!(window.iter().collect::<BTreeSet<_>>().len(), 10, "{order:?}");
    }
}

#[test]
fn a_relabelled_namespace_stays_in_the_mesh() {
    let (mut cluster, mut objects) = started();
    let begun = all(&objects, NAMESPACE);
    cluster.relabel(&mut objects);
    let now = all(&objects, NAMESPACE);
    let changed: Vec<_> = begun.iter().zip(&now).filter(|(before, after)| before != after).collect();
    let [(before, after)] = changed[..] else { panic!("{changed:?}") };
    let label = |namespace: &Value, name: &str| namespace["metadata"]["labels"][name].clone();
    assert_ne!(label(before, "policy-group"), label(after, "policy-group"));
    assert_eq!(label(after, "istio.io/dataplane-mode"), "ambient");
}

#[test]
fn names_are_as_kubernetes_makes_them_and_none_comes_twice() {
    let names: BTreeSet<String> = (0..200_000).map(letters).collect();
    assert_eq!(names.len(), 200_000);
    assert!(names.iter().all(|name| name.len() == 5));
    // What an API server stores for a pod is some kilobytes.
    let (cluster, objects) = started();
    let bytes = objects.of(POD).unwrap().get("ns-000", &pod_name(0)).unwrap().json.len();
    assert!((3000..8000).contains(&bytes), "{bytes}");
    drop(cluster);
}
