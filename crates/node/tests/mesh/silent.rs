//! Peers that vanish: their node has lost its power or its network.

use std::io;
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::{Mesh, Pod, pair, read_error, soon};

/// How long a program may wait for a peer that is gone: ten seconds, of which the proxy needs nine, and time for a busy
/// machine.
const FOUND: Duration = Duration::from_secs(13);

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

/// The name of the endpoint that answers at `service`, and the time it took.
async fn ask(client: &Pod, service: std::net::SocketAddr) -> io::Result<(u8, Duration)> {
    let begun = Instant::now();
    let mut stream = client.host().connect(service).await?;
    stream.write_all(b"?").await?;
    let mut name = [0];
    stream.read_exact(&mut name).await?;
    Ok((name[0], begun.elapsed()))
}

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
    let begun = Instant::now();
    near.write_all(b"hello").await.unwrap();
    far.write_all(b"hello").await.unwrap();
    let (one, other) = tokio::join!(read_error(&mut near), read_error(&mut far));
    assert_eq!((one, other), (io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionReset));
    println!("found after {:?}", begun.elapsed());
    assert!(begun.elapsed() < FOUND, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_idle_tunnel_to_a_peer_that_is_gone_costs_a_new_connection_little() {
    const CALLERS: usize = 10;
    if !may_run("an_idle_tunnel_to_a_peer_that_is_gone_costs_a_new_connection_little") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut gone = mesh.pod("gone", "node-2").await;
    let mut stays = mesh.pod("stays", "node-2").await;
    let vip = "10.96.0.1".parse().unwrap();
    mesh.service("both", &[vip], &mut [&mut gone, &mut stays]).await;
    greet(gone.listen(), b'g');
    greet(stays.listen(), b's');
    let service = (vip, 80).into();
    // A tunnel to each endpoint.
    let mut seen = Vec::new();
    while !(seen.contains(&b'g') && seen.contains(&b's')) {
        seen.push(soon("an answer", ask(&client, service)).await.unwrap().0);
    }
    // A peer that sent something within a second is taken to be alive.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    mesh.network.unplug(&gone);
    let client = std::sync::Arc::new(client);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move { ask(&client, service).await });
    }
    let answers = soon("answers", callers.join_all()).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("no connection is lost")).collect();
    println!("{answers:?}");
    assert!(answers.iter().all(|(name, took)| *name == b's' && *took < FOUND), "{answers:?}");
    assert!(answers.iter().any(|(_, took)| *took > Duration::from_secs(1)), "nobody met the dead: {answers:?}");
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_costs_the_first_connections_only() {
    const LATER: usize = 60;
    /// What a new connection to nobody costs, at least: the kernel asks for three seconds who has the address.
    const DEAR: Duration = Duration::from_secs(2);
    /// Of the later connections, at most so many may cost more than an unoptimised handshake on a busy machine: those that
    /// find out whether the endpoint is back.
    const PROBES: usize = LATER / 10;
    const CHEAP: Duration = Duration::from_millis(500);
    if !may_run("an_endpoint_that_does_not_answer_costs_the_first_connections_only") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut gone = mesh.pod("gone", "node-2").await;
    let mut stays = mesh.pod("stays", "node-2").await;
    let vip = "10.96.0.1".parse().unwrap();
    mesh.service("both", &[vip], &mut [&mut gone, &mut stays]).await;
    greet(gone.listen(), b'g');
    greet(stays.listen(), b's');
    let service = (vip, 80).into();
    mesh.network.unplug(&gone);
    let ask = async || soon("an answer", ask(&client, service)).await.expect("no connection is lost");
    let mut first = Vec::new();
    while !first.iter().any(|(_, took)| *took > DEAR) {
        first.push(ask().await);
    }
    let mut later = Vec::new();
    for _ in 0..LATER {
        later.push(ask().await);
    }
    assert!(later.iter().all(|(name, took)| *name == b's' && *took < DEAR), "{first:?} {later:?}");
    assert!(later.iter().filter(|(_, took)| *took > CHEAP).count() <= PROBES, "{later:?}");
    // It is asked now and then, by one connection that does not wait long, and found when it is back.
    mesh.network.plug_in(&gone);
    let mut dearest = Duration::ZERO;
    loop {
        let (name, took) = ask().await;
        dearest = dearest.max(took);
        if name == b'g' {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!(
        "first {first:?}, dearest of {LATER} later {:?}, dearest probe {dearest:?}",
        later.iter().map(|l| l.1).max()
    );
    assert!(dearest < DEAR, "{dearest:?}");
    // It gets its share of connections again.
    let mut shares = [0, 0];
    for _ in 0..LATER {
        shares[usize::from(ask().await.0 == b'g')] += 1;
    }
    assert!(shares.iter().all(|share| *share > LATER / 6), "{shares:?}");
}
