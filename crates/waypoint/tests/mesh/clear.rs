//! Connections in the clear, for tests and measurements.

use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http1::mirror;
use crate::support::{Mesh, VIP, raw, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_the_clear_is_served_as_one_from_a_tunnel_is() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listener = format!("{free}={VIP}:80").parse().unwrap();
    let mesh = Mesh::with(|config| config.waypoint.clear_listeners = vec![listener]).await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let answer = raw(free, b"GET /a?b HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("GET /a?b HTTP/1.1"), "{answer}");

    // HTTP/2 by prior knowledge: the preface and empty SETTINGS, which are answered with SETTINGS (type 4).
    let mut stream = TcpStream::connect(free).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
    let mut head = [0; 9];
    soon("SETTINGS", stream.read_exact(&mut head)).await.unwrap();
    assert_eq!(head[3], 4, "{head:?}");
}
