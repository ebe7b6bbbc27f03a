use super::*;
use crate::{NetworkAddress, PolicyName, Port};

fn pod(n: usize) -> Workload {
    let mut pod = Workload::new(format!("c//Pod/ns/{n}"), "ns", format!("{n}"));
    pod.node = "node-1".into();
    pod.addresses = Vec::with_capacity(4);
    pod.addresses.push([10, 0, 0, 1].into());
    let web = ServiceName { namespace: "ns".into(), hostname: "web".into() };
    pod.services.insert(web, vec![Port::tcp(80, 8080)]);
    pod.authorization_policies = vec![PolicyName { namespace: "ns".into(), name: "p".into() }];
    let at = NetworkAddress { network: "net".into(), address: [10, 0, 0, 2].into() };
    let gateway = GatewayAddress { destination: GatewayDestination::Address(at), hbone_mtls_port: 15008 };
    pod.waypoint = Some(Box::new(gateway));
    pod
}

#[test]
fn what_two_say_is_kept_once_and_nothing_else_changes() {
    let mut names = Names::default();
    let [mut one, mut other] = [pod(1), pod(2)];
    names.settle_workload(&mut one);
    names.settle_workload(&mut other);
    assert_eq!((&one, &other), (&pod(1), &pod(2)));
    let service = |w: &Workload| w.services.first_key_value().map(|(id, _)| id.hostname.clone()).unwrap();
    let mut web = Service::new("ns", "web", "web");
    names.settle_service(&mut web);
    for (one, other) in [
        (&one.namespace, &other.namespace),
        (&one.node, &other.node),
        (&one.trust_domain, &other.trust_domain),
        (&one.authorization_policies[0].namespace, &other.namespace),
        (&service(&one), &service(&other)),
        (&service(&one), &web.id.hostname),
    ] {
        assert!(Arc::ptr_eq(one, other), "{one}");
    }
    assert!(one.services.ptr_eq(&other.services));
    assert_eq!(one.addresses.capacity(), 1);
}

#[test]
fn names_that_nobody_says_any_more_are_forgotten() {
    let mut names = Names::default();
    let mut kept = Vec::new();
    for n in 0..20 * FEW {
        let mut workload = Workload { node: format!("node-{n}").into(), ..pod(n) };
        names.settle_workload(&mut workload);
        if n < 100 {
            kept.push(workload);
        }
    }
    assert!(names.held.len() <= FEW + 1, "{}", names.held.len());
    assert!(kept.iter().all(|workload| names.held.get(&workload.node).is_some_and(|n| Arc::ptr_eq(n, &workload.node))));
}
