//! A waypoint that drains goes on serving those who have not learnt of it.

use std::time::Duration;

use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http1::mirror;
use crate::support::{Mesh, VIP, soon};

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_come_meanwhile_bring_their_requests() {
    let mesh = Mesh::with(|config| {
        config.proxy.takeover_timeout = Duration::from_secs(20);
        config.proxy.drain_deadline = Duration::from_secs(60);
    })
    .await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let (client, authority) = (mesh.client(), format!("{VIP}:80"));
    let mut silent = client.open(&authority).await.unwrap();
    mesh.drain();
    // One that says nothing is let go, which also shows that the end has begun.
    let said = soon("the end of a silent connection", silent.read(&mut [0; 1])).await;
    assert!(!matches!(said, Ok(1..)), "{said:?}");

    let mut late = client.open(&authority).await.unwrap();
    // Nobody's first bytes come with the very request for the connection.
    tokio::task::yield_now().await;
    late.write_all(b"GET /late HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("an answer and the end", late.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("GET /late"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}
