//! A proxy that starts while no control plane can be reached.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use leno_model::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, StringMatch};
use leno_testkit::network::may_run;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{Mesh, echo, eventually, exchange, refused, soon};

/// The way to the control plane, which can be closed.
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    pub(crate) open: watch::Sender<bool>,
    pub(crate) to: Arc<Mutex<Option<SocketAddr>>>,
}

impl Way {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, to) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(None)));
        let (open, state) = watch::channel(true);
        let target = to.clone();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let (mut state, target): (_, Option<SocketAddr>) = (state.clone(), *target.lock());
                tokio::spawn(async move {
                    let Some(target) = target.filter(|_| *state.borrow()) else { return };
                    let Ok(mut onward) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut onward) => {}
                        _ = state.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { address, open, to }
    }
}

fn policy(name: &str, action: Action, matching: Match) -> Authorization {
    Authorization {
        id: PolicyName { namespace: "default".into(), name: name.into() },
        scope: Scope::Namespace,
        action,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![matching] }] }],
        dry_run: false,
        not_understood: None,
    }
}

fn certificates(state: &Path) -> usize {
    std::fs::read_dir(state.join("node-2/certificates")).unwrap().count()
}

async fn all_ready(mesh: &Mesh) {
    for node in ["node-1", "node-2"] {
        let node = mesh.started(node);
        let ready =
            async { while !node.get(node.proxy().endpoints().readiness, "/healthz/ready").await.contains(" 200 ") {} };
        soon("a proxy that is ready", ready).await;
    }
}

#[tokio::test]
async fn a_proxy_that_starts_without_a_control_plane_goes_on_with_what_the_last_one_knew() {
    if !may_run("a_proxy_that_starts_without_a_control_plane_goes_on_with_what_the_last_one_knew") {
        return;
    }
    let (way, dir) = (Way::new().await, tempfile::tempdir().unwrap());
    let (state, address) = (dir.path().to_owned(), way.address);
    let mut mesh = Mesh::with(move |config| {
        config.proxy.state_dir = Some(state.join(&config.proxy.node));
        config.proxy.xds_address = format!("https://{address}");
    })
    .await;
    *way.to.lock() = Some(mesh.control.address());
    let identity = "spiffe://cluster.local/ns/default/sa/client";
    let principal = StringMatch::Exact("cluster.local/ns/default/sa/client".into());
    mesh.control.publish_policy(&policy(
        "allow-client",
        Action::Allow,
        Match { principals: vec![principal], ..Match::default() },
    ));
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    let leaving = mesh.pod("leaving", "node-2").await;
    echo(server.listen());
    echo(leaving.listen());
    let (server_at, leaving_at) = (server.app(server.v4), leaving.app(leaving.v4));
    let attempt = async |to| exchange(client.host().connect(to).await?, b"hello").await;
    soon("an answer", attempt(server_at)).await.unwrap();
    soon("an answer", attempt(leaving_at)).await.unwrap();
    eventually("the certificates to be saved", || certificates(dir.path()) == 2).await;

    // Nobody can be reached, and the proxies start anew.
    way.open.send_replace(false);
    let signed = *mesh.control.signed().borrow();
    for node in ["node-1", "node-2"] {
        drop(mesh.take_proxy(node));
        mesh.restart_proxy_alone(node).await;
    }
    all_ready(&mesh).await;
    // With the certificates, the mesh and the policies that were saved.
    let log = mesh.started("node-2").log.clone();
    soon("an answer", attempt(server_at)).await.unwrap();
    log.line(&[&format!("src.identity=\"{identity}\""), "direction=\"inbound\""]).await;
    assert_eq!(*mesh.control.signed().borrow(), signed);
    refused(mesh.network.outside(), server_at).await;

    // The control plane is there again: what has changed meanwhile counts, and what has gone goes.
    mesh.control.publish_policy(&policy(
        "freeze",
        Action::Deny,
        Match { destination_ports: vec![server_at.port()], ..Match::default() },
    ));
    mesh.control.remove_workload(&leaving.workload.uid);
    way.open.send_replace(true);
    mesh.synced().await;
    refused(client.host(), server_at).await;
    eventually("the certificate of the pod that left to be removed", || certificates(dir.path()) == 1).await;

    // And it is what the next proxy begins with.
    way.open.send_replace(false);
    for node in ["node-1", "node-2"] {
        drop(mesh.take_proxy(node));
        mesh.restart_proxy_alone(node).await;
    }
    all_ready(&mesh).await;
    refused(client.host(), server_at).await;
    let dump = mesh.started("node-1").config_dump().await;
    let names = |what: &str| dump[what].as_array().unwrap().iter().map(|it| it["name"].to_string()).collect::<Vec<_>>();
    assert!(names("policies").contains(&"\"freeze\"".to_owned()), "{:?}", names("policies"));
    assert!(!names("workloads").contains(&"\"leaving\"".to_owned()), "{:?}", names("workloads"));

    // A state that is damaged is not used: nothing passes until the control plane answers.
    for node in ["node-1", "node-2"] {
        drop(mesh.take_proxy(node));
        let journal = dir.path().join(node).join("mesh");
        let mut bytes = std::fs::read(&journal).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&journal, bytes).unwrap();
        mesh.restart_proxy_alone(node).await;
    }
    refused(client.host(), server_at).await;
    mesh.control.remove_policy(&PolicyName { namespace: "default".into(), name: "freeze".into() });
    way.open.send_replace(true);
    mesh.synced().await;
    soon("an answer", attempt(server_at)).await.unwrap();
}
