use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::sniff::Sniffer;
use crate::sockets::{
    ConnectOptions, ListenOptions, Listener, connector, listen_dns, listen_wildcard, original_destination, udp,
};
use crate::test_support::{PEER, PEER6, POD, POD6, Pair, at, ip, judge, may_run};

const APP: u16 = 8080;

fn proxy(namespace: &NetworkNamespace, port: u16) -> Listener {
    let listener = listen_wildcard(namespace, port, &ListenOptions::default()).unwrap();
    listener.socket.set_nonblocking(false).unwrap();
    listener
}

fn listen(namespace: &NetworkNamespace, address: &str, port: u16) -> TcpListener {
    namespace.run(|| TcpListener::bind(at(address, port)).unwrap()).unwrap()
}

fn dial(namespace: &NetworkNamespace, to: SocketAddr) -> io::Result<TcpStream> {
    namespace.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap()
}

/// Both ways, so that a broken return path shows.
fn exchange(a: &mut TcpStream, b: &mut TcpStream) {
    for stream in [&*a, &*b] {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    a.write_all(b"ping").unwrap();
    b.read_exact(&mut [0; 4]).unwrap();
    b.write_all(b"pong").unwrap();
    a.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn the_rules_are_istios() {
    if !may_run("the_rules_are_istios") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    install(&pod, &PodRules::default()).unwrap();
    let Some(nat) = judge(&pod, "nft", &["list", "table", "inet", NAT_TABLE]) else { return };
    let expected = "table inet istio-ambient-nat {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		jump istio-prerouting
	}

	chain output {
		type nat hook output priority -100; policy accept;
		jump istio-output
	}

	chain istio-prerouting {
		meta l4proto tcp ip saddr 169.254.7.127 counter packets 0 bytes 0 accept
		meta l4proto tcp ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter packets 0 bytes 0 accept
		ip daddr != 127.0.0.1 tcp dport != 15008 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 redirect to :15006
		ip6 daddr != ::1 tcp dport != 15008 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 redirect to :15006
	}

	chain istio-output {
		meta l4proto tcp ip daddr 169.254.7.127 counter packets 0 bytes 0 accept
		meta l4proto tcp ip6 daddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter packets 0 bytes 0 accept
		oifname != \"lo\" meta mark & 0x00000fff != 0x00000539 udp dport 53 counter packets 0 bytes 0 redirect to :15053
		ip daddr != 127.0.0.1 tcp dport 53 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 redirect to :15053
		ip6 daddr != ::1 tcp dport 53 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 redirect to :15053
		meta l4proto tcp meta mark & 0x00000fff == 0x00000111 counter packets 0 bytes 0 accept
		oifname \"lo\" ip daddr != 127.0.0.1 counter packets 0 bytes 0 accept
		oifname \"lo\" ip6 daddr != ::1 counter packets 0 bytes 0 accept
		meta l4proto tcp ip daddr != 127.0.0.1 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 redirect to :15001
		meta l4proto tcp ip6 daddr != ::1 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 redirect to :15001
	}
}
";
    assert_eq!(nat, expected, "{nat}");
    let mangle = judge(&pod, "nft", &["list", "table", "inet", MANGLE_TABLE]).unwrap();
    assert!(mangle.contains("type route hook output priority mangle; policy accept;"), "{mangle}");
    let raw = judge(&pod, "nft", &["list", "table", "inet", RAW_TABLE]).unwrap();
    assert!(
        raw.contains("udp sport 53 meta mark & 0x00000fff != 0x00000539 counter packets 0 bytes 0 ct zone set 1"),
        "{raw}"
    );
    assert!(
        raw.contains("udp dport 53 meta mark & 0x00000fff == 0x00000539 counter packets 0 bytes 0 ct zone set 1"),
        "{raw}"
    );
}

#[test]
fn every_variant_installs_and_checks() {
    if !may_run("every_variant_installs_and_checks") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    let mut before: Option<PodRules> = None;
    for dns_capture in [true, false] {
        for ingress_only in [false, true] {
            for ipv6 in [true, false] {
                for virtual_interfaces in [vec![], vec!["tap0".to_owned(), "tap1".to_owned()]] {
                    let rules = PodRules { dns_capture, ingress_only, ipv6, virtual_interfaces, ..PodRules::default() };
                    if before.is_some() {
                        assert_ne!(check(&pod, &rules).unwrap(), [], "what {before:?} left is not {rules:?}");
                    }
                    for _ in 0..2 {
                        install(&pod, &rules).unwrap();
                        assert_eq!(check(&pod, &rules).unwrap(), []);
                    }
                    before = Some(rules);
                }
            }
        }
    }
    for _ in 0..2 {
        remove(&pod).unwrap();
        assert_eq!(nft::list_tables(&pod).unwrap(), []);
        assert_eq!(links::list_routes(&pod, REPLY_ROUTE_TABLE).unwrap(), []);
        assert!(links::list_policy_rules(&pod).unwrap().iter().all(|rule| rule.priority != REPLY_RULE_PRIORITY));
    }
}

