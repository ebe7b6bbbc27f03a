use super::*;
use crate::Map;

fn name(port: &str, transport: Transport, service_port: u16) -> PortName {
    PortName { name: port.into(), transport, service_port }
}

#[test]
fn ports_are_those_of_their_transport() {
    let udp = |service_port, target| Port { transport: Transport::Udp, ..Port::tcp(service_port, target) };
    let mut dns = Service::new("ns", "dns", "dns.ns.svc.cluster.local");
    dns.ports = vec![udp(53, 1), Port::tcp(53, 2), udp(54, 3), Port::tcp(55, 4)];
    dns.port_names =
        vec![name("q", Transport::Udp, 53), name("q", Transport::Tcp, 55), name("gone", Transport::Tcp, 54)];
    assert_eq!(dns.tcp_ports().map(|port| port.target_port).collect::<Vec<_>>(), [2, 4]);
    let target = |port: Option<&Port>| port.map(|port| port.target_port);
    assert_eq!([53, 54, 55].map(|port| target(dns.port(port))), [Some(2), None, Some(4)]);
    for (wanted, transport, expected) in [
        ("q", Transport::Udp, Some(1)),
        ("q", Transport::Tcp, Some(4)),
        ("gone", Transport::Tcp, None),
        ("x", Transport::Tcp, None),
    ] {
        assert_eq!(target(dns.port_named(wanted, transport)), expected, "{wanted} {transport:?}");
    }
}

#[test]
fn families_permit_their_addresses() {
    let addresses = ["10.0.0.1", "fd00::1"].map(|text| text.parse().expect("an address"));
    for (families, v4, v6) in [
        (IpFamilies::Automatic, true, true),
        (IpFamilies::Dual, true, true),
        (IpFamilies::Ipv4Only, true, false),
        (IpFamilies::Ipv6Only, false, true),
    ] {
        assert_eq!(addresses.map(|address| families.permit(&address)), [v4, v6], "{families:?}");
    }
}

#[test]
fn a_hidden_service_is_seen_by_its_own_namespace() {
    let mut service = Service::new("ns", "s", "s");
    assert!(service.visible_to("ns") && service.visible_to("other"));
    service.visibility = Visibility::Namespace;
    assert!(service.visible_to("ns") && !service.visible_to("other"));
}

#[test]
fn a_waypoint_that_may_not_be_used_is_no_services_name_and_users_know_it_by_their_own() {
    let waypoint = Service::new("ns", "gw", "gw.ns.svc.cluster.local").id;
    let not_allowed = ServiceName::not_allowed(&waypoint);
    assert_eq!((waypoint.is_not_allowed(), not_allowed.is_not_allowed()), (false, true));
    assert_eq!([waypoint.users_hostname(), not_allowed.users_hostname()], ["gw.ns.svc.cluster.local"; 2]);
    assert_eq!(not_allowed.namespace, waypoint.namespace);
    let keys: Map<ServiceName, ()> = [waypoint, not_allowed].into_iter().map(|name| (name, ())).collect();
    assert_eq!(keys.len(), 2);
}
