//! Small meshes for tests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{
    Action, Authorization, Clause, GatewayAddress, GatewayDestination, HBONE_PORT, Identity, Match, Mesh,
    NetworkAddress, PolicyName, Port, Rule, Scope, Service, TunnelProtocol, Workload,
};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().expect("socket address")
}

pub(crate) fn identity(text: &str) -> Identity {
    text.parse().expect("identity")
}

/// A pod in the mesh, in namespace `default`. Its service account has the pod's name.
pub(crate) fn pod(name: &str, address: &str) -> Workload {
    Workload {
        addresses: vec![ip(address)],
        tunnel_protocol: TunnelProtocol::Hbone,
        service_account: name.into(),
        ..Workload::new(format!("c//Pod/default/{name}"), "default", name)
    }
}

/// A pod that is an endpoint of the given services.
pub(crate) fn endpoint(name: &str, address: &str, services: &[&Service]) -> Workload {
    Workload { services: services.iter().map(|s| (s.id.clone(), Vec::new())).collect(), ..pod(name, address) }
}

pub(crate) fn port(service_port: u16, target_port: u16) -> Port {
    Port::tcp(service_port, target_port)
}

pub(crate) fn vip(address: &str) -> NetworkAddress {
    NetworkAddress { network: "".into(), address: ip(address) }
}

/// A service in namespace `default` with port 80, target port 8080. Headless if `addresses` is empty.
pub(crate) fn service(name: &str, addresses: &[&str]) -> Service {
    Service {
        addresses: addresses.iter().map(|a| vip(a)).collect(),
        ports: vec![port(80, 8080)],
        canonical: true,
        ..Service::new("default", name, format!("{name}.default.svc.cluster.local"))
    }
}

pub(crate) fn waypoint_by_name(service: &Service) -> GatewayAddress {
    GatewayAddress { destination: GatewayDestination::Hostname(service.id.clone()), hbone_mtls_port: HBONE_PORT }
}

pub(crate) fn waypoint_by_address(address: &str) -> GatewayAddress {
    GatewayAddress { destination: GatewayDestination::Address(vip(address)), hbone_mtls_port: HBONE_PORT }
}

pub(crate) fn mesh(services: &[&Service], workloads: &[&Workload]) -> Mesh {
    let mut mesh = Mesh::default();
    for service in services {
        mesh.upsert_service(Arc::new((*service).clone()));
    }
    for workload in workloads {
        mesh.upsert_workload(Arc::new((*workload).clone()));
    }
    mesh
}

pub(crate) fn policy_name(text: &str) -> PolicyName {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    PolicyName { namespace: namespace.into(), name: name.into() }
}

pub(crate) fn rule(matches: Vec<Match>) -> Rule {
    Rule { clauses: vec![Clause { matches }] }
}

/// A policy for its whole namespace.
pub(crate) fn policy(name: &str, action: Action, rules: Vec<Rule>) -> Authorization {
    Authorization {
        id: policy_name(name),
        scope: Scope::Namespace,
        action,
        rules,
        dry_run: false,
        not_understood: None,
    }
}

/// A repeatable sequence of random numbers.
pub(crate) fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
