//! A mesh of any size, as an API server would tell of it: namespaces of 1 000 pods, services of 25.

use leno_objects::{Change, Kind, Mode, Object, decode};

/// Pods of a service.
pub(crate) const OF_SERVICE: usize = 25;
/// Pods of a node.
pub(crate) const OF_NODE: usize = 100;
/// Pods of a namespace.
pub(crate) const OF_NAMESPACE: usize = 1000;

/// An object from its JSON.
pub(crate) fn object(kind: Kind, json: &str) -> Object {
    decode(kind, Mode::Lenient, &mut serde_json::Deserializer::from_str(json)).expect("a sound object").object
}

/// A pod, by number and by what is said of it this time.
pub(crate) fn pod(n: usize, revision: usize) -> Change {
    let (namespace, service, node) = (n / OF_NAMESPACE, n / OF_SERVICE, n / OF_NODE);
    let address = format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
    let owner = format!("svc-{service:04}-6d4cf56db6");
    Change::upsert(object(
        Kind::Pod,
        &format!(
            r#"{{"metadata":{{"name":"{owner}-{n:05}","namespace":"ns-{namespace:02}","uid":"5f2d7a10-0000-4000-8000-{n:012}",
            "labels":{{"app":"svc-{service:04}","version":"v{revision}","pod-template-hash":"6d4cf56db6"}},
            "annotations":{{"ambient.istio.io/redirection":"enabled"}},
            "ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"{owner}","uid":"5f2d7a11-0000-4000-8000-{service:012}","controller":true}}]}},
            "spec":{{"nodeName":"node-{node:04}","serviceAccountName":"svc-{service:04}",
            "containers":[{{"name":"server","image":"example.com/server:1","ports":[{{"name":"http-web","containerPort":8080}}]}}]}},
            "status":{{"phase":"Running","podIP":"{address}","podIPs":[{{"ip":"{address}"}}],
            "conditions":[{{"type":"Ready","status":"True"}},{{"type":"PodScheduled","status":"True"}}]}}}}"#
        ),
    ))
}

/// All objects of a mesh with that many pods.
pub(crate) fn mesh(pods: usize) -> Vec<Change> {
    let mut all = Vec::new();
    for node in 0..pods.div_ceil(OF_NODE) {
        let json = format!(
            r#"{{"metadata":{{"name":"node-{node:04}","labels":{{"topology.kubernetes.io/zone":"zone-{}"}}}}}}"#,
            node % 3
        );
        all.push(Change::upsert(object(Kind::Node, &json)));
    }
    for service in 0..pods.div_ceil(OF_SERVICE) {
        let namespace = service * OF_SERVICE / OF_NAMESPACE;
        let json = format!(
            r#"{{"metadata":{{"name":"svc-{service:04}","namespace":"ns-{namespace:02}"}},
            "spec":{{"clusterIP":"172.16.{}.{}","selector":{{"app":"svc-{service:04}"}},"ports":[{{"name":"http-web","port":80,"targetPort":"http-web"}}]}}}}"#,
            service >> 8,
            service & 255
        );
        all.push(Change::upsert(object(Kind::Service, &json)));
        let policy = format!(
            r#"{{"metadata":{{"name":"svc-{service:04}","namespace":"ns-{namespace:02}"}},
            "spec":{{"selector":{{"matchLabels":{{"app":"svc-{service:04}"}}}},"rules":[{{"from":[{{"source":{{"namespaces":["ns-00"]}}}}]}}]}}}}"#
        );
        all.push(Change::upsert(object(Kind::AuthorizationPolicy, &policy)));
    }
    all.extend((0..pods).map(|n| pod(n, 0)));
    all
}