/// What a kernel built without IPv6 gets.
#[test]
fn the_ipv4_only_form_works_too() {
    if !may_run("the_ipv4_only_form_works_too") {
        return;
    }
    let pair = Pair::new();
    let rules = PodRules { ipv6: false, ..PodRules::default() };
    let mut batch = Batch::new();
    for content in rules.tables(Family::Ipv4) {
        content.add_to(&mut batch);
    }
    batch.commit(&pair.pod).unwrap();
    for (rule, route) in rules.reply_routing() {
        links::add_route(&pair.pod, &route).unwrap();
        links::add_policy_rule(&pair.pod, &rule).unwrap();
    }
    assert_eq!(check(&pair.pod, &rules).unwrap(), []);
    let outbound = proxy(&pair.pod, OUTBOUND_PORT);
    dial(&pair.pod, at("192.0.2.7", 80)).unwrap();
    assert_eq!(original_destination(&outbound.socket.accept().unwrap().0).unwrap(), at("192.0.2.7", 80));
    remove(&pair.pod).unwrap();
    assert_eq!(nft::list_tables(&pair.pod).unwrap(), []);
}

#[test]
fn tampering_is_found() {
    if !may_run("tampering_is_found") {
        return;
    }
    let rules = PodRules::default();
    let nat = Table::new(Family::Inet, NAT_TABLE);
    type Tamper<'a> = Box<dyn Fn(&NetworkNamespace) + 'a>;
    let cases: [(&str, Tamper<'_>); 7] = [
        (
            "missing: table inet istio-ambient-raw",
            Box::new(|pod| {
                let mut batch = Batch::new();
                batch.delete_table(&Table::new(Family::Inet, RAW_TABLE));
                batch.commit(pod).unwrap();
            }),
        ),
        (
            "missing: rule inet istio-ambient-nat istio-output: meta l4proto tcp",
            Box::new(|pod| {
                let mut batch = Batch::new();
                batch.flush(&nat, Some(OUTPUT));
                batch.commit(pod).unwrap();
            }),
        ),
        (
            "unexpected: 1 more rules at the end of inet istio-ambient-nat istio-output",
            Box::new(|pod| {
                let mut batch = Batch::new();
                batch.add_rule(&nat, OUTPUT, Rule::new().accept());
                batch.commit(pod).unwrap();
            }),
        ),
        (
            "different: rule 1 of inet istio-ambient-nat output is not `jump istio-output`",
            Box::new(|pod| {
                let mut batch = Batch::new();
                batch.flush(&nat, Some("output")).add_rule(&nat, "output", Rule::new().accept());
                batch.commit(pod).unwrap();
            }),
        ),
        (
            "unexpected: chain inet istio-ambient-nat sneaky",
            Box::new(|pod| {
                let mut batch = Batch::new();
                batch.add_chain(&nat, Chain::regular("sneaky"));
                batch.commit(pod).unwrap();
            }),
        ),
        (
            "missing: IPv6 rule fwmark 0x111/0xfff pref 32764 lookup 100",
            Box::new(|pod| {
                links::delete_policy_rule(pod, &rules.reply_routing()[1].0).unwrap();
            }),
        ),
        (
            "missing: route local 0.0.0.0/0 dev lo table 100",
            Box::new(|pod| {
                links::delete_route(pod, &rules.reply_routing()[0].1).unwrap();
            }),
        ),
    ];
    for (expected, tamper) in cases {
        let pod = NetworkNamespace::create().unwrap();
        install(&pod, &rules).unwrap();
        tamper(&pod);
        let problems: Vec<_> = check(&pod, &rules).unwrap().iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|p| p.starts_with(expected)), "{expected}\n{problems:#?}");
        install(&pod, &rules).unwrap();
        assert_eq!(check(&pod, &rules).unwrap(), [], "a fresh install must mend it");
    }
    let empty = NetworkNamespace::create().unwrap();
    assert_eq!(check(&empty, &rules).unwrap().len(), 7);
}

