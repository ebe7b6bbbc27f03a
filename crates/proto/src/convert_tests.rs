use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use ipnet::IpNet;
use leno_model::Name;
use model::{Authorization, GatewayAddress, GatewayDestination, Match, NetworkAddress, PolicyName, ServiceName};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::security;

fn name() -> impl Strategy<Value = Name> {
    "[a-z][a-z0-9.-]{0,8}".prop_map(Name::from)
}

fn perhaps_name() -> impl Strategy<Value = Name> {
    prop_oneof![Just(Name::from("")), name()]
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
        .prop_map(|ip| ip.to_canonical())
}

fn net() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128_u8).prop_map(|(ip, length)| {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, length.min(most)).expect("prefix within address").trunc()
    })
}

fn network_address() -> impl Strategy<Value = NetworkAddress> {
    (perhaps_name(), address()).prop_map(|(network, address)| NetworkAddress { network, address })
}

fn service_ref() -> impl Strategy<Value = ServiceName> {
    (name(), name()).prop_map(|(namespace, hostname)| ServiceName { namespace, hostname })
}

fn policy_ref() -> impl Strategy<Value = PolicyName> {
    (name(), name()).prop_map(|(namespace, name)| PolicyName { namespace, name })
}

fn gateway_address() -> impl Strategy<Value = GatewayAddress> {
    let destination = prop_oneof![
        service_ref().prop_map(GatewayDestination::Hostname),
        network_address().prop_map(GatewayDestination::Address)
    ];
    (destination, any::<u16>())
        .prop_map(|(destination, hbone_mtls_port)| GatewayAddress { destination, hbone_mtls_port })
}

fn port_entry() -> impl Strategy<Value = model::Port> {
    use model::AppProtocol::{Grpc, Http2, Http11, Tcp, Tls, Unknown};
    let protocol = prop::sample::select(vec![Unknown, Http11, Http2, Grpc, Tcp, Tls]);
    (any::<u16>(), any::<u16>(), protocol).prop_map(|(service_port, target_port, app_protocol)| model::Port {
        service_port,
        target_port,
        app_protocol,
        transport: model::Transport::Tcp,
    })
}

prop_compose! {
    fn workload()(
        uid in name(),
        names in [perhaps_name(), perhaps_name(), perhaps_name(), perhaps_name(), perhaps_name(), perhaps_name()],
        required in [name(), name(), name()],
        addresses in vec(address(), 0..3),
        hbone in any::<bool>(),
        gateways in (option::of(gateway_address()), option::of(gateway_address())),
        workload_type in prop::sample::select(vec![
            model::WorkloadType::Deployment,
            model::WorkloadType::CronJob,
            model::WorkloadType::Pod,
            model::WorkloadType::Job,
        ]),
        flags in any::<[bool; 3]>(),
        tunnel in option::of((any::<bool>(), option::of(1..=u16::MAX))),
        policies in vec(policy_ref(), 0..3),
        services in btree_map(service_ref(), vec(port_entry(), 0..3), 0..3),
        locality in [perhaps_name(), perhaps_name(), perhaps_name()],
        capacity in any::<u32>(),
    ) -> model::Workload {
        let [namespace, name, hostname, network, node, canonical_name] = names;
        let [trust_domain, service_account, cluster_id] = required;
        let [native_tunnel, unhealthy, host_network] = flags;
        let [region, zone, subzone] = locality;
        model::Workload {
            addresses,
            hostname,
            network,
            tunnel_protocol: if hbone { model::TunnelProtocol::Hbone } else { model::TunnelProtocol::None },
            trust_domain,
            service_account,
            waypoint: gateways.0.map(Box::new),
            network_gateway: gateways.1.map(Box::new),
            canonical_revision: node.clone(),
            node,
            workload_name: canonical_name.clone(),
            canonical_name,
            workload_type,
            native_tunnel,
            application_tunnel: tunnel.map(|(proxy, port)| model::ApplicationTunnel {
                protocol: if proxy { model::ApplicationProtocol::Proxy } else { model::ApplicationProtocol::None },
                port,
            }),
            authorization_policies: policies,
            health: if unhealthy { model::Health::Unhealthy } else { model::Health::Healthy },
            cluster_id,
            services: services.into_iter().collect(),
            locality: model::Locality { region, zone, subzone },
            network_mode: if host_network { model::NetworkMode::HostNetwork } else { model::NetworkMode::Standard },
            capacity,
            ..model::Workload::new(uid, namespace, name)
        }
    }
}

