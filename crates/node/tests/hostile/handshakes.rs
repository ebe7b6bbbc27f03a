//! Peers that never send a request.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use leno_testkit::certs::{Leaf, TestCa, self_signed};
use leno_testkit::hbone;
use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{NEVER, echo, eventually, exchange, soon};
use crate::{ALONE, GOOD, Target, memory};

/// The time limit of a handshake in tests that wait for its end. Long enough for a good peer's handshake on a busy machine.
const HANDSHAKE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_peer_that_can_not_prove_itself_is_refused() {
    if !may_run("a_peer_that_can_not_prove_itself_is_refused") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let sound = || Leaf::uri(GOOD);
    let other = TestCa::root("other");
    let by_mesh = |leaf: Leaf| Some(target.mesh.certificate(&leaf));
    let cases = [
        ("none", None, "presented no certificate"),
        ("wrong authority", Some(other.issue(&sound())), "was not issued by this mesh's certificate authority"),
        (
            "wrong authority's intermediate",
            Some(other.intermediate("x").issue(&sound())),
            "was not issued by this mesh's certificate authority",
        ),
        ("self-signed", Some(self_signed(&sound())), "was not issued by this mesh's certificate authority"),
        (
            "wrong trust domain",
            by_mesh(Leaf::uri("spiffe://evil.example/ns/default/sa/good")),
            "trust domain evil.example",
        ),
        ("trust domain in another case", by_mesh(Leaf::uri("spiffe://Cluster.local/ns/default/sa/good")), "peer"),
        ("expired", by_mesh(Leaf { not_before: now - 2 * hour, not_after: now - hour, ..sound() }), "expired"),
        (
            "not yet valid",
            by_mesh(Leaf { not_before: now + hour, not_after: now + 2 * hour, ..sound() }),
            "becomes valid only",
        ),
        (
            "two URI names",
            by_mesh(Leaf { uris: vec![GOOD.into(), "spiffe://cluster.local/ns/default/sa/admin".into()], ..sound() }),
            "names no single workload identity",
        ),
        (
            "DNS name only",
            by_mesh(Leaf { uris: vec![], dns: vec!["good.default.svc".into()], ..sound() }),
            "names no single workload identity",
        ),
        ("no name", by_mesh(Leaf { uris: vec![], ..sound() }), "names no single workload identity"),
        (
            "another shape of name",
            by_mesh(Leaf::uri("spiffe://cluster.local/sa/good")),
            "names no single workload identity",
        ),
        ("a path behind the name", by_mesh(Leaf::uri(&format!("{GOOD}/x"))), "names no single workload identity"),
        ("server only", by_mesh(Leaf { client_auth: false, ..sound() }), "unacceptable"),
        (
            "for signing code",
            by_mesh(Leaf { client_auth: false, server_auth: false, code_signing: true, ..sound() }),
            "unacceptable",
        ),
        ("an authority's own", by_mesh(Leaf { ca: true, ..sound() }), "unacceptable"),
    ];
    for (what, certificate, reason) in cases {
        let before = target.log.count(&[reason, "error="]);
        let tcp = target.tcp().await;
        let from = tcp.local_addr().unwrap();
        // In TLS 1.3, the client has finished before the server has checked its certificate.
        let refused = async {
            let mut tls = hbone::tls(tcp, certificate.as_ref()).await?;
            tls.read(&mut [0]).await
        };
        match soon(what, refused).await {
            Ok(0) | Err(_) => {}
            Ok(_) => panic!("{what}: was let in"),
        }
        let line = target.log.line(&[&format!("src.addr={from}"), "error="]).await;
        assert!(line.contains(reason), "{what}: {line}");
        assert!(!line.contains("src.identity="), "an identity that is not proven is none: {line}");
        assert_eq!(target.log.count(&[reason, "error="]), before + 1, "{what}");
        target.good_peer_is_served().await;
    }
    let metrics = target.metrics().await;
    assert!(metrics.contains("response_flags=\"TLS_FAILURE\""), "{metrics}");
    target.is_unharmed().await;
}

#[tokio::test]
async fn what_is_not_tls_and_http2_is_refused() {
    if !may_run("what_is_not_tls_and_http2_is_refused") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::with(|config| config.proxy.handshake_timeout = HANDSHAKE).await;
    // In the clear.
    for bytes in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 64], &[0xff; 64]]
    {
        let mut tcp = target.tcp().await;
        let from = tcp.local_addr().unwrap();
        tcp.write_all(bytes).await.unwrap();
        // The end, after an alert perhaps.
        let _ = soon("the end", tcp.read_to_end(&mut Vec::new())).await;
        target.log.line(&[&format!("src.addr={from}"), "TLS with", "failed"]).await;
    }
    // Another protocol inside TLS, or none.
    for alpn in [&[&b"http/1.1"[..]][..], &[]] {
        let tcp = target.tcp().await;
        let from = tcp.local_addr().unwrap();
        let refused = async { hbone::tls_with_alpn(tcp, Some(&target.good), alpn).await?.read(&mut [0]).await };
        assert!(!matches!(soon("the end", refused).await, Ok(1)));
        target.log.line(&[&format!("src.addr={from}"), "ALPN"]).await;
    }
    // TLS, then no HTTP/2.
    for bytes in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n"] {
        let tcp = target.tcp().await;
        let from = tcp.local_addr().unwrap();
        let mut tls = soon("TLS", hbone::tls(tcp, Some(&target.good))).await.unwrap();
        tls.write_all(bytes).await.unwrap();
        let _ = soon("the end", tls.read_to_end(&mut Vec::new())).await;
        target.log.line(&[&format!("src.addr={from}"), "tunnel to", "failed", GOOD]).await;
    }
    target.is_unharmed().await;
}

