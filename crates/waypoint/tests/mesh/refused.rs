use leno_model::{AppProtocol, TunnelProtocol};
use leno_tunnel::OpenError;

use crate::http1::mirror;
use crate::support::{Mesh, raw};

async fn refusal(mesh: &Mesh, authority: &str) -> u16 {
    match mesh.client().open(authority).await {
        Ok(_) => panic!("{authority} was let pass"),
        Err(OpenError::Refused { status, .. }) => status.as_u16(),
        Err(other) => panic!("{authority}: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_name_this_waypoint_is_refused() {
    let mesh = Mesh::with(|config| config.proxy.workload_timeout = std::time::Duration::from_millis(200)).await;
    let mut service = mesh.unpublished_service(AppProtocol::Http11);
    service.waypoint = None;
    mesh.control.publish_service(&service);
    mesh.endpoint(&service, 0, mirror().await, TunnelProtocol::None);
    mesh.control.synced(1).await;
    for (authority, status) in [
        ("10.96.0.1:80", 404),
        ("web.default.svc.cluster.local:80", 404),
        ("10.9.9.9:80", 404),
        ("127.0.0.1:15000", 404),
        ("169.254.169.254:80", 404),
        ("10.96.0.1:0", 400),
    ] {
        assert_eq!(refusal(&mesh, authority).await, status, "{authority}");
    }
    mesh.log.line(&["does not name this waypoint"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_control_plane_tells_a_moment_later_is_waited_for() {
    let mesh = Mesh::new().await;
    let client = mesh.client();
    let opening = client.open("10.96.0.1:80");
    let telling = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    };
    let (opened, ()) = tokio::join!(opening, telling);
    assert!(opened.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_client_is_refused_if_nobody_can_be_reached() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Tcp, &[]).await;
    assert_eq!(refusal(&mesh, "10.96.0.1:80").await, 503);
    mesh.log.line(&["no healthy endpoint for service"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_the_service_and_its_name_are_served() {
    let mesh = Mesh::new().await;
    let endpoint = mirror().await;
    mesh.service(AppProtocol::Http11, &[endpoint]).await;
    for authority in [endpoint.to_string(), "web.default.svc.cluster.local:80".to_owned()] {
        let to = mesh.bridge(&authority).await;
        let answer = raw(to, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{authority}: {answer}");
    }
}
