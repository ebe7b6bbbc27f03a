//! Peers that vanish: their node has lost its power or its network.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Mesh, NEVER, Pod, pair, read_error, soon, tcp_counter, tunnels_between};

/// A server that answers every message with `name`.
fn greet(listener: TcpListener, name: u8) {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                if stream.read_exact(&mut [0]).await.is_ok() {
                    let _ = stream.write_all(&[name]).await;
                }
            });
        }
    });
}

/// The name of the endpoint that answers at `service`.
async fn ask(client: &Pod, service: SocketAddr) -> io::Result<u8> {
    let mut stream = client.host().connect(service).await?;
    stream.write_all(b"?").await?;
    let mut name = [0];
    stream.read_exact(&mut name).await?;
    Ok(name[0])
}

/// The kernel would find it after a quarter of an hour, and the proxy does after nine seconds: a test of its keepalive with
/// a clock of its own shows that.
#[tokio::test]
async fn a_peer_that_is_gone_is_found_by_who_waits_for_it() {
    if !may_run("a_peer_that_is_gone_is_found_by_who_waits_for_it") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;
    let (mut near, mut far) = pair(&client, &server).await;
    mesh.network.unplug(&server);
    near.write_all(b"hello").await.unwrap();
    far.write_all(b"hello").await.unwrap();
    let (one, other) = tokio::join!(read_error(&mut near), read_error(&mut far));
    assert_eq!((one, other), (io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionReset));
}

/// Two endpoints of a service, one of which goes.
struct Scene {
    mesh: Mesh,
    client: Pod,
    gone: Pod,
    stays: Pod,
    service: SocketAddr,
}

impl Scene {
    async fn new() -> Self {
        // No tunnel ends for having nothing to do.
        let mut mesh = Mesh::with(|config| config.proxy.pool_idle_timeout = 10 * NEVER).await;
        let client = mesh.pod("client", "node-1").await;
        let mut gone = mesh.pod("gone", "node-2").await;
        let mut stays = mesh.pod("stays", "node-2").await;
        let vip = "10.96.0.1".parse().unwrap();
        mesh.service("both", &[vip], &mut [&mut gone, &mut stays]).await;
        greet(gone.listen(), b'g');
        greet(stays.listen(), b's');
        Self { mesh, client, gone, stays, service: (vip, 80).into() }
    }

    /// The name of the endpoint that answers. No connection is lost, whichever is chosen first.
    async fn ask(&self) -> u8 {
        soon("an answer", ask(&self.client, self.service)).await.expect("no connection is lost")
    }
}

#[tokio::test]
async fn an_idle_tunnel_to_a_peer_that_is_gone_costs_a_new_connection_little() {
    const CALLERS: usize = 10;
    if !may_run("an_idle_tunnel_to_a_peer_that_is_gone_costs_a_new_connection_little") {
        return;
    }
    let scene = Scene::new().await;
    // A tunnel to each endpoint.
    let mut seen = Vec::new();
    while !(seen.contains(&b'g') && seen.contains(&b's')) {
        seen.push(scene.ask().await);
    }
    // A peer that sent something within a second is taken to be alive.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    scene.mesh.network.unplug(&scene.gone);

    // Whoever meets the dead finds that it is, and goes on to the other one. Until somebody has met it.
    while tunnels_between(&scene.client, &scene.gone) > 0 {
        let answers = join_all((0..CALLERS).map(|_| scene.ask())).await;
        assert_eq!(answers, [b's'; CALLERS]);
    }
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_costs_the_first_connections_only() {
    const LATER: usize = 60;
    /// How long an endpoint is avoided that did not answer, at least. Then one connection tries it.
    const AVOIDED: Duration = Duration::from_secs(5);
    if !may_run("an_endpoint_that_does_not_answer_costs_the_first_connections_only") {
        return;
    }
    let scene = Scene::new().await;
    let asked = Cell::new(0);
    let ask = async || {
        asked.set(asked.get() + 1);
        scene.ask().await
    };
    // The connections that the proxy has begun to the endpoint that is gone, each of which costs a caller seconds: those of
    // this pod that are neither the program's nor tunnels to the other endpoint.
    let opened = || tcp_counter(scene.client.namespace(), "ActiveOpens");
    let before = opened();
    let dials = || opened() - before - asked.get() - tunnels_between(&scene.client, &scene.stays) as u64;
    scene.mesh.network.unplug(&scene.gone);
    while dials() == 0 {
        assert_eq!(ask().await, b's');
    }

    let (first, begun) = (dials(), Instant::now());
    for _ in 0..LATER {
        assert_eq!(ask().await, b's');
    }
    let tries = 1 + begun.elapsed().as_secs() / AVOIDED.as_secs();
    println!("{first} and then {} dials for {LATER} connections, in {:?}", dials() - first, begun.elapsed());
    assert_eq!(first, 1, "one connection at a time finds that it does not answer");
    assert!(dials() - first <= tries, "{} of {LATER} connections tried it", dials() - first);

    // It is tried now and then, and found when it is back.
    scene.mesh.network.plug_in(&scene.gone);
    while ask().await != b'g' {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // It gets its share of connections again.
    let mut shares = [0, 0];
    for _ in 0..LATER {
        shares[usize::from(ask().await == b'g')] += 1;
    }
    assert!(shares.iter().all(|share| *share > LATER / 6), "{shares:?}");
}
