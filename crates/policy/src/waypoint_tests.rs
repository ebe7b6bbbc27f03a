use leno_model::WeightedWaypoint;

use super::*;
use crate::test_support::{at, endpoint, ip, mesh, numbers, pod, port, service, waypoint_by_address, waypoint_by_name};

#[test]
fn each_waypoint_has_its_share_and_none_with_weight_0() {
    let weighted = |weights: &[u32]| {
        let all = weights.iter().enumerate().map(|(index, weight)| WeightedWaypoint {
            destination: waypoint_by_address(&format!("10.0.0.{index}")),
            weight: *weight,
        });
        Service { weighted_waypoints: all.collect(), ..service("web", &["10.96.0.1"]) }
    };
    let chosen = |web: &Service, ticket: u64| match &waypoint_of(web, &mut || ticket)?.destination {
        GatewayDestination::Address(at) => Some(at.address),
        GatewayDestination::Hostname(_) => None,
    };
    let web = weighted(&[0, 1, 2]);
    for (ticket, expected) in [(0, "10.0.0.1"), (1, "10.0.0.2"), (2, "10.0.0.2"), (3, "10.0.0.1")] {
        assert_eq!(chosen(&web, ticket), Some(ip(expected)), "{ticket}");
    }
    // Without any weight, the service's only one counts.
    let mut none = weighted(&[0, 0]);
    assert_eq!(chosen(&none, 0), None);
    none.waypoint = Some(waypoint_by_address("10.0.0.9"));
    assert_eq!(chosen(&none, 0), Some(ip("10.0.0.9")));
}

#[test]
fn a_waypoint_is_reached_at_the_port_that_is_named_for_it() {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008), port(15100, 15100)];
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let mesh = mesh(&[&waypoint], &[&gateway]);
    for reference in [waypoint_by_name(&waypoint), waypoint_by_address("10.96.0.2"), waypoint_by_address("10.0.2.1")] {
        for (named, expected) in [(0, 15008), (15008, 15008), (15100, 15100)] {
            let reference = GatewayAddress { hbone_mtls_port: named, ..reference.clone() };
            let (_, found) = resolve(&mesh, &pod("client", "10.0.0.1"), &reference, at("10.96.0.1:80")).expect("one");
            let targets: Vec<_> = found.iter().map(|candidate| candidate.target).collect();
            assert_eq!(targets, [SocketAddr::new(ip("10.0.2.1"), expected)], "{reference:?}");
        }
    }
}

#[test]
fn a_waypoint_that_does_not_let_itself_be_used_is_told_from_one_that_is_not_there() {
    let waypoint = service("waypoint", &["10.96.0.2"]);
    let named = |name: ServiceName| GatewayAddress {
        destination: GatewayDestination::Hostname(name),
        ..waypoint_by_name(&waypoint)
    };
    let problem = |gateway: &GatewayAddress| {
        let client = pod("client", "10.0.0.1");
        resolve(&Mesh::default(), &client, gateway, at("10.96.0.1:80")).map(|_| ()).expect_err("a problem")
    };
    assert_eq!(problem(&named(ServiceName::not_allowed(&waypoint.id))), WaypointProblem::NotAllowed);
    assert_eq!(problem(&named(waypoint.id.clone())), WaypointProblem::NotFound);
}

#[test]
fn a_service_is_addressed_in_the_network_of_its_client_and_in_its_family() {
    let client = pod("client", "10.0.0.1");
    let of = |addresses: &[(&str, &str)], like: &str| {
        let addresses = addresses
            .iter()
            .map(|(network, address)| NetworkAddress { network: (*network).into(), address: ip(address) })
            .collect();
        addressed(&client, &Service { addresses, ..service("web", &[]) }, at(like))
    };
    let both = [("", "10.96.0.1"), ("", "fd96::1"), ("east", "10.96.0.2"), ("east", "fd96::2")];
    assert_eq!(of(&both, "10.0.0.5:80"), Some(at("10.96.0.1:80")));
    assert_eq!(of(&both, "[fd00::5]:81"), Some(at("[fd96::1]:81")));
    assert_eq!(of(&both[..1], "[fd00::5]:81"), Some(at("10.96.0.1:81")), "rather another family than none");
    assert_eq!(of(&both[2..], "10.0.0.5:80"), None);
}

#[test]
fn a_pods_port_is_guarded_by_the_services_that_have_a_waypoint_and_lead_there() {
    let waypoint = service("waypoint", &["10.96.0.2"]);
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    web.ports = vec![port(80, 8080), port(81, 8081)];
    let mut free = service("free", &["10.96.0.3"]);
    free.ports = vec![port(90, 9090)];
    let mut own = endpoint("own", "10.0.1.1", &[&web, &free]);
    own.services.insert(web.id.clone(), vec![port(81, 7000)]);
    let mesh = mesh(&[&waypoint, &web, &free], &[&own]);
    for (at, is_guarded) in [(8080, true), (7000, true), (8081, false), (9090, false), (80, false)] {
        assert_eq!(guarded(&mesh, &own, at).count(), usize::from(is_guarded), "{at}");
        assert_eq!(guarding(&mesh, &own, at), None, "no policy says so");
    }
    own.authorization_policies.push(PolicyName::through_waypoint("default".into(), "x"));
    assert_eq!(guarding(&mesh, &own, 8080), web.waypoint.as_ref());
    assert_eq!(guarding(&mesh, &own, 9090), None);
}

#[test]
fn who_has_no_other_reason_takes_the_first_address() {
    assert_eq!(any_address(&service("web", &["10.96.0.1", "fd96::1"])), ip("10.96.0.1"));
    assert_eq!(any_address(&service("headless", &[])), ip("0.0.0.0"));
    let mut random = numbers(1);
    assert_eq!(waypoint_of(&service("web", &[]), &mut random), None);
}
