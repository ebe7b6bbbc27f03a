//! Keys that an issuer of tokens serves in the mesh: read, changed, slow, too many, and gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_model::http::{TokenKeys, TokenRule};
use leno_model::{AppProtocol, HBONE_PORT, NetworkAddress, Port, Service, TunnelProtocol};
use leno_testkit::certs::Leaf;
use leno_testkit::endpoint;
use leno_testkit::tokens::tokens;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::support::{Mesh, server, soon};
use crate::tokens::{ask, bearer, guarded, rule};

const ADDRESS: &str = "http://issuer.default.svc.cluster.local/keys?of=web";

/// What the issuer answers. `None` if it never does.
type Says = Arc<Mutex<Option<String>>>;

/// The program of an issuer.
async fn issuer(says: Says) -> SocketAddr {
    server(move |stream| {
        let says = says.clone();
        async move {
            let mut stream = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            let good = head.starts_with("GET /keys?of=web HTTP/1.1\r\n")
                && head.contains("host: issuer.default.svc.cluster.local\r\n");
            let text = says.lock().clone();
            let answer = match text {
                _ if !good => "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned(),
                Some(text) => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len()),
                None => std::future::pending().await,
            };
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await
}

/// The issuer as a service of the mesh whose pod has this program.
async fn publish(mesh: &Mesh, index: u8, program: SocketAddr) {
    let pod = SocketAddr::from(([127, 0, 8, index], program.port()));
    let certificate = mesh.control.lax_authority.issue(&Leaf::uri("spiffe://cluster.local/ns/default/sa/web"));
    drop(endpoint::serve((pod.ip(), HBONE_PORT).into(), &certificate, program).await);
    let mut service = Service::new("default", "issuer", "issuer.default.svc.cluster.local");
    service.addresses = vec![NetworkAddress { network: "".into(), address: "10.96.0.9".parse().unwrap() }];
    service.ports = vec![Port { app_protocol: AppProtocol::Http11, ..Port::tcp(80, 8080) }];
    mesh.control.publish_service(&service);
    mesh.endpoint(&service, 9, pod, TunnelProtocol::Hbone);
    mesh.control.synced(1).await;
}

fn served(timeout: Duration) -> TokenRule {
    TokenRule { keys: TokenKeys::At { uri: ADDRESS.into(), timeout }, ..rule(&tokens()) }
}

fn passes(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 ")
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_read_and_change() {
    let tokens = tokens();
    let says = Says::new(Mutex::new(Some(tokens.rotated.to_string())));
    let (mesh, _) = guarded(vec![served(Duration::from_secs(20))]).await;
    publish(&mesh, 1, issuer(says.clone()).await).await;
    let (known, unknown) = (bearer(&tokens.by_alg["ES384"]), bearer(&tokens.by_alg["ES256"]));
    let answer = ask(&mesh, "/", &known).await;
    assert!(passes(&answer) && answer.contains("\nx-user=ann\n"), "{answer}");
    let answer = ask(&mesh, "/", &unknown).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "a key that the issuer does not have: {answer}");
    mesh.log.line(&["response_code=401", "by none of the issuer's keys"]).await;
    // A key that is new is asked for, though not at once again. Meanwhile the others count.
    *says.lock() = Some(tokens.jwks.to_string());
    soon("the new key", async {
        while !passes(&ask(&mesh, "/", &unknown).await) {
            assert!(passes(&ask(&mesh, "/", &known).await));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    for (name, token) in &tokens.bad {
        let answer = ask(&mesh, "/", &bearer(token)).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{name}: {answer}");
    }
    // What the issuer says that is no key set takes no keys away.
    *says.lock() = Some("<html>".to_owned());
    assert!(passes(&ask(&mesh, "/", &known).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_refuses_tokens_and_stalls_nobody() {
    let tokens = tokens();
    let good = bearer(&tokens.by_alg["ES256"]);
    let padded = format!("{}{}", tokens.jwks, " ".repeat(256 << 10));
    let dead = {
        let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let cases = [
        (Some(None), "has not answered"),
        (Some(Some(padded)), "longer than"),
        (Some(Some("{}".to_owned())), "no JSON Web Key Set"),
        (None, "http://issuer.default.svc.cluster.local/keys"),
    ];
    for (index, (says, why)) in (2..).zip(cases) {
        let (mesh, _) = guarded(vec![served(Duration::from_secs(3))]).await;
        let program = match says {
            Some(says) => issuer(Says::new(Mutex::new(says))).await,
            None => dead,
        };
        publish(&mesh, index, program).await;
        let refused = ask(&mesh, "/", &good);
        let others = async {
            for _ in 0..3 {
                assert!(passes(&ask(&mesh, "/", "").await), "{why}: who has no token waits for none");
            }
        };
        let (refused, ()) = tokio::join!(refused, others);
        assert!(refused.starts_with("HTTP/1.1 401 "), "{why}: {refused}");
        assert!(!refused.contains(why), "the client is not told: {refused}");
        mesh.log.line(&["response_code=401", "the issuer's keys are not known", why]).await;
    }
}
