use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::test_support::{PEER, PEER6, POD, POD6, Pair, ip, judge, may_run};

#[test]
fn unusable_names_are_refused() {
    for bad in ["", "sixteen-bytes-xx", "a/b", "a b", ".", ".."] {
        assert!(matches!(check_name(bad), Err(Error::InvalidName { .. })), "{bad:?}");
    }
    check_name("fifteen-bytes-x").unwrap();
    for bad in ["kernel.hostname", "net.ipv4/../../kernel/hostname", "net/../kernel/hostname", "net..x"] {
        assert!(sysctl_path(bad).is_err(), "{bad}");
    }
    assert_eq!(sysctl_path("net/ipv4/conf/eth0.5/rp_filter").unwrap(), "/proc/sys/net/ipv4/conf/eth0.5/rp_filter");
}

#[test]
fn a_cable_carries_both_families() {
    if !may_run("a_cable_carries_both_families") {
        return;
    }
    let pair = Pair::new();
    for address in [PEER, PEER6] {
        let listener = pair.peer.run(|| TcpListener::bind((ip(address), 0)).unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        pair.pod.run(|| TcpStream::connect(to).unwrap()).unwrap();
    }
    let addresses: Vec<_> = list_addresses(&pair.pod).unwrap().into_iter().map(|a| a.address).collect();
    assert!(addresses.contains(&ip(POD)) && addresses.contains(&ip(POD6)), "{addresses:?}");
    let links = list_links(&pair.pod).unwrap();
    let eth0 = links.iter().find(|link| link.name == "eth0").unwrap();
    assert!(eth0.up && eth0.kind.as_deref() == Some("veth"), "{eth0:?}");
    assert!(links.iter().any(|link| link.name == "lo" && link.up));
}

#[test]
fn cables_have_the_asked_properties_and_go_away() {
    if !may_run("cables_have_the_asked_properties_and_go_away") {
        return;
    }
    let (a, b) = (NetworkNamespace::create().unwrap(), NetworkNamespace::create().unwrap());
    let options = VethOptions { mtu: Some(1400), mac: Some([2, 0, 0, 0, 0, 1]), peer_mac: Some([2, 0, 0, 0, 0, 2]) };
    create_veth(&a, "left", &b, "right", &options).unwrap();
    let left = list_links(&a).unwrap().into_iter().find(|l| l.name == "left").unwrap();
    let right = list_links(&b).unwrap().into_iter().find(|l| l.name == "right").unwrap();
    assert_eq!((left.mtu, left.mac, left.up), (1400, options.mac, false));
    assert_eq!((right.mtu, right.mac, right.up), (1400, options.peer_mac, false));
    let taken = create_veth(&a, "left", &b, "other", &options).unwrap_err();
    assert_eq!(taken.errno(), Some(libc::EEXIST), "{taken}");
    delete_link(&a, "left").unwrap();
    delete_link(&a, "left").unwrap();
    assert!(link_index(&b, "right").is_err());
}

#[test]
fn a_bridge_joins_its_ports() {
    if !may_run("a_bridge_joins_its_ports") {
        return;
    }
    let node = NetworkNamespace::create().unwrap();
    create_bridge(&node, "br0").unwrap();
    set_up(&node, "br0").unwrap();
    let pods: Vec<_> = (1..=2u8)
        .map(|i| {
            let pod = NetworkNamespace::create().unwrap();
            let port = format!("port{i}");
            create_veth(&pod, "eth0", &node, &port, &VethOptions::default()).unwrap();
            set_master(&node, &port, "br0").unwrap();
            set_up(&node, &port).unwrap();
            set_up(&pod, "eth0").unwrap();
            add_address(&pod, "eth0", IpAddr::from([10, 98, 0, i]), 24).unwrap();
            pod
        })
        .collect();
    let listener = pods[0].run(|| TcpListener::bind("10.98.0.1:0").unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    pods[1].run(|| TcpStream::connect(to).unwrap()).unwrap();
    let bridge = link_index(&node, "br0").unwrap();
    assert!(list_links(&node).unwrap().iter().any(|l| l.name == "port1" && l.master == Some(bridge)));
}

#[test]
fn repeating_is_harmless() {
    if !may_run("repeating_is_harmless") {
        return;
    }
    let pair = Pair::new();
    let pod = &pair.pod;
    let rules = [false, true].map(|ipv6| PolicyRule { ipv6, mark: Some((0x111, 0xfff)), priority: 32764, table: 100 });
    let routes =
        [Route::default_v4(), Route::default_v6()].map(|route| route.kind(RouteKind::Local).device("lo").table(100));
    for _ in 0..2 {
        add_address(pod, "eth0", ip(POD), 24).unwrap();
        add_address(pod, "eth0", ip(POD6), 64).unwrap();
        for (rule, route) in rules.iter().zip(&routes) {
            add_policy_rule(pod, rule).unwrap();
            add_route(pod, route).unwrap();
        }
    }
    let listed = list_policy_rules(pod).unwrap();
    for (rule, route) in rules.iter().zip(&routes) {
        assert_eq!(listed.iter().filter(|listed| *listed == rule).count(), 1, "{listed:?}");
        let found = list_routes(pod, 100).unwrap();
        assert_eq!(
            found.iter().filter(|r| r.destination == route.destination && r.kind == route.kind).count(),
            1,
            "{found:?}"
        );
    }
    if let Some(text) = judge(pod, "ip", &["rule", "show"]) {
        assert!(text.contains("32764:\tfrom all fwmark 0x111/0xfff lookup 100"), "{text}");
    }
    if let Some(text) = judge(pod, "ip", &["-6", "route", "show", "table", "100"]) {
        assert!(text.contains("local default dev lo"), "{text}");
    }
    if let Some(text) = judge(pod, "ip", &["route", "show", "table", "100"]) {
        assert!(text.contains("local default dev lo"), "{text}");
    }
    for _ in 0..2 {
        for (rule, route) in rules.iter().zip(&routes) {
            delete_policy_rule(pod, rule).unwrap();
            delete_route(pod, route).unwrap();
        }
    }
    assert!(list_routes(pod, 100).unwrap().is_empty());
    assert!(list_policy_rules(pod).unwrap().iter().all(|rule| rule.table != 100));
}

#[test]
fn routes_lead_somewhere() {
    if !may_run("routes_lead_somewhere") {
        return;
    }
    let pair = Pair::new();
    let net: ipnet::IpNet = "10.77.0.0/16".parse().unwrap();
    let route = Route::to(net).via(ip(PEER)).metric(50);
    add_route(&pair.pod, &route).unwrap();
    let found = list_routes(&pair.pod, TABLE_MAIN).unwrap();
    let added = found.iter().find(|r| r.destination == net).unwrap();
    assert_eq!((added.gateway, added.metric, added.device.as_deref()), (Some(ip(PEER)), Some(50), Some("eth0")));
    let unreachable = add_route(&pair.pod, &Route::to(net).via(ip("192.0.2.1"))).unwrap_err();
    assert_eq!(unreachable.errno(), Some(libc::ENETUNREACH), "{unreachable}");
    assert!(unreachable.to_string().contains("adding route 10.77.0.0/16 via 192.0.2.1"), "{unreachable}");
    delete_route(&pair.pod, &route).unwrap();
}

#[test]
fn a_namespace_knows_its_own_addresses() {
    if !may_run("a_namespace_knows_its_own_addresses") {
        return;
    }
    let pair = Pair::new();
    let second = ip("192.0.2.7");
    add_address(&pair.pod, "lo", second, 32).unwrap();
    // The kernel makes an IPv6 address its own a moment after the link is up.
    let deadline = Instant::now() + Duration::from_secs(10);
    for own in [ip(POD), ip(POD6), second] {
        while !is_own_address(&pair.pod, own).unwrap() {
            assert!(Instant::now() < deadline, "{own}");
        }
    }
    // A neighbour's, one beyond a router, and one that no route leads to.
    add_route(&pair.pod, &Route::to("198.51.100.0/24".parse::<ipnet::IpNet>().unwrap()).via(ip(PEER))).unwrap();
    add_policy_rule(&pair.pod, &PolicyRule { ipv6: false, mark: Some((0x111, 0xfff)), priority: 32_764, table: 100 })
        .unwrap();
    add_route(&pair.pod, &Route::default_v4().kind(RouteKind::Local).device("lo").table(100)).unwrap();
    for other in [ip(PEER), ip(PEER6), ip("198.51.100.9"), ip("203.0.113.1"), ip("2001:db8::1")] {
        assert!(!is_own_address(&pair.pod, other).unwrap(), "{other}");
    }
}

#[test]
fn sysctls_belong_to_the_namespace() {
    if !may_run("sysctls_belong_to_the_namespace") {
        return;
    }
    let (a, b) = (NetworkNamespace::create().unwrap(), NetworkNamespace::create().unwrap());
    set_sysctl(&b, "net.ipv4.ip_forward", "0").unwrap();
    enable_forwarding(&a).unwrap();
    disable_reverse_path_filter(&a).unwrap();
    disable_address_detection(&a).unwrap();
    assert_eq!(get_sysctl(&a, "net.ipv4.ip_forward").unwrap(), "1");
    assert_eq!(get_sysctl(&a, "net.ipv6.conf.all.forwarding").unwrap(), "1");
    assert_eq!(get_sysctl(&a, "net.ipv4.conf.lo.rp_filter").unwrap(), "0");
    assert_eq!(get_sysctl(&b, "net.ipv4.ip_forward").unwrap(), "0");
    assert!(has_ipv6(&a).unwrap());
}