prop_compose! {
    fn load_balancing_rule()(
        routing_preference in vec(prop::sample::select(vec![
            model::RoutingScope::Region,
            model::RoutingScope::Zone,
            model::RoutingScope::Subzone,
            model::RoutingScope::Node,
            model::RoutingScope::Cluster,
            model::RoutingScope::Network,
        ]), 0..4),
        mode in prop::sample::select(vec![
            model::LoadBalancingMode::Unspecified,
            model::LoadBalancingMode::Strict,
            model::LoadBalancingMode::Failover,
            model::LoadBalancingMode::Passthrough,
        ]),
        all in any::<bool>(),
    ) -> model::LoadBalancing {
        let health_policy = if all { model::HealthPolicy::AllowAll } else { model::HealthPolicy::OnlyHealthy };
        model::LoadBalancing { routing_preference, mode, health_policy }
    }
}

prop_compose! {
    fn service()(
        id in (name(), perhaps_name(), name()),
        addresses in vec(network_address(), 0..3),
        // A full-length range is an address, and comes back as one.
        ranges in vec((perhaps_name(), net().prop_filter("full", |n| n.prefix_len() < n.max_prefix_len())), 0..3),
        ports in vec(port_entry(), 0..3),
        subject_alt_names in vec(name(), 0..3),
        waypoint in option::of(gateway_address()),
        weighted in vec((gateway_address(), any::<u32>()), 0..3),
        load_balancing in load_balancing_rule(),
        ip_families in prop::sample::select(vec![
            model::IpFamilies::Automatic,
            model::IpFamilies::Ipv4Only,
            model::IpFamilies::Ipv6Only,
            model::IpFamilies::Dual,
        ]),
        flags in any::<[bool; 3]>(),
    ) -> model::Service {
        let [canonical, ingress_use_waypoint, private] = flags;
        model::Service {
            addresses,
            ranges,
            ports,
            subject_alt_names,
            waypoint,
            weighted_waypoints: weighted
                .into_iter()
                .map(|(destination, weight)| model::WeightedWaypoint { destination, weight })
                .collect(),
            load_balancing,
            ip_families,
            canonical,
            ingress_use_waypoint,
            visibility: if private { model::Visibility::Namespace } else { model::Visibility::Public },
            ..model::Service::new(id.0, id.1, id.2)
        }
    }
}

fn string_matches() -> impl Strategy<Value = Vec<model::StringMatch>> {
    vec(
        prop_oneof![
            perhaps_name().prop_map(model::StringMatch::Exact),
            perhaps_name().prop_map(model::StringMatch::Prefix),
            perhaps_name().prop_map(model::StringMatch::Suffix),
            Just(model::StringMatch::Presence),
        ],
        0..3,
    )
}

fn account_matches() -> impl Strategy<Value = Vec<model::ServiceAccountMatch>> {
    vec(
        (name(), name())
            .prop_map(|(namespace, service_account)| model::ServiceAccountMatch { namespace, service_account }),
        0..3,
    )
}

prop_compose! {
    fn policy_match()(
        strings in [string_matches(), string_matches(), string_matches(), string_matches()],
        nets in [vec(net(), 0..3), vec(net(), 0..3), vec(net(), 0..3), vec(net(), 0..3)],
        ports in [vec(any::<u16>(), 0..3), vec(any::<u16>(), 0..3)],
        accounts in [account_matches(), account_matches()],
    ) -> Match {
        let [namespaces, not_namespaces, principals, not_principals] = strings;
        let [source_ips, not_source_ips, destination_ips, not_destination_ips] = nets;
        let [destination_ports, not_destination_ports] = ports;
        let [service_accounts, not_service_accounts] = accounts;
        Match {
            namespaces,
            not_namespaces,
            principals,
            not_principals,
            source_ips,
            not_source_ips,
            destination_ips,
            not_destination_ips,
            destination_ports,
            not_destination_ports,
            service_accounts,
            not_service_accounts,
        }
    }
}

