use std::sync::Arc;

use leno_model::{Health, IpFamilies, NetworkAddress, Port, PortName, Workload};

use super::*;

const DOMAIN: &str = "cluster.local";

fn mesh() -> Mesh {
    let mut mesh = Mesh::default();
    let mut web = Service::new("shop", "web", "web.shop.svc.cluster.local");
    for address in ["10.96.4.5", "fd00:10:96::405"] {
        web.addresses.push(NetworkAddress { network: "".into(), address: address.parse().unwrap() });
    }
    let udp = |port, target| Port { transport: Transport::Udp, ..Port::tcp(port, target) };
    web.ports = vec![Port::tcp(80, 8080), udp(53, 53), Port::tcp(5353, 53), Port::tcp(81, 81)];
    web.port_names = [("http", Transport::Tcp, 80), ("dns", Transport::Udp, 53), ("dns", Transport::Tcp, 5353)]
        .map(|(name, transport, service_port)| PortName { name: name.into(), transport, service_port })
        .into();
    mesh.upsert_service(Arc::new(web));
    let mut db = Service::new("shop", "db", "db.shop.svc.cluster.local");
    db.ports = vec![Port::tcp(9, 0)];
    db.port_names = vec![PortName { name: "sql".into(), transport: Transport::Tcp, service_port: 9 }];
    for (name, address, health) in [
        ("db-0", "10.244.1.10", Health::Healthy),
        ("db-1", "10.244.2.10", Health::Healthy),
        ("db-2", "10.244.2.11", Health::Unhealthy),
    ] {
        let mut pod = Workload::new(format!("c//Pod/shop/{name}"), "shop", name);
        pod.addresses.push(address.parse().unwrap());
        pod.health = health;
        // Which port it means by the name, of those that mean one.
        let own = match name {
            "db-0" => vec![Port::tcp(9, 5432)],
            "db-2" => vec![Port::tcp(9, 5433)],
            _ => Vec::new(),
        };
        pod.services.insert(db.id.clone(), own);
        mesh.upsert_workload(Arc::new(pod));
    }
    mesh.upsert_service(Arc::new(db));
    mesh
}

fn answer(name: &str) -> ClusterAnswer {
    lookup(&ClusterDomain { mesh: &mesh(), network: &"".into(), name: DOMAIN }, name)
}

fn found(name: &str) -> Option<Vec<String>> {
    match answer(name) {
        ClusterAnswer::Found { addresses, .. } => Some(addresses.iter().map(ToString::to_string).collect()),
        ClusterAnswer::Unknown => None,
    }
}

#[test]
fn services_by_name() {
    let addresses = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(found("web.shop.svc.cluster.local"), addresses(&["10.96.4.5", "fd00:10:96::405"]));
    assert_eq!(found("db.shop.svc.cluster.local"), addresses(&["10.244.1.10", "10.244.2.10"]));
    assert_eq!(found("db-1.db.shop.svc.cluster.local"), addresses(&["10.244.2.10"]));
    assert_eq!(found("10-244-1-9.shop.pod.cluster.local"), addresses(&["10.244.1.9"]));
    assert_eq!(found("svc.cluster.local"), addresses(&[]));
    for unknown in
        ["web.other.svc.cluster.local", "web.shop", "example.com", "xcluster.local", "db-9.db.shop.svc.cluster.local"]
    {
        assert_eq!(found(unknown), None, "{unknown}");
    }
}

#[test]
fn ports_by_name() {
    let targets = |name: &str| match answer(name) {
        ClusterAnswer::Found { addresses, targets } if addresses.is_empty() => targets,
        other => panic!("{name}: {other:?}"),
    };
    let web = "web.shop.svc.cluster.local";
    assert_eq!(targets(&format!("_http._tcp.{web}")), [(web.to_owned(), 80)]);
    assert_eq!(targets(&format!("_dns._udp.{web}")), [(web.to_owned(), 53)]);
    assert_eq!(targets(&format!("_dns._tcp.{web}")), [(web.to_owned(), 5353)]);
    // Headless: each ready endpoint by its own name, which has addresses, and its own port. One that has no such port
    // is none.
    let db = "db.shop.svc.cluster.local";
    assert_eq!(targets(&format!("_sql._tcp.{db}")), [(format!("db-0.{db}"), 5432)]);
    assert_eq!(found(&format!("db-0.{db}")), Some(vec!["10.244.1.10".to_owned()]));
    for unknown in ["_http._udp.web", "_https._tcp.web", "http._tcp.web", "_http.tcp.web", "__.__.web", "_._tcp.web"] {
        let name = format!("{unknown}.shop.svc.cluster.local");
        assert_eq!(answer(&name), ClusterAnswer::Unknown, "{name}");
    }
}

#[test]
fn a_service_of_one_family_hides_the_other_of_its_pods() {
    let mut mesh = Mesh::default();
    let mut db = Service::new("shop", "db", "db.shop.svc.cluster.local");
    db.ip_families = IpFamilies::Ipv4Only;
    let mut pod = Workload::new("c//Pod/shop/db-0", "shop", "db-0");
    pod.addresses = vec!["10.244.1.10".parse().unwrap(), "fd00::10".parse().unwrap()];
    pod.services.insert(db.id.clone(), Vec::new());
    mesh.upsert_service(Arc::new(db));
    mesh.upsert_workload(Arc::new(pod));
    let v4 = ClusterAnswer::Found { addresses: vec!["10.244.1.10".parse().unwrap()], targets: Vec::new() };
    for name in ["db.shop.svc.cluster.local", "db-0.db.shop.svc.cluster.local"] {
        assert_eq!(lookup(&ClusterDomain { mesh: &mesh, network: &"".into(), name: DOMAIN }, name), v4, "{name}");
    }
}
