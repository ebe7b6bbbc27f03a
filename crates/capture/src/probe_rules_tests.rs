use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::*;
use crate::links::{self, Route, VethOptions};
use crate::pod_rules::{self, PodRules};
use crate::test_support::{at, ip, judge, may_run};

const NODE: &str = "10.98.0.1";
const NODE6: &str = "fd98::1";
const APP: u16 = 8080;

/// A node with a bridge, and pods on it.
struct Node {
    host: NetworkNamespace,
}

impl Node {
    fn new() -> Self {
        let host = NetworkNamespace::create().unwrap();
        links::disable_address_detection(&host).unwrap();
        links::create_bridge(&host, "br0").unwrap();
        links::add_address(&host, "br0", ip(NODE), 24).unwrap();
        links::add_address(&host, "br0", ip(NODE6), 64).unwrap();
        links::set_up(&host, "br0").unwrap();
        Self { host }
    }

    fn pod(&self, number: u8) -> (NetworkNamespace, [IpAddr; 2]) {
        let pod = NetworkNamespace::create().unwrap();
        links::disable_address_detection(&pod).unwrap();
        let port = format!("pod{number}");
        links::create_veth(&pod, "eth0", &self.host, &port, &VethOptions::default()).unwrap();
        links::set_master(&self.host, &port, "br0").unwrap();
        links::set_up(&self.host, &port).unwrap();
        let addresses = [ip(&format!("10.98.0.{number}")), ip(&format!("fd98::{number}"))];
        links::add_address(&pod, "eth0", addresses[0], 24).unwrap();
        links::add_address(&pod, "eth0", addresses[1], 64).unwrap();
        links::set_up(&pod, "eth0").unwrap();
        links::add_route(&pod, &Route::default_v4().via(ip(NODE))).unwrap();
        links::add_route(&pod, &Route::default_v6().via(ip(NODE6))).unwrap();
        (pod, addresses)
    }
}

fn listen(namespace: &NetworkNamespace, address: IpAddr) -> TcpListener {
    namespace.run(|| TcpListener::bind((address, APP)).unwrap()).unwrap()
}

/// Connects and says something.
fn dial(namespace: &NetworkNamespace, to: IpAddr, patience: Duration) -> io::Result<TcpStream> {
    let mut stream = namespace.run(|| TcpStream::connect_timeout(&at(&to.to_string(), APP), patience)).unwrap()?;
    stream.write_all(b"ping")?;
    Ok(stream)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn health_checks_reach_a_captured_pod_that_has_no_proxy_and_nobody_else_does() {
    if !may_run("health_checks_reach_a_captured_pod_that_has_no_proxy_and_nobody_else_does") {
        return;
    }
    let node = Node::new();
    let ((pod, addresses), (neighbour, _)) = (node.pod(7), node.pod(8));
    pod_rules::install(&pod, &PodRules::default()).unwrap();
    let rules = ProbeRules::default();
    for address in addresses {
        let program = listen(&pod, address);
        // To others the pod is what its proxy makes of it, and there is none.
        let refused = dial(&neighbour, address, LONG).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(dial(&node.host, address, LONG).is_err(), "a health check looks like any other connection");
        install(&node.host, &rules, &BTreeSet::from([address])).unwrap();
        assert_eq!(check(&node.host, &rules, &BTreeSet::from([address])).unwrap(), []);
        let checking = dial(&node.host, address, LONG).unwrap();
        let (mut accepted, from) = program.accept().unwrap();
        let source = if address.is_ipv4() { IpAddr::from(PROBE_SOURCE_V4) } else { PROBE_SOURCE_V6.into() };
        assert_eq!(from.ip(), source);
        accepted.read_exact(&mut [0; 4]).unwrap();
        assert!(dial(&neighbour, address, LONG).is_err());
        drop(checking);
    }
    // Another user's connections are no health checks.
    let other = ProbeRules { kubelet_uid: 4242, ..rules };
    install(&node.host, &other, &BTreeSet::from(addresses)).unwrap();
    assert!(dial(&node.host, addresses[0], LONG).is_err());
    remove(&node.host).unwrap();
    assert_eq!(installed(&node.host).unwrap(), []);
}

/// A neighbour that has the address of health checks, and a victim that would answer it: there is nothing in the way but
/// the node's rules.
#[test]
fn a_pod_cannot_pass_for_a_health_check() {
    if !may_run("a_pod_cannot_pass_for_a_health_check") {
        return;
    }
    let node = Node::new();
    let ((pod, [address, _]), (neighbour, _)) = (node.pod(7), node.pod(8));
    pod_rules::install(&pod, &PodRules::default()).unwrap();
    let _program = listen(&pod, address);
    let forged = IpAddr::from(PROBE_SOURCE_V4);
    links::add_address(&neighbour, "eth0", forged, 32).unwrap();
    links::add_route(&neighbour, &Route::host(address).device("eth0").source(forged)).unwrap();
    links::add_route(&pod, &Route::host(forged).device("eth0")).unwrap();
    dial(&neighbour, address, LONG).expect("without the node's rules the forgery works, or this test shows nothing");
    install(&node.host, &ProbeRules::default(), &BTreeSet::from([address])).unwrap();
    let error = dial(&neighbour, address, Duration::from_secs(2)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
}

#[test]
fn what_others_change_is_noticed() {
    if !may_run("what_others_change_is_noticed") {
        return;
    }
    let host = NetworkNamespace::create().unwrap();
    let (rules, pods) = (ProbeRules::default(), BTreeSet::from([ip("10.1.0.4"), ip("fd01::4")]));
    let problems = || check(&host, &rules, &pods).unwrap();
    assert!(matches!(problems()[..], [Problem::Missing(_)]));
    install(&host, &rules, &pods).unwrap();
    assert_eq!(problems(), []);
    if judge(&host, "nft", &["delete", "element", "inet", TABLE, "pods-v4", "{ 10.1.0.4 }"]).is_some() {
        assert_eq!(problems(), [Problem::Missing("pod address 10.1.0.4".into())]);
    }
    install(&host, &rules, &pods).unwrap();
    if judge(&host, "nft", &["flush", "chain", "inet", TABLE, PREROUTING]).is_some() {
        assert_eq!(problems().len(), 2);
    }
    install(&host, &rules, &BTreeSet::new()).unwrap();
    assert_eq!(problems().len(), 2, "both addresses are missing");
}
