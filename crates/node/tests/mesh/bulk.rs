//! Connections that go to a destination of bulk, which are spread over the proxy's threads.

use std::io::ErrorKind;

use leno_testkit::network::may_run;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Mesh, pair, read_error, reset, soon, tunnels_of};

#[tokio::test]
async fn bulk_is_spread_over_threads_and_arrives() {
    if !may_run("bulk_is_spread_over_threads_and_arrives") {
        return;
    }
    let mut mesh = Mesh::with(|config| config.proxy.worker_threads = 2).await;
    let client = mesh.pod("client", "node-1").await;
    let server = mesh.pod("server", "node-2").await;
    mesh.synced().await;

    // More than it takes, and fast enough if it is done while this test waits.
    const MIB: usize = 256;
    let (mut near, mut far) = pair(&client, &server).await;
    let sending = async {
        let block = vec![3; 1 << 20];
        for _ in 0..MIB {
            near.write_all(&block).await.unwrap();
        }
        near.shutdown().await.unwrap();
    };
    let receiving = async {
        let (mut block, mut got) = (vec![0; 1 << 20], 0);
        loop {
            match far.read(&mut block).await.unwrap() {
                0 => break got,
                length => got += length,
            }
        }
    };
    let ((), got) = soon("much", async { tokio::join!(sending, receiving) }).await;
    assert_eq!(got, MIB << 20);
    drop((near, far));
    mesh.node("node-1").log.line(&["connection complete", &format!("bytes_sent={} ", (MIB << 20) + 1)]).await;
    assert_eq!(tunnels_of(&client), 1);

    let (mut first, mut first_far) = pair(&client, &server).await;
    let (mut second, mut second_far) = pair(&client, &server).await;
    let (_third, _third_far) = pair(&client, &server).await;
    let (fourth, mut fourth_far) = pair(&client, &server).await;
    assert_eq!(tunnels_of(&client), 2, "one of each thread");
    // On the second thread, as every other one.
    reset(fourth);
    assert_eq!(read_error(&mut fourth_far).await, ErrorKind::ConnectionReset);
    for (near, far) in [(&mut first, &mut first_far), (&mut second, &mut second_far)] {
        near.write_all(b"ask").await.unwrap();
        let mut word = [0; 3];
        soon("a word", far.read_exact(&mut word)).await.unwrap();
        // Half-close: the answer still comes.
        near.shutdown().await.unwrap();
        assert_eq!(soon("the end", far.read(&mut word)).await.unwrap(), 0);
        far.write_all(&[7; 300_000]).await.unwrap();
        far.shutdown().await.unwrap();
        let mut answer = Vec::new();
        soon("the answer", near.read_to_end(&mut answer)).await.unwrap();
        assert_eq!(answer, [7; 300_000]);
    }
}