#[test]
fn what_the_pod_sends_reaches_the_proxy() {
    if !may_run("what_the_pod_sends_reaches_the_proxy") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let outbound = proxy(&pair.pod, OUTBOUND_PORT);
    for destination in [at(PEER, 80), at(PEER6, 80), at("192.0.2.1", 9999), at("2001:db8::1", 9999)] {
        let mut client = dial(&pair.pod, destination).unwrap();
        let (mut captured, _) = outbound.socket.accept().unwrap();
        assert_eq!(original_destination(&captured).unwrap(), destination);
        exchange(&mut client, &mut captured);
        assert_eq!(client.peer_addr().unwrap(), destination, "the application must not notice");
    }
    // The proxy's own connections pass.
    for address in [PEER, PEER6] {
        let server = listen(&pair.peer, address, APP);
        let socket = connector(&pair.pod, at(address, APP), None, &ConnectOptions::default()).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.connect(&at(address, APP).into()).unwrap();
        let mut socket: TcpStream = socket.into();
        exchange(&mut socket, &mut server.accept().unwrap().0);
    }
    // So do connections of the pod to itself.
    for address in ["127.0.0.1", "::1", POD, POD6] {
        let server = listen(&pair.pod, address, APP);
        let mut client = dial(&pair.pod, at(address, APP)).unwrap();
        exchange(&mut client, &mut server.accept().unwrap().0);
    }
}

#[test]
fn what_the_pod_receives_reaches_the_proxy() {
    if !may_run("what_the_pod_receives_reaches_the_proxy") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let (inbound, tunnel) = (proxy(&pair.pod, INBOUND_PORT), proxy(&pair.pod, TUNNEL_PORT));
    for address in [POD, POD6] {
        let mut client = dial(&pair.peer, at(address, APP)).unwrap();
        let (mut captured, _) = inbound.socket.accept().unwrap();
        assert_eq!(original_destination(&captured).unwrap(), at(address, APP));
        exchange(&mut client, &mut captured);
        let mut client = dial(&pair.peer, at(address, TUNNEL_PORT)).unwrap();
        let (mut direct, _) = tunnel.socket.accept().unwrap();
        assert_eq!(original_destination(&direct).unwrap(), at(address, TUNNEL_PORT));
        exchange(&mut client, &mut direct);
    }
    install(&pair.pod, &PodRules { ingress_only: true, ..PodRules::default() }).unwrap();
    for address in [POD, POD6] {
        let server = listen(&pair.pod, address, APP);
        let mut client = dial(&pair.peer, at(address, APP)).unwrap();
        exchange(&mut client, &mut server.accept().unwrap().0);
    }
}

/// The way from the proxy to the application: the application sees its client, and its replies stay in the pod.
#[test]
fn the_application_sees_its_client() {
    if !may_run("the_application_sees_its_client") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    for (pod, client) in [(POD, PEER), (POD6, PEER6), (POD, "198.51.100.9"), (POD6, "2001:db8::9")] {
        let server = listen(&pair.pod, pod, APP);
        let wire = Sniffer::start(&pair.pod, Some("eth0"), b"ping").unwrap();
        let socket = connector(&pair.pod, at(pod, APP), Some(at(client, 0)), &ConnectOptions::default()).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.connect_timeout(&at(pod, APP).into(), Duration::from_secs(5)).unwrap();
        let mut socket: TcpStream = socket.into();
        let (mut accepted, from) = server.accept().unwrap();
        assert_eq!(from.ip(), ip(client));
        exchange(&mut socket, &mut accepted);
        let seen = wire.stop().unwrap();
        assert_eq!((seen.other_tcp_packets, seen.dropped), (0, 0), "{seen:?}");
    }
}

#[test]
fn health_checks_of_the_host_pass() {
    if !may_run("health_checks_of_the_host_pass") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let _inbound = proxy(&pair.pod, INBOUND_PORT);
    for (pod, probe, length) in [(POD, IpAddr::V4(PROBE_SOURCE_V4), 32), (POD6, IpAddr::V6(PROBE_SOURCE_V6), 128)] {
        links::add_address(&pair.peer, "lo", probe, length).unwrap();
        let server = listen(&pair.pod, pod, APP);
        let socket =
            connector(&pair.peer, at(pod, APP), Some(SocketAddr::new(probe, 0)), &ConnectOptions::default()).unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.connect_timeout(&at(pod, APP).into(), Duration::from_secs(5)).unwrap();
        let mut socket: TcpStream = socket.into();
        let (mut accepted, from) = server.accept().unwrap();
        assert_eq!(from.ip(), probe);
        exchange(&mut socket, &mut accepted);
    }
}