prop_compose! {
    fn policy()(
        id in policy_ref(),
        scope in prop::sample::select(vec![
            model::Scope::Global,
            model::Scope::Namespace,
            model::Scope::WorkloadSelector,
        ]),
        deny in any::<bool>(),
        dry_run in any::<bool>(),
        rules in vec(vec(vec(policy_match(), 0..3), 0..3), 0..3),
    ) -> Authorization {
        let clause = |matches| model::Clause { matches };
        let rule = |clauses: Vec<Vec<Match>>| model::Rule { clauses: clauses.into_iter().map(clause).collect() };
        Authorization {
            id,
            scope,
            action: if deny { model::Action::Deny } else { model::Action::Allow },
            rules: rules.into_iter().map(rule).collect(),
            dry_run,
            not_understood: None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn workload_survives_the_wire(w in workload()) {
        let bytes = workload_to_address(&w).encode_to_vec();
        let back = address_from_proto(wire::Address::decode(bytes.as_slice()).expect("decode"));
        prop_assert_eq!(back, Ok(Resource::Workload(w)));
    }

    #[test]
    fn service_survives_the_wire(s in service()) {
        let bytes = service_to_address(&s).encode_to_vec();
        let back = address_from_proto(wire::Address::decode(bytes.as_slice()).expect("decode"));
        prop_assert_eq!(back, Ok(Resource::Service(s)));
    }

    #[test]
    fn policy_survives_the_wire(p in policy()) {
        let bytes = authorization_to_proto(&p).encode_to_vec();
        let back = authorization_from_proto(security::Authorization::decode(bytes.as_slice()).expect("decode"));
        prop_assert_eq!(back, Ok(p));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(address) = wire::Address::decode(bytes.as_slice()) {
            let _ = address_from_proto(address);
        }
        if let Ok(policy) = security::Authorization::decode(bytes.as_slice()) {
            let _ = authorization_from_proto(policy);
        }
    }
}

fn minimal() -> wire::Workload {
    wire::Workload { uid: "c//Pod/ns/a".into(), name: "a".into(), namespace: "ns".into(), ..Default::default() }
}

fn bytes_of(list: &[u8]) -> Bytes {
    Bytes::copy_from_slice(list)
}

const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];

#[test]
fn empty_fields_get_their_defaults() {
    let w = workload_from_proto(minimal()).expect("valid");
    assert_eq!(w, model::Workload::new("c//Pod/ns/a", "ns", "a"));
    assert_eq!(
        (&*w.trust_domain, &*w.service_account, &*w.cluster_id, w.capacity),
        ("cluster.local", "default", "Kubernetes", 1)
    );
}

#[test]
fn default_trust_domain_and_capacity_are_left_out() {
    let wire = workload_to_proto(&model::Workload::new("u", "ns", "a"));
    assert_eq!(wire.trust_domain, "");
    assert_eq!(wire.service_account, "default");
    assert_eq!(wire.capacity, None);
    let foreign = model::Workload { trust_domain: "other".into(), ..model::Workload::new("u", "ns", "a") };
    assert_eq!(workload_to_proto(&foreign).trust_domain, "other");
}

#[test]
fn capacity_zero_is_not_unset() {
    let w = workload_from_proto(wire::Workload { capacity: Some(0), ..minimal() }).expect("valid");
    assert_eq!(w.capacity, 0);
}

#[test]
fn mapped_addresses_become_v4() {
    let w = workload_from_proto(wire::Workload { addresses: vec![bytes_of(&MAPPED)], ..minimal() }).expect("valid");
    assert_eq!(w.addresses, [IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))]);
    assert_eq!(range("x", &MAPPED, 120).map(|net| net.to_string()), Ok("10.1.2.0/24".to_owned()));
    assert_eq!(range("x", &MAPPED, 0).map(|net| net.to_string()), Ok("::/0".to_owned()));
}

#[test]
fn addresses_of_other_lengths_are_refused() {
    for length in [0, 3, 5, 15, 17] {
        let w = wire::Workload { addresses: vec![Bytes::from(vec![0; length])], ..minimal() };
        assert_eq!(workload_from_proto(w), Err(ConvertError::AddressLength { field: "addresses", length }));
    }
}

#[test]
fn retired_tunnel_is_refused() {
    let w = wire::Workload { tunnel_protocol: wire::TunnelProtocol::LegacyIstioMtls.into(), ..minimal() };
    assert!(matches!(workload_from_proto(w), Err(ConvertError::Unsupported { .. })));
}