#[tokio::test]
async fn peers_that_say_nothing_keep_nobody_out() {
    const PLACES: usize = 8;
    if !may_run("peers_that_say_nothing_keep_nobody_out") {
        return;
    }
    let _alone = ALONE.lock().await;
    // No silent peer's time ends while this test lasts: who is let in was not let in for that.
    let target = Target::with(|config| {
        config.proxy.max_unproven_peers = PLACES;
        config.proxy.handshake_timeout = NEVER;
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..PLACES * 3 {
        silent.push(target.tcp().await);
    }
    // Two times as many as there are places come before it; each set of them has a second.
    target.good_peer_is_served().await;
    target.log.line(&["error=", "had not proved who it is when all 8 places"]).await;
    drop(silent);
    target.is_unharmed().await;
}

#[tokio::test]
async fn who_connects_to_every_pod_keeps_no_other_address_out() {
    const PLACES: usize = 16;
    if !may_run("who_connects_to_every_pod_keeps_no_other_address_out") {
        return;
    }
    let _alone = ALONE.lock().await;
    // As above.
    let mut target = Target::with(|config| {
        config.proxy.max_unproven_peers_total = PLACES;
        config.proxy.handshake_timeout = NEVER;
    })
    .await;
    let other = target.mesh.pod("other", "node-1").await;
    let client = target.mesh.pod("client", "node-2").await;
    target.mesh.synced().await;
    echo(other.listen());
    let mut silent = Vec::new();
    for _ in 0..PLACES {
        for pod in [target.pod.v4, other.v4] {
            let hbone = SocketAddr::new(pod, 15008);
            match soon("TCP", target.mesh.network.outside().connect(hbone)).await {
                Ok(tcp) => silent.push(tcp),
                // It was refused before this side knew that it had a connection.
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }
    // Neither pod has all its places taken, but the proxy has.
    let told = || target.log.count(&["LENO_MAX_UNPROVEN_PEERS_TOTAL"]);
    eventually("refusals", || told() >= PLACES).await;
    let program = soon("connect", client.host().connect(other.app(other.v4))).await.unwrap();
    soon("the echo", exchange(program, b"hello")).await.unwrap();
    drop(silent);
}

#[tokio::test]
async fn half_handshakes_are_ended() {
    if !may_run("half_handshakes_are_ended") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::with(|config| config.proxy.handshake_timeout = HANDSHAKE).await;
    let before = memory();
    // Record header of a ClientHello that never comes in full, cut at various places.
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    let mut streams = Vec::new();
    for index in 0..500 {
        let mut tcp = target.tcp().await;
        tcp.write_all(&hello[..index % (hello.len() + 1)]).await.unwrap();
        streams.push(tcp);
    }
    target.good_peer_is_served().await;
    for mut tcp in streams {
        match soon("the end", tcp.read(&mut [0])).await {
            Ok(0) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            Ok(_) => panic!("an answer to half a handshake"),
        }
    }
    let line = format!("TLS handshake took longer than {} s", HANDSHAKE.as_secs_f64());
    eventually("their log lines", || target.log.count(&[&line]) == 500).await;
    target.is_unharmed().await;
    let grown = memory().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
}

#[tokio::test]
async fn a_drip_is_no_handshake() {
    if !may_run("a_drip_is_no_handshake") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::with(|config| config.proxy.handshake_timeout = HANDSHAKE).await;
    let mut tcp = target.tcp().await;
    let begun = Instant::now();
    let mut drip = tokio::time::interval(Duration::from_millis(50));
    // Never silent for long, so only a limit on the whole handshake ends it.
    let ended = async {
        let (mut read, mut write) = tcp.split();
        tokio::select! {
            end = async { read.read(&mut [0]).await } => end,
            () = async {
                // A ClientHello of 508 bytes in one record.
                let head = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc];
                let mut hello = head.into_iter().chain(std::iter::repeat(1));
                loop {
                    drip.tick().await;
                    let byte = hello.next().unwrap_or_default();
                    if write.write_all(&[byte]).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            } => unreachable!("it drips for ever"),
        }
    };
    assert!(!matches!(soon("the end", ended).await, Ok(1)));
    let took = begun.elapsed();
    assert!(took >= HANDSHAKE, "{took:?}");

    // The same once TLS stands: a peer that proves itself and then says nothing.
    let tcp = target.tcp().await;
    let from = tcp.local_addr().unwrap();
    let mut tls = soon("TLS", hbone::tls(tcp, Some(&target.good))).await.unwrap();
    let _ = soon("the end", tls.read_to_end(&mut Vec::new())).await;
    target.log.line(&[&format!("src.addr={from}"), "did not start HTTP/2 within"]).await;
    target.is_unharmed().await;
}