#[test]
fn dns_queries_reach_the_proxy() {
    if !may_run("dns_queries_reach_the_proxy") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let dns = listen_dns(&pair.pod, DNS_PORT, &ListenOptions::default()).unwrap();
    let timeout = Some(Duration::from_secs(5));
    for ((server, listener), (resolver, any)) in dns.udp.iter().zip(&dns.tcp).zip([(PEER, "0.0.0.0"), (PEER6, "::")]) {
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(timeout).unwrap();
        let client = pair.pod.run(|| UdpSocket::bind(at(any, 0)).unwrap()).unwrap();
        client.set_read_timeout(timeout).unwrap();
        client.send_to(b"who?", at(resolver, DNS)).unwrap();
        let mut buffer = [0; 16];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"who?");
        // The proxy's own query reaches the real resolver.
        let upstream = pair.peer.run(|| UdpSocket::bind(at(resolver, DNS)).unwrap()).unwrap();
        upstream.set_read_timeout(timeout).unwrap();
        let asking = udp(&pair.pod, at(any, 0), &ListenOptions::default()).unwrap();
        asking.set_nonblocking(false).unwrap();
        asking.set_read_timeout(timeout).unwrap();
        asking.send_to(b"who?", at(resolver, DNS)).unwrap();
        let (_, asker) = upstream.recv_from(&mut buffer).unwrap();
        upstream.send_to(b"them", asker).unwrap();
        assert_eq!(asking.recv_from(&mut buffer).unwrap(), (4, at(resolver, DNS)));
        server.send_to(b"them", from).unwrap();
        assert_eq!(client.recv_from(&mut buffer).unwrap(), (4, at(resolver, DNS)), "the client must not notice");
        let mut client = dial(&pair.pod, at(resolver, DNS)).unwrap();
        listener.socket.set_nonblocking(false).unwrap();
        exchange(&mut client, &mut listener.socket.accept().unwrap().0);
    }
}