#[test]
fn unknown_enums_are_refused() {
    type Change = fn(&mut wire::Workload);
    let changes: [Change; 6] = [
        |w| w.tunnel_protocol = 9,
        |w| w.workload_type = 9,
        |w| w.status = 9,
        |w| w.network_mode = 9,
        |w| w.application_tunnel = Some(wire::ApplicationTunnel { protocol: 9, port: 0 }),
        |w| {
            let port = wire::Port { app_protocol: 9, ..Default::default() };
            w.services.insert("ns/host".into(), wire::PortList { ports: vec![port] });
        },
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut w = minimal();
        change(&mut w);
        assert!(matches!(workload_from_proto(w), Err(ConvertError::UnknownEnum { value: 9, .. })), "change {index}");
    }
    type ServiceChange = fn(&mut wire::Service);
    let changes: [ServiceChange; 5] = [
        |s| s.ip_families = 9,
        |s| s.load_balancing = Some(wire::LoadBalancing { mode: 9, ..Default::default() }),
        |s| s.load_balancing = Some(wire::LoadBalancing { health_policy: 9, ..Default::default() }),
        |s| s.load_balancing = Some(wire::LoadBalancing { routing_preference: vec![9], ..Default::default() }),
        |s| s.load_balancing = Some(wire::LoadBalancing { routing_preference: vec![0], ..Default::default() }),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut s = wire::Service { hostname: "host".into(), ..Default::default() };
        change(&mut s);
        assert!(matches!(service_from_proto(s), Err(ConvertError::UnknownEnum { .. })), "change {index}");
    }
}

#[test]
fn unknown_visibility_is_public() {
    let s = wire::Service { hostname: "host".into(), visibility: 9, ..Default::default() };
    assert_eq!(service_from_proto(s).map(|s| s.visibility), Ok(model::Visibility::Public));
}

#[test]
fn ports_that_tcp_does_not_carry_and_names_stay_at_home() {
    let mut service = model::Service::new("ns", "dns", "dns.ns.svc.cluster.local");
    let udp = model::Port { transport: model::Transport::Udp, ..model::Port::tcp(53, 5353) };
    service.ports = vec![udp, model::Port::tcp(53, 53)];
    service.port_names =
        vec![model::PortName { name: "dns".into(), transport: model::Transport::Udp, service_port: 53 }];
    let told = service_from_proto(service_to_proto(&service)).unwrap();
    assert_eq!((told.ports, told.port_names), (vec![model::Port::tcp(53, 53)], Vec::new()));
    let mut workload = model::Workload::new("uid", "ns", "dns-0");
    workload.services.insert(service.id.clone(), service.ports.clone());
    let told = workload_from_proto(workload_to_proto(&workload)).unwrap();
    assert_eq!(told.services[&service.id], [model::Port::tcp(53, 53)]);
}

#[test]
fn ports_above_16_bits_are_refused() {
    let entry = |service_port, target_port| wire::Port { service_port, target_port, app_protocol: 0 };
    for port in [entry(65536, 1), entry(1, 65536)] {
        let s = wire::Service { hostname: "host".into(), ports: vec![port], ..Default::default() };
        assert!(matches!(service_from_proto(s), Err(ConvertError::Port { value: 65536, .. })));
    }
}

#[test]
fn service_range_and_full_length_range() {
    let entry = |length| wire::NetworkAddress { network: "n".into(), address: bytes_of(&[10, 1, 2, 3]), length };
    let s = wire::Service {
        hostname: "host".into(),
        addresses: vec![entry(Some(16)), entry(Some(32)), entry(None)],
        ..Default::default()
    };
    let s = service_from_proto(s).expect("valid");
    assert_eq!(s.ranges, [("n".into(), "10.1.0.0/16".parse().expect("range"))]);
    assert_eq!(s.addresses.len(), 2);
    let s = wire::Service { hostname: "host".into(), addresses: vec![entry(Some(33))], ..Default::default() };
    assert!(matches!(service_from_proto(s), Err(ConvertError::PrefixLength { length: 33, .. })));
}

#[test]
fn a_waypoint_that_says_nothing_is_refused() {
    let w = wire::Workload { waypoint: Some(wire::GatewayAddress::default()), ..minimal() };
    assert_eq!(workload_from_proto(w), Err(ConvertError::Missing { field: "waypoint" }));
}

#[test]
fn references_need_one_slash() {
    for bad in ["", "a", "a/", "a/b/c"] {
        let w = wire::Workload { authorization_policies: vec![bad.into()], ..minimal() };
        assert!(matches!(workload_from_proto(w), Err(ConvertError::Reference { .. })), "{bad:?}");
    }
}

