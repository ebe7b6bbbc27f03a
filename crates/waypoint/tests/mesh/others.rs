use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_first_does_not_stall() {
    let greeting = server(|mut stream| async move {
        stream.write_all(b"220 hello\r\n").await.unwrap();
        let mut said = [0; 6];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"EHLO\r\n");
        stream.write_all(b"250 ok\r\n").await.unwrap();
    })
    .await;
    for protocol in [AppProtocol::Unknown, AppProtocol::Tcp] {
        let mesh = Mesh::new().await;
        mesh.service(protocol, &[greeting]).await;
        let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
        let mut greeted = [0; 11];
        soon("the greeting", stream.read_exact(&mut greeted)).await.unwrap();
        assert_eq!(&greeted, b"220 hello\r\n", "{protocol:?}");
        stream.write_all(b"EHLO\r\n").await.unwrap();
        let mut rest = String::new();
        soon("the answer", stream.read_to_string(&mut rest)).await.unwrap();
        assert_eq!(rest, "250 ok\r\n", "{protocol:?}");
        drop(stream);
        mesh.log
            .line(&[
                "connection complete",
                "bytes_sent=6",
                "bytes_recv=19",
                "direction=\"through\"",
                "dst.workload=\"web-0\"",
            ])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_speak_http_is_passed_on() {
    let echo = server(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
    })
    .await;
    for protocol in [AppProtocol::Unknown, AppProtocol::Tcp, AppProtocol::Tls] {
        let mesh = Mesh::new().await;
        mesh.service(protocol, &[echo]).await;
        for said in [&b"*1\r\n$4\r\nPING\r\n"[..], b"\x16\x03\x01\x00", b"GET key\r\n", b"GET /half of a"] {
            let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
            stream.write_all(said).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut back = Vec::new();
            soon("the echo", stream.read_to_end(&mut back)).await.unwrap();
            assert_eq!(back, said, "{protocol:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_after_a_long_silence_is_still_http() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Unknown, &[crate::http1::mirror().await]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    // Longer than detection waits: the endpoint is connected to by now, and says nothing.
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    stream.write_all(b"GET /late HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    mesh.log.line(&["request complete", "path=\"/late\""]).await;
}
