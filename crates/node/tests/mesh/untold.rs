//! Pods that start while no control plane can be reached.

use std::time::Duration;

use leno_testkit::network::may_run;

use crate::saved::Way;
use crate::support::{Mesh, Pod, echo, exchange, refused, soon, unchunked};

async fn untold(mesh: &Mesh) -> serde_json::Value {
    let node = mesh.started("node-1");
    let page = node.get(node.proxy().endpoints().admin, "/status").await;
    let body = page.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap();
    let told: serde_json::Value =
        serde_json::from_str(&body).unwrap_or_else(|_| serde_json::from_str(&unchunked(&page)).unwrap());
    told["untoldPods"].clone()
}

async fn comes_through(from: &Pod, to: &Pod) {
    let attempts =
        async { while async { exchange(from.host().connect(to.app(to.v4)).await?, b"hello").await }.await.is_err() {} };
    soon("an answer", attempts).await;
}

#[tokio::test]
async fn a_pod_that_nobody_tells_of_goes_by_its_account_and_lets_nobody_in() {
    if !may_run("a_pod_that_nobody_tells_of_goes_by_its_account_and_lets_nobody_in") {
        return;
    }
    let way = Way::new().await;
    let address = way.address;
    let mut mesh = Mesh::with(move |config| {
        config.proxy.xds_address = format!("https://{address}");
        // What is refused here is refused after this time.
        config.proxy.workload_timeout = Duration::from_millis(500);
    })
    .await;
    *way.to.lock() = Some(mesh.control.address());
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    echo(server.listen());
    comes_through(&client, &server).await;
    assert_eq!(untold(&mesh).await, serde_json::json!([]));

    way.open.send_replace(false);
    let mut second = mesh.uncaptured_pod("second", "node-1");
    second.workload.service_account = "client".into();
    mesh.enroll(&second).await;
    let stranger = mesh.unpublished_pod("stranger", "node-1").await;
    echo(second.listen());
    // With the certificate of its account, and under its own name.
    comes_through(&second, &server).await;
    let (here, there) = (mesh.started("node-1").log.clone(), mesh.started("node-2").log.clone());
    let identity = "src.identity=\"spiffe://cluster.local/ns/default/sa/client\"";
    here.line(&["direction=\"outbound\"", "src.workload=\"second\"", identity]).await;
    there.line(&["direction=\"inbound\"", identity, &second.v4.to_string()]).await;
    // Nobody knows which policies guard it.
    for host in [server.host(), mesh.network.outside()] {
        refused(host, second.app(second.v4)).await;
    }
    here.line(&["direction=\"inbound\"", "which policies guard pod default/second", "`leno check`"]).await;
    // A new identity can't be signed.
    refused(stranger.host(), server.app(server.v4)).await;
    here.line(&["direction=\"outbound\"", "nobody signs a certificate for pod default/stranger"]).await;
    assert_eq!(untold(&mesh).await, serde_json::json!(["default/second", "default/stranger"]));

    // Told of, both are pods like others.
    mesh.control.publish_workload(&second.workload);
    mesh.control.publish_workload(&stranger.workload);
    way.open.send_replace(true);
    mesh.synced().await;
    comes_through(&server, &second).await;
    comes_through(&stranger, &server).await;
    comes_through(&second, &server).await;
    assert_eq!(untold(&mesh).await, serde_json::json!([]));
}
