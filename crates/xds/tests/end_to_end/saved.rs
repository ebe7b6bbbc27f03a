//! A proxy that starts with a saved state: which answers of a control plane let it count.

use super::*;

/// A directory in which a proxy has saved this mesh, and the control plane that told of it.
async fn saved() -> (tempfile::TempDir, ControlPlane) {
    let dir = tempfile::tempdir().unwrap();
    let control = ControlPlane::new(resources(&[("w", "1")])).await;
    let mut proxy = start(&dir, control.config("good"));
    proxy.synced().await;
    let complete = async {
        while !dir.path().join("mesh").exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, complete).await.expect("nothing is saved");
    (dir, control)
}

fn start(dir: &tempfile::TempDir, config: ChannelConfig) -> Proxy {
    Proxy::of(Client::new(config, node()).kept_in(dir.path().join("mesh")))
}

/// What a proxy has taken in by the time it has a mesh.
async fn taken(proxy: &mut Proxy) -> Vec<Update> {
    proxy.becomes(Status::is_synced).await;
    let mut all = Vec::new();
    while let Ok(seen) = proxy.seen.try_recv() {
        if let Seen::Applied(_, updates) = seen {
            all.extend(updates);
        }
    }
    all
}

async fn disconnected(proxy: &mut Proxy) -> (String, Status) {
    let status = proxy.becomes(|status| matches!(status.connection, ConnectionState::Disconnected { .. })).await;
    match &status.connection {
        ConnectionState::Disconnected { reason, .. } => (reason.clone(), status.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn it_counts_while_the_control_plane_is_away_or_cannot_judge() {
    let (dir, control) = saved().await;
    // Nobody could tell whether the token is good.
    let mut unjudged = start(&dir, control.config("unlucky"));
    assert_eq!(taken(&mut unjudged).await, [upsert("w", "1")]);
    let config = control.config("good");
    control.stop().await;
    let mut alone = start(&dir, config);
    assert_eq!(taken(&mut alone).await, [upsert("w", "1")]);
}

#[tokio::test]
async fn it_does_not_count_for_a_proxy_that_the_control_plane_refuses() {
    let (dir, control) = saved().await;
    let mut refused = start(&dir, control.config("bad"));
    let (reason, status) = disconnected(&mut refused).await;
    assert!(reason.contains("it has expired"), "{reason}");
    assert!(!status.is_synced());
    // Nor later, when there is no control plane any more: its last word was no.
    control.stop().await;
    refused
        .becomes(|status| {
            matches!(&status.connection, ConnectionState::Disconnected { reason, .. } if reason.contains("cannot connect"))
        })
        .await;
    assert!(!refused.status.borrow().is_synced());
    assert!(refused.seen.try_recv().is_err(), "nothing was taken in");
}

#[tokio::test]
async fn it_does_not_count_for_a_proxy_without_its_token() {
    let (dir, control) = saved().await;
    let mut config = control.config("good");
    config.token = Some(TokenSource::File(dir.path().join("no such token")));
    let mut proxy = start(&dir, config);
    let (reason, status) = disconnected(&mut proxy).await;
    assert!(reason.contains("no such token"), "{reason}");
    assert!(!status.is_synced());
}
