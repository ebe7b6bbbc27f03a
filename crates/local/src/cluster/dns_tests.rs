use std::sync::Arc;

use hickory_proto::op::Query;
use leno_model::{AppProtocol, NetworkAddress, Port, ServiceName, Workload};
use leno_objects::Protocol;

use super::*;
use crate::cluster::services::PortTarget;

const DOMAIN: &str = "cluster.local";

fn mesh() -> Mesh {
    let mut mesh = Mesh::default();
    let mut web = Service::new("shop", "web", "web.shop.svc.cluster.local");
    for address in ["10.96.4.5", "fd00:10:96::405"] {
        web.addresses.push(NetworkAddress { network: "".into(), address: address.parse().unwrap() });
    }
    web.ports.push(Port { service_port: 80, target_port: 8080, app_protocol: AppProtocol::Unknown });
    mesh.upsert_service(Arc::new(web));
    let db = Service::new("shop", "db", "db.shop.svc.cluster.local");
    for (name, address, health) in [
        ("db-0", "10.244.1.10", Health::Healthy),
        ("db-1", "10.244.2.10", Health::Healthy),
        ("db-2", "10.244.2.11", Health::Unhealthy),
    ] {
        let mut pod = Workload::new(format!("c//Pod/shop/{name}"), "shop", name);
        pod.addresses.push(address.parse().unwrap());
        pod.health = health;
        pod.services.insert(db.id.clone(), Vec::new());
        mesh.upsert_workload(Arc::new(pod));
    }
    mesh.upsert_service(Arc::new(db));
    mesh
}

fn ports() -> Vec<DeclaredPort> {
    let port = |service: &str, name: &str, protocol, port, target| DeclaredPort {
        service: ServiceName { namespace: "shop".into(), hostname: format!("{service}.shop.svc.cluster.local").into() },
        name: name.to_owned(),
        protocol,
        port,
        target,
    };
    let by_pod = [("db-0".to_owned(), 5432), ("db-2".to_owned(), 5433)].into();
    vec![
        port("web", "http", Protocol::Tcp, 80, PortTarget::Number(8080)),
        port("web", "dns", Protocol::Udp, 53, PortTarget::Number(53)),
        port("web", "dns", Protocol::Tcp, 5353, PortTarget::Number(53)),
        port("web", "", Protocol::Tcp, 81, PortTarget::Number(81)),
        port("db", "sql", Protocol::Tcp, 9, PortTarget::Named(by_pod)),
    ]
}

fn answer(name: &str) -> Answer {
    lookup(&Domain { mesh: &mesh(), ports: &ports(), name: DOMAIN }, name)
}

fn found(name: &str) -> Option<Vec<String>> {
    match answer(name) {
        Answer::Found { addresses, .. } => Some(addresses.iter().map(ToString::to_string).collect()),
        Answer::Unknown => None,
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
        Answer::Found { addresses, targets } if addresses.is_empty() => targets,
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
        assert_eq!(answer(&name), Answer::Unknown, "{name}");
    }
}

fn ask(name: &str, kind: RecordType, udp: bool) -> Message {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let answer = respond(&Domain { mesh: &mesh(), ports: &ports(), name: DOMAIN }, &query.to_vec().unwrap(), udp, 1)
        .expect("an answer");
    let answer = Message::from_vec(&answer).unwrap();
    assert_eq!(answer.metadata.id, query.metadata.id);
    answer
}

#[test]
fn on_the_wire() {
    let answer = ask("WEB.shop.svc.cluster.LOCAL.", RecordType::A, true);
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert_eq!(answer.answers.len(), 1);
    assert_eq!(answer.answers[0].data, RData::A(A(Ipv4Addr::new(10, 96, 4, 5))));
    assert_eq!(ask("web.shop.svc.cluster.local.", RecordType::AAAA, true).answers.len(), 1);
    // A known name without records of the kind is not an unknown name.
    let none = ask("db.shop.svc.cluster.local.", RecordType::AAAA, true);
    assert_eq!((none.metadata.response_code, none.answers.len()), (ResponseCode::NoError, 0));
    assert_eq!(
        ask("nobody.shop.svc.cluster.local.", RecordType::A, true).metadata.response_code,
        ResponseCode::NXDomain
    );
    let srv = ask("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV, false);
    assert!(matches!(&srv.answers[0].data, RData::SRV(srv) if srv.port == 80));
}

#[test]
fn headless_answers_rotate() {
    let query = |shuffle| {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii("db.shop.svc.cluster.local.").unwrap(), RecordType::A));
        let bytes =
            respond(&Domain { mesh: &mesh(), ports: &[], name: DOMAIN }, &query.to_vec().unwrap(), true, shuffle)
                .unwrap();
        Message::from_vec(&bytes).unwrap().answers[0].data.clone()
    };
    assert_ne!(query(0), query(1));
    assert_eq!(query(0), query(2));
}

#[test]
fn junk_is_not_answered() {
    for junk in [&b""[..], b"x", &[0; 11], &[0xff; 64]] {
        assert_eq!(respond(&Domain { mesh: &mesh(), ports: &[], name: DOMAIN }, junk, true, 0), None);
    }
    let response = Message::response(7, OpCode::Query).to_vec().unwrap();
    assert_eq!(respond(&Domain { mesh: &mesh(), ports: &[], name: DOMAIN }, &response, true, 0), None);
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
    let v4 = Answer::Found { addresses: vec!["10.244.1.10".parse().unwrap()], targets: Vec::new() };
    for name in ["db.shop.svc.cluster.local", "db-0.db.shop.svc.cluster.local"] {
        assert_eq!(lookup(&Domain { mesh: &mesh, ports: &[], name: DOMAIN }, name), v4, "{name}");
    }
}
