//! What a change and a workload cost the control plane, from objects to what is published, counted: whatever
//! the size of the mesh, a change allocates as much, and what is kept of a workload is little. Alone in its
//! process, for it counts what that allocates.

#[path = "../../testkit/src/counting.rs"]
mod counting;
mod generated;

use counting::{allocated, live};
use generated::{OF_NAMESPACE, OF_SERVICE, mesh, object, pod};
use leno_control::translate::Options;
use leno_control::{Controller, Feed};
use leno_objects::{Change, Kind};

/// Bytes allocated from handing the changes over until they are published, for each of them.
fn cost(controller: &Controller, feed: &Feed, changes: Vec<Change>) -> usize {
    let generation = controller.generation();
    let (count, before) = (changes.len(), allocated());
    feed.apply(changes);
    controller.publish();
    assert_eq!(controller.generation(), generation + 1, "the changes mean something");
    (allocated() - before) / count
}

/// The service of this number, by what is said of it this time.
fn service(n: usize, revision: usize) -> Change {
    let namespace = n * OF_SERVICE / OF_NAMESPACE;
    Change::upsert(object(
        Kind::Service,
        &format!(
            r#"{{"metadata":{{"name":"svc-{n:04}","namespace":"ns-{namespace:02}"}},
            "spec":{{"clusterIP":"172.16.{}.{}","selector":{{"app":"svc-{n:04}"}},
            "ports":[{{"name":"http-web","port":80,"targetPort":"http-web"}},{{"name":"more","port":{}}}]}}}}"#,
            n >> 8,
            n & 255,
            1000 + revision
        ),
    ))
}

/// A route to each service, a DestinationRule and a VirtualService for it.
fn routes_and_rules(services: usize) -> Vec<Change> {
    let of = |n: usize| {
        let namespace = n * OF_SERVICE / OF_NAMESPACE;
        let metadata = format!(r#""metadata":{{"name":"svc-{n:04}","namespace":"ns-{namespace:02}"}}"#);
        let route = format!(
            r#"{{{metadata},"spec":{{"parentRefs":[{{"group":"","kind":"Service","name":"svc-{n:04}"}}],
            "rules":[{{"backendRefs":[{{"name":"svc-{n:04}","port":80}}]}}]}}}}"#
        );
        let rule = format!(
            r#"{{{metadata},"spec":{{"host":"svc-{n:04}","trafficPolicy":{{"loadBalancer":{{"simple":"RANDOM"}}}}}}}}"#
        );
        let defaults = format!(r#"{{{metadata},"spec":{{"hosts":["svc-{n:04}"],"http":[{{"timeout":"1s"}}]}}}}"#);
        [(Kind::HTTPRoute, route), (Kind::DestinationRule, rule), (Kind::VirtualService, defaults)]
    };
    (0..services).flat_map(of).map(|(kind, json)| Change::upsert(object(kind, &json))).collect()
}

#[test]
fn a_change_costs_what_it_touches() {
    let (mut one, mut of_services, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for pods in [500, 5000] {
        let before = live();
        let controller = Controller::new(Options::default());
        let feed = Feed::announce(controller.clone(), Kind::ALL);
        feed.apply(mesh(pods));
        feed.complete(Kind::ALL);
        controller.publish();
        whole.push(live() - before);
        // Somebody goes on to read what was published before, as ever in a control plane.
        let read = (controller.mesh().borrow().clone(), controller.resources().borrow().clone());
        let of_one = (0..20).map(|i| cost(&controller, &feed, vec![pod(i * 17, 1)])).max().unwrap_or_default();
        let of_hundred = cost(&controller, &feed, (100..200).map(|n| pod(n, 2)).collect());
        let of_namespace = cost(&controller, &feed, (0..OF_NAMESPACE.min(pods)).map(|n| pod(n, 3)).collect());
        println!(
            "{pods} workloads: a changed pod allocates {of_one} bytes, one of 100 {of_hundred}, \
             one of a namespace's {of_namespace}"
        );
        assert!(of_hundred <= of_one && of_namespace <= of_one, "many together cost more than each alone");
        one.push(of_one);
        feed.apply(routes_and_rules(pods / OF_SERVICE));
        controller.publish();
        let of_service = (1..4).map(|n| cost(&controller, &feed, vec![service(n, 1)])).max().unwrap_or_default();
        println!(
            "{pods} workloads: a changed service with a route, a DestinationRule and a VirtualService allocates {of_service} bytes"
        );
        of_services.push(of_service);
        drop(read);
    }
    assert!(
        of_services[1] * 2 <= of_services[0] * 3,
        "with ten times the routes and rules a changed service allocates {} bytes instead of {}",
        of_services[1],
        of_services[0]
    );
    let kept = (whole[1] - whole[0]) / 4500;
    println!("{kept} bytes are kept of a workload");
    // A process that keeps them needs half as much again, for what it is itself and what lies between them.
    assert!(kept <= 2200, "{kept} bytes are kept of a workload");
    assert!(
        one[1] * 2 <= one[0] * 3,
        "with ten times the mesh a change allocates {} bytes instead of {}",
        one[1],
        one[0]
    );
}