fn policy_with(m: security::Match) -> security::Authorization {
    security::Authorization {
        name: "p".into(),
        rules: vec![security::Rule { clauses: vec![security::Clause { matches: vec![m] }] }],
        ..Default::default()
    }
}

#[test]
fn a_policy_that_cannot_be_read_whole_is_refused() {
    let unset = vec![security::StringMatch { match_type: None }];
    let bad_ip = vec![security::Address { address: bytes_of(&[1, 2, 3]), length: 8 }];
    let bad_length = vec![security::Address { address: bytes_of(&[1, 2, 3, 4]), length: 33 }];
    for (index, m) in [
        security::Match { principals: unset.clone(), ..Default::default() },
        security::Match { not_principals: unset.clone(), ..Default::default() },
        security::Match { namespaces: unset.clone(), ..Default::default() },
        security::Match { not_namespaces: unset, ..Default::default() },
        security::Match { source_ips: bad_ip.clone(), ..Default::default() },
        security::Match { not_source_ips: bad_ip.clone(), ..Default::default() },
        security::Match { not_destination_ips: bad_ip, ..Default::default() },
        security::Match { destination_ips: bad_length, ..Default::default() },
        security::Match { not_destination_ports: vec![70_000], ..Default::default() },
    ]
    .into_iter()
    .enumerate()
    {
        assert!(authorization_from_proto(policy_with(m)).is_err(), "match {index}");
    }
    let unknown = [
        security::Authorization { action: 2, ..policy_with(security::Match::default()) },
        security::Authorization { scope: 3, ..policy_with(security::Match::default()) },
    ];
    for policy in unknown {
        assert!(matches!(authorization_from_proto(policy), Err(ConvertError::UnknownEnum { .. })));
    }
}

/// Field numbers, byte for byte: what an independent encoder of Istio's messages produces.
#[test]
fn known_encodings() {
    let policy = Authorization {
        id: PolicyName { namespace: "ns".into(), name: "p".into() },
        scope: model::Scope::WorkloadSelector,
        action: model::Action::Deny,
        rules: vec![model::Rule {
            clauses: vec![model::Clause {
                matches: vec![Match {
                    not_principals: vec![model::StringMatch::Presence],
                    destination_ports: vec![80],
                    ..Default::default()
                }],
            }],
        }],
        dry_run: true,
        not_understood: None,
    };
    #[rustfmt::skip]
    let expected = [
        0x0a, 1, b'p', 0x12, 2, b'n', b's', 0x18, 2, 0x20, 1, // name, namespace, scope, action
        0x2a, 11, 0x0a, 9, 0x12, 7, 0x22, 2, 0x22, 0, 0x4a, 1, 80, // rules, clauses, matches (2)
        0x30, 1, // dry_run
    ];
    let encoded = authorization_to_proto(&policy).encode_to_vec();
    assert_eq!(encoded, expected);
    let decoded = security::Authorization::decode(expected.as_slice()).expect("decode");
    assert_eq!(authorization_from_proto(decoded), Ok(policy));

    let workload = model::Workload {
        addresses: vec![IpAddr::from([10, 0, 0, 1])],
        tunnel_protocol: model::TunnelProtocol::Hbone,
        health: model::Health::Unhealthy,
        cluster_id: "c".into(),
        ..model::Workload::new("u", "n", "w")
    };
    #[rustfmt::skip]
    let expected = [
        0x0a, 34, // Address.workload
        0x0a, 1, b'w', 0x12, 1, b'n', 0x1a, 4, 10, 0, 0, 1, 0x28, 1, // name, namespace, addresses, tunnel
        0x3a, 7, b'd', b'e', b'f', b'a', b'u', b'l', b't', // service account
        0x88, 1, 1, // status
        0x92, 1, 1, b'c', // cluster
        0xa2, 1, 1, b'u', // uid
    ];
    let decoded = wire::Address::decode(expected.as_slice()).expect("decode");
    assert_eq!(address_from_proto(decoded), Ok(Resource::Workload(workload)));
}

#[test]
fn type_urls_are_the_message_names() {
    use prost::Name as _;
    let _ = (crate::ADDRESS_TYPE, crate::AUTHORIZATION_TYPE);
    assert_eq!(wire::Address::type_url(), crate::ADDRESS_TYPE);
    assert_eq!(security::Authorization::type_url(), crate::AUTHORIZATION_TYPE);
}