#[test]
fn a_dns_socket_outlives_the_capture() {
    if !may_run("a_dns_socket_outlives_the_capture") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let dns = listen_dns(&pair.pod, DNS_PORT, &ListenOptions::default()).unwrap();
    let timeout = Some(Duration::from_secs(5));
    for (server, (resolver, any)) in dns.udp.iter().zip([(PEER, "0.0.0.0"), (PEER6, "::")]) {
        install(&pair.pod, &PodRules::default()).unwrap();
        let upstream = pair.peer.run(|| UdpSocket::bind(at(resolver, DNS)).unwrap()).unwrap();
        let client = pair.pod.run(|| UdpSocket::bind(at(any, 0)).unwrap()).unwrap();
        server.set_nonblocking(false).unwrap();
        for socket in [server, &upstream, &client] {
            socket.set_read_timeout(timeout).unwrap();
        }
        let ask = |server: &UdpSocket| {
            let mut buffer = [0; 16];
            client.send_to(b"who?", at(resolver, DNS)).unwrap();
            let (_, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(b"them", from).unwrap();
            assert_eq!(client.recv_from(&mut buffer).unwrap(), (4, at(resolver, DNS)));
        };
        ask(server);
        remove_redirect(&pair.pod).unwrap();
        ask(server);
        release_dns(&pair.pod).unwrap();
        ask(&upstream);
    }
}

/// A redirected connection lives by its entry in the kernel's table of connections. Where that is dropped, the next packet goes
/// nowhere.
#[test]
fn a_half_closed_connection_may_rest_for_hours() {
    if !may_run("a_half_closed_connection_may_rest_for_hours") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    for state in ["close_wait", "fin_wait"] {
        let name = format!("net.netfilter.nf_conntrack_tcp_timeout_{state}");
        assert_eq!(links::get_sysctl(&pair.pod, &name).unwrap(), "10800", "{name}");
        // The machine's own stay.
        assert_ne!(links::get_sysctl(&pair.peer, &name).unwrap(), "10800", "{name}");
    }
}

/// The promise behind everything: with the rules in place and nobody listening, nothing gets out, and nothing gets in.
#[test]
fn a_dead_proxy_means_refused_not_plaintext() {
    if !may_run("a_dead_proxy_means_refused_not_plaintext") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let servers = [listen(&pair.peer, PEER, APP), listen(&pair.peer, PEER6, APP)];
    let wire = Sniffer::start(&pair.pod, Some("eth0"), b"x").unwrap();
    for address in [PEER, PEER6] {
        for port in [APP, DNS] {
            let error = dial(&pair.pod, at(address, port)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}:{port}");
        }
    }
    let query = pair.pod.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    query.connect(at(PEER, DNS)).unwrap();
    query.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    query.send(b"x").unwrap();
    assert_eq!(query.recv(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let seen = wire.stop().unwrap();
    assert_eq!((seen.other_tcp_packets, seen.canaries, seen.dropped), (0, 0, 0), "{seen:?}");
    for server in &servers {
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    for address in [POD, POD6] {
        let _application = listen(&pair.pod, address, APP);
        let error = dial(&pair.peer, at(address, APP)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}");
    }
}

#[test]
fn existing_connections_survive_enrolment() {
    if !may_run("existing_connections_survive_enrolment") {
        return;
    }
    for (pod, peer) in [(POD, PEER), (POD6, PEER6)] {
        let pair = Pair::new();
        let (there, here) = (listen(&pair.peer, peer, APP), listen(&pair.pod, pod, APP));
        let mut out = dial(&pair.pod, at(peer, APP)).unwrap();
        let mut out_end = there.accept().unwrap().0;
        let mut inward = dial(&pair.peer, at(pod, APP)).unwrap();
        let mut inward_end = here.accept().unwrap().0;
        exchange(&mut out, &mut out_end);
        exchange(&mut inward, &mut inward_end);
        install(&pair.pod, &PodRules::default()).unwrap();
        exchange(&mut out, &mut out_end);
        exchange(&mut inward, &mut inward_end);
        let refused = dial(&pair.pod, at(peer, APP)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "new connections are captured");
    }
}

#[test]
fn captured_connections_survive_reinstallation_and_unenrolment() {
    if !may_run("captured_connections_survive_reinstallation_and_unenrolment") {
        return;
    }
    for (pod, peer) in [(POD, PEER), (POD6, PEER6)] {
        let pair = Pair::new();
        install(&pair.pod, &PodRules::default()).unwrap();
        let (outbound, inbound) = (proxy(&pair.pod, OUTBOUND_PORT), proxy(&pair.pod, INBOUND_PORT));
        let mut out = dial(&pair.pod, at(peer, APP)).unwrap();
        let mut out_end = outbound.socket.accept().unwrap().0;
        let mut inward = dial(&pair.peer, at(pod, APP)).unwrap();
        let mut inward_end = inbound.socket.accept().unwrap().0;
        // And the proxy's leg to the application, from the client's address.
        let application = listen(&pair.pod, pod, APP);
        let leg = connector(&pair.pod, at(pod, APP), Some(at(peer, 0)), &ConnectOptions::default()).unwrap();
        leg.set_nonblocking(false).unwrap();
        leg.connect_timeout(&at(pod, APP).into(), Duration::from_secs(5)).unwrap();
        let mut leg: TcpStream = leg.into();
        let mut leg_end = application.accept().unwrap().0;
        let wire = Sniffer::start(&pair.pod, Some("eth0"), b"ping").unwrap();
        for step in 0..3 {
            exchange(&mut out, &mut out_end);
            exchange(&mut leg, &mut leg_end);
            match step {
                0 => install(&pair.pod, &PodRules::default()).unwrap(),
                1 => remove_redirect(&pair.pod).unwrap(),
                _ => {}
            }
        }
        assert_eq!(wire.stop().unwrap().canaries, 0, "data of a captured connection left the pod in the clear");
        exchange(&mut inward, &mut inward_end);
        assert_ne!(check(&pair.pod, &PodRules::default()).unwrap(), []);
        // New connections are free again, both ways.
        let server = listen(&pair.peer, peer, APP);
        exchange(&mut dial(&pair.pod, at(peer, APP)).unwrap(), &mut server.accept().unwrap().0);
        exchange(&mut dial(&pair.peer, at(pod, APP)).unwrap(), &mut application.accept().unwrap().0);
        remove(&pair.pod).unwrap();
    }
}

/// Replacing the rules must not open a gap through which a connection slips past the proxy.
#[test]
fn replacing_the_rules_opens_no_gap() {
    if !may_run("replacing_the_rules_opens_no_gap") {
        return;
    }
    let pair = Pair::new();
    install(&pair.pod, &PodRules::default()).unwrap();
    let wire = Sniffer::start(&pair.pod, Some("eth0"), b"x").unwrap();
    let pod = pair.pod.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let dialling = std::thread::spawn(move || {
        let mut refused = 0u32;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let error = dial(&pod, at(PEER, APP)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            refused += 1;
        }
        refused
    });
    for i in 0..60 {
        install(&pair.pod, &PodRules { dns_capture: i % 2 == 0, ..PodRules::default() }).unwrap();
    }
    drop(stop);
    assert!(dialling.join().unwrap() > 20, "too few connections to have met a gap");
    let seen = wire.stop().unwrap();
    assert_eq!((seen.other_tcp_packets, seen.dropped), (0, 0), "{seen:?}");
}

#[test]
fn connections_from_virtual_interfaces_count_as_sent_by_the_pod() {
    if !may_run("connections_from_virtual_interfaces_count_as_sent_by_the_pod") {
        return;
    }
    let pair = Pair::new();
    links::enable_forwarding(&pair.pod).unwrap();
    install(&pair.pod, &PodRules { virtual_interfaces: vec!["eth0".into()], ..PodRules::default() }).unwrap();
    let outbound = proxy(&pair.pod, OUTBOUND_PORT);
    for destination in [at("192.0.2.9", 443), at("2001:db8::2", 443)] {
        let mut client = dial(&pair.peer, destination).unwrap();
        let (mut captured, _) = outbound.socket.accept().unwrap();
        assert_eq!(original_destination(&captured).unwrap(), destination);
        exchange(&mut client, &mut captured);
    }
}

#[test]
fn only_a_missing_family_leads_to_the_ipv4_form() {
    let error = |entry: &str, errno| Error::Nft {
        entry: entry.into(),
        message: None,
        source: io::Error::from_raw_os_error(errno),
    };
    assert!(lacks_inet(&error("add table inet istio-ambient-nat", libc::EOPNOTSUPP)));
    assert!(!lacks_inet(&error("add table inet istio-ambient-nat", libc::EPERM)));
    assert!(!lacks_inet(&error("add rule inet istio-ambient-nat output redirect to :15001", libc::EOPNOTSUPP)));
}

/// As [`existing_connections_survive_enrolment`], with connections that come and go all the time.
#[test]
fn no_connection_is_lost_however_it_meets_enrolment() {
    const ROUNDS: u32 = 25;
    if !may_run("no_connection_is_lost_however_it_meets_enrolment") {
        return;
    }
    let serve = |listener: &TcpListener| {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut word = [0; 4];
                if stream.read_exact(&mut word).is_ok() {
                    let _ = stream.write_all(&word);
                }
            });
        }
    };
    let ask = |from: &NetworkNamespace, to: &str| {
        let mut stream = dial(from, at(to, APP))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"ping")?;
        stream.read_exact(&mut [0; 4])
    };
    let (mut lost, mut asked) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        // Only the first enrolment of a namespace meets connections that nothing has tracked.
        let pair = Pair::new();
        let (over, done) = (AtomicBool::new(false), AtomicU32::new(0));
        let listeners = [
            listen(&pair.pod, "::", APP),
            listen(&pair.peer, "::", APP),
            proxy(&pair.pod, INBOUND_PORT).socket,
            proxy(&pair.pod, OUTBOUND_PORT).socket,
        ];
        let ask_on = &|from: &NetworkNamespace, to: &str| {
            let mut failed = Vec::new();
            while !over.load(Ordering::Relaxed) {
                if let Err(error) = ask(from, to) {
                    failed.push(format!("round {round}, to {to}: {error}"));
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            failed
        };
        std::thread::scope(|scope| {
            for listener in &listeners {
                scope.spawn(move || serve(listener));
            }
            let clients = [(&pair.peer, POD), (&pair.peer, POD6), (&pair.pod, PEER), (&pair.pod, PEER6)]
                .map(|(from, to)| scope.spawn(move || ask_on(from, to)));
            let wait_for_more = || {
                let seen = done.load(Ordering::Relaxed);
                while done.load(Ordering::Relaxed) < seen + 40 {
                    std::thread::yield_now();
                }
            };
            wait_for_more();
            let installed = install(&pair.pod, &PodRules::default());
            wait_for_more();
            over.store(true, Ordering::Relaxed);
            lost.extend(clients.into_iter().flat_map(|client| client.join().unwrap()));
            for listener in &listeners {
                nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
            }
            installed.unwrap();
        });
        asked += done.load(Ordering::Relaxed);
    }
    assert!(lost.is_empty(), "{} of {asked}: {lost:#?}", lost.len());
}
