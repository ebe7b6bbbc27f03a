//! The pods' DNS, as a resolver library uses it.

use std::net::{IpAddr, SocketAddr};

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use leno_testkit::network::{Host, Network, may_run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::support::{Mesh, soon};

const RESOLVER: SocketAddr = SocketAddr::new(Network::OUTSIDE_V4, 53);

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

async fn ask_udp(host: Host<'_>, name: &str, kind: RecordType) -> Message {
    let socket = host.udp(host.v4, 0);
    socket.connect(RESOLVER).await.unwrap();
    socket.send(&question(name, kind)).await.unwrap();
    let mut packet = [0; 1500];
    let length = soon("a DNS answer", socket.recv(&mut packet)).await.unwrap();
    Message::from_vec(&packet[..length]).unwrap()
}

async fn ask_tcp(host: Host<'_>, name: &str, kind: RecordType) -> Message {
    let mut stream = soon("connect", host.connect(RESOLVER)).await.unwrap();
    let question = question(name, kind);
    stream.write_u16(question.len() as u16).await.unwrap();
    stream.write_all(&question).await.unwrap();
    let length = soon("a DNS answer", stream.read_u16()).await.unwrap();
    let mut answer = vec![0; usize::from(length)];
    soon("a DNS answer", stream.read_exact(&mut answer)).await.unwrap();
    Message::from_vec(&answer).unwrap()
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    message
        .answers
        .iter()
        .filter_map(|record| match &record.data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
            _ => None,
        })
        .collect()
}

/// What the outside resolver says to every question.
fn outside_answer(query: &[u8]) -> Vec<u8> {
    let query = Message::from_vec(query).unwrap();
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.queries = query.queries.clone();
    let owner = query.queries[0].name().clone();
    if owner.to_ascii().starts_with("missing.") {
        reply.metadata.response_code = ResponseCode::NXDomain;
    } else {
        reply.add_answer(Record::from_rdata(owner, 60, RData::A(A::new(192, 0, 2, 7))));
    }
    reply.to_vec().unwrap()
}

async fn resolver_udp(socket: UdpSocket, pod: IpAddr) {
    let mut packet = [0; 1500];
    while let Ok((length, peer)) = socket.recv_from(&mut packet).await {
        assert_eq!(peer.ip(), pod, "it must be the pod that asks");
        let _ = socket.send_to(&outside_answer(&packet[..length]), peer).await;
    }
}

async fn resolver_tcp(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let length = stream.read_u16().await.unwrap();
        let mut query = vec![0; usize::from(length)];
        stream.read_exact(&mut query).await.unwrap();
        let answer = outside_answer(&query);
        stream.write_u16(answer.len() as u16).await.unwrap();
        stream.write_all(&answer).await.unwrap();
    }
}

#[tokio::test]
async fn services_are_answered_and_the_rest_is_forwarded() {
    if !may_run("services_are_answered_and_the_rest_is_forwarded") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let vips: [IpAddr; 2] = ["10.96.0.7".parse().unwrap(), "fd96::7".parse().unwrap()];
    mesh.service("web", &vips, &mut []).await;
    let outside = mesh.network.outside();
    tokio::spawn(resolver_udp(outside.udp(outside.v4, 53), client.v4));
    tokio::spawn(resolver_tcp(outside.listen(outside.v4, 53)));
    let host = client.host();
    let web = "web.default.svc.cluster.local.";
    for (kind, vip) in [(RecordType::A, vips[0]), (RecordType::AAAA, vips[1])] {
        for answer in [ask_udp(host, web, kind).await, ask_tcp(host, web, kind).await] {
            assert!(answer.metadata.authoritative);
            assert_eq!(addresses(&answer), [vip], "{answer:?}");
        }
    }
    let elsewhere: IpAddr = "192.0.2.7".parse().unwrap();
    let name = "example.org.";
    for answer in [ask_udp(host, name, RecordType::A).await, ask_tcp(host, name, RecordType::A).await] {
        assert_eq!(addresses(&answer), [elsewhere], "{answer:?}");
    }
    // The resolver's own "no" is passed on, and other types of a service's name are its business.
    let answer = ask_udp(host, "missing.example.org.", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    // A type that nobody has heard of is no series of its own.
    ask_udp(host, name, RecordType::from(65_000)).await;

    let metrics = mesh.node("node-1").metrics().await;
    let count = |name: &str, kind: &str, protocol: &str| {
        let labels = [
            format!("request_query_type=\"{kind}\""),
            format!("request_protocol=\"{protocol}\""),
            "source_canonical_service=\"client\"".to_owned(),
        ];
        let found = metrics.lines().find(|line| {
            line.split('{').next() == Some(name) && labels.iter().all(|label| line.contains(label.as_str()))
        });
        found.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    for (name, kind, protocol, times) in [
        ("istio_dns_requests_total", "A", "udp", 3.0),
        ("istio_dns_requests_total", "A", "tcp", 2.0),
        ("istio_dns_requests_total", "AAAA", "udp", 1.0),
        ("istio_dns_requests_total", "other", "udp", 1.0),
        ("istio_dns_upstream_requests_total", "A", "udp", 2.0),
        ("istio_dns_upstream_requests_total", "A", "tcp", 1.0),
        ("istio_dns_upstream_request_duration_seconds_count", "A", "udp", 2.0),
    ] {
        assert_eq!(count(name, kind, protocol), Some(times), "{name} {kind} {protocol} in\n{metrics}");
    }
    assert_eq!(count("istio_dns_upstream_failures_total", "A", "udp"), None, "a no is an answer");
}

#[tokio::test]
async fn a_resolver_that_is_away_costs_an_error_and_not_the_mesh() {
    if !may_run("a_resolver_that_is_away_costs_an_error_and_not_the_mesh") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let vip: IpAddr = "10.96.0.7".parse().unwrap();
    mesh.service("web", &[vip], &mut []).await;
    let answer = ask_udp(client.host(), "example.org.", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(addresses(&ask_udp(client.host(), "web.default.svc.cluster.local.", RecordType::A).await), [vip]);
    let metrics = mesh.node("node-1").metrics().await;
    let failed = metrics.lines().find(|line| line.starts_with("istio_dns_upstream_failures_total{"));
    assert!(failed.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
}
