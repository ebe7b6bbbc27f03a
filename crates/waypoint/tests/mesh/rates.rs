//! A route lets through so many requests in a time.

use std::time::Duration;

use leno_model::AppProtocol;
use leno_model::http::{Backend, BackendTarget, Parent, RateLimit, Route, RouteKind, RouteName, Rule};

use crate::http1::mirror;
use crate::support::{Mesh, raw};

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_rate_is_refused() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let target = BackendTarget::Service { service: web.id.clone(), port: 80 };
    let route = |rate: Option<RateLimit>| Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: web.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![Rule {
            backends: vec![Backend { weight: 1, target: target.clone(), filters: Vec::new() }],
            rate,
            ..Rule::default()
        }],
        not_understood: None,
    };
    // No token comes during the test.
    let hourly = RateLimit { requests: 1, per: Duration::from_secs(3600), burst: 3 };
    mesh.control.publish_route(&route(Some(hourly)));
    mesh.control.synced(1).await;
    let to = mesh.bridged().await;
    let ask = async |more: &str| {
        raw(to, format!("GET /x HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{more}\r\n").as_bytes()).await
    };
    for _ in 0..3 {
        assert!(ask("").await.starts_with("HTTP/1.1 200 "));
    }
    let refused = ask("").await;
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert!(refused.contains("\r\nx-envoy-ratelimited: true\r\n"), "{refused}");
    let after = refused.split("\r\nretry-after: ").nth(1).and_then(|rest| rest.split('\r').next()).expect("a time");
    assert!((3500..=3600).contains(&after.parse::<u32>().expect("seconds")), "{after}");
    mesh.log.line(&["response_code=429", "response_flags=\"RL\"", "route=\"rule 1 of HTTPRoute default/route\""]).await;
    let grpc = ask("content-type: application/grpc\r\n").await;
    assert!(grpc.starts_with("HTTP/1.1 200 ") && grpc.contains("grpc-status: 14\r\n"), "{grpc}");
    mesh.log.line(&["response_code=200", "grpc_status=14", "response_flags=\"RL\""]).await;
    // Another rate begins anew; without one, everything passes.
    for next in [Some(RateLimit { burst: 1, ..hourly }), None] {
        mesh.control.publish_route(&route(next));
        mesh.control.synced(1).await;
        assert!(ask("").await.starts_with("HTTP/1.1 200 "));
        assert_eq!(ask("").await.starts_with("HTTP/1.1 429 "), next.is_some());
    }
}
