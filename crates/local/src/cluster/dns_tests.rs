use std::net::IpAddr;

use leno_model::{Health, NetworkAddress, Port, PortName, Service, Transport, Workload};

use super::*;

const DOMAIN: &str = "cluster.local";
const A: u8 = 1;
const AAAA: u8 = 28;
const SRV: u8 = 33;

fn mesh() -> Mesh {
    let mut mesh = Mesh::default();
    let mut web = Service::new("shop", "web", "web.shop.svc.cluster.local");
    for address in ["10.96.4.5", "fd00:10:96::405"] {
        web.addresses.push(NetworkAddress { network: "".into(), address: address.parse().unwrap() });
    }
    web.ports.push(Port::tcp(80, 8080));
    web.port_names.push(PortName { name: "http".into(), transport: Transport::Tcp, service_port: 80 });
    mesh.upsert_service(Arc::new(web));
    let db = Service::new("shop", "db", "db.shop.svc.cluster.local");
    for (name, address) in [("db-0", "10.244.1.10"), ("db-1", "10.244.2.10")] {
        let mut pod = Workload::new(format!("c//Pod/shop/{name}"), "shop", name);
        pod.addresses.push(address.parse().unwrap());
        pod.health = Health::Healthy;
        pod.services.insert(db.id.clone(), Vec::new());
        mesh.upsert_workload(Arc::new(pod));
    }
    mesh.upsert_service(Arc::new(db));
    mesh
}

/// A question, as RFC 1035 §4.1 writes it.
fn question(name: &str, kind: u8) -> Vec<u8> {
    let mut packet = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap());
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, kind, 0, 1]);
    packet
}

/// Response code, number of answers, and the last bytes: those of the last answer.
fn ask(name: &str, kind: u8, turn: usize) -> (u8, u8, Vec<u8>) {
    let answer = respond(&mesh(), DOMAIN, &question(name, kind), true, turn).expect("an answer");
    assert_eq!(answer[..2], [0, 7]);
    assert_eq!(answer[2] & 0x80, 0x80, "it is a response");
    (answer[3] & 0xf, answer[7], answer[answer.len() - 4..].to_vec())
}

#[test]
fn on_the_wire() {
    let web: IpAddr = "10.96.4.5".parse().unwrap();
    let (code, answers, last) = ask("WEB.shop.svc.cluster.LOCAL", A, 1);
    assert_eq!((code, answers, IpAddr::from(<[u8; 4]>::try_from(last).unwrap())), (0, 1, web));
    assert_eq!(ask("web.shop.svc.cluster.local", AAAA, 1).1, 1);
    // A known name without records of the kind is not an unknown name.
    assert_eq!(ask("db.shop.svc.cluster.local", AAAA, 0).0, 0);
    assert_eq!(ask("db.shop.svc.cluster.local", AAAA, 0).1, 0);
    assert_eq!(ask("nobody.shop.svc.cluster.local", A, 0).0, 3, "no such name");
    assert_eq!(ask("example.com", A, 0).0, 3, "nor one of the world");
    assert_eq!(ask("_http._tcp.web.shop.svc.cluster.local", SRV, 0).1, 1);
    assert_eq!(ask("_http._tcp.web.shop.svc.cluster.local", A, 0).1, 0);
}

#[test]
fn headless_answers_rotate() {
    let last = |turn| ask("db.shop.svc.cluster.local", A, turn).2;
    assert_ne!(last(0), last(1));
    assert_eq!(last(0), last(2));
}

#[test]
fn junk_is_not_answered() {
    let mut response = question("web.shop.svc.cluster.local", A);
    response[2] |= 0x80;
    for junk in [&b""[..], b"x", &[0; 11], &[0xff; 64], &response] {
        assert_eq!(respond(&mesh(), DOMAIN, junk, true, 0), None);
    }
}
