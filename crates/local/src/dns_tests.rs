use std::sync::Arc;

use hickory_proto::op::Query;
use leno_model::{AppProtocol, NetworkAddress, Port, Workload};

use super::*;

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

fn found(name: &str) -> Option<Vec<String>> {
    match lookup(&mesh(), DOMAIN, name) {
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

fn ask(name: &str, kind: RecordType, udp: bool) -> Message {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let answer = respond(&mesh(), DOMAIN, &query.to_vec().unwrap(), udp, 1).expect("an answer");
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
        let bytes = respond(&mesh(), DOMAIN, &query.to_vec().unwrap(), true, shuffle).unwrap();
        Message::from_vec(&bytes).unwrap().answers[0].data.clone()
    };
    assert_ne!(query(0), query(1));
    assert_eq!(query(0), query(2));
}

#[test]
fn junk_is_not_answered() {
    for junk in [&b""[..], b"x", &[0; 11], &[0xff; 64]] {
        assert_eq!(respond(&mesh(), DOMAIN, junk, true, 0), None);
    }
    let response = Message::response(7, OpCode::Query).to_vec().unwrap();
    assert_eq!(respond(&mesh(), DOMAIN, &response, true, 0), None);
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
        assert_eq!(lookup(&mesh, DOMAIN, name), v4, "{name}");
    }
}
