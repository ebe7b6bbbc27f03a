//! Whole connections: whatever streams do, and however their bytes are cut, everything arrives and nothing is left behind.

use h2::client::SendRequest;
use http::{Request, Response};
use proptest::prelude::*;

use super::*;

/// What one stream does: the bytes each way, the size of writes and reads, and whether a side gives up.
#[derive(Debug, Clone)]
struct Plan {
    up: usize,
    down: usize,
    step: usize,
    /// After this many received bytes; by the client if the number is even.
    given_up: Option<usize>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let size = || prop_oneof![Just(0), 1usize..300, 1000usize..150_000];
    (size(), size(), prop_oneof![1usize..50, 50usize..40_000], prop::option::weighted(0.3, 0usize..100_000)).prop_map(
        |(up, down, step, given_up)| Plan {
            up: if step < 50 { up.min(2000) } else { up },
            down: if step < 50 { down.min(2000) } else { down },
            step,
            given_up,
        },
    )
}

/// Bytes that are different in each stream and direction.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251 + seed * 77) as u8).collect()
}

/// Sends and receives at the same time. With `stop`, gives up after this many bytes. Returns whether the peer's end was
/// seen.
async fn exchange(stream: TunnelStream, send: Vec<u8>, expect: Vec<u8>, step: usize, stop: Option<usize>) -> bool {
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        for part in send.chunks(step) {
            write.write_all(part).await?;
        }
        write.shutdown().await
    };
    let receiving = async {
        let mut got = 0;
        let mut buffer = vec![0; step];
        loop {
            if stop.is_some_and(|stop| got >= stop) {
                return None;
            }
            match read.read(&mut buffer).await {
                Ok(0) => return Some(got == expect.len()),
                Ok(length) => {
                    assert!(
                        got + length <= expect.len() && buffer[..length] == expect[got..got + length],
                        "not as sent"
                    );
                    got += length;
                }
                Err(_) => return Some(false),
            }
        }
    };
    let receive_first = async {
        match receiving.await {
            None => Err(()),
            seen => Ok(seen == Some(true)),
        }
    };
    let both = async { tokio::try_join!(async { Ok(sending.await.is_ok()) }, receive_first) };
    matches!(both.await, Ok((true, true)))
}

/// Waits until both ends hold nothing, and checks that they agree about the windows.
async fn quiet(client: &Handle, server: &Handle) {
    nothing_kept(client).await;
    nothing_kept(server).await;
    let agree = |from: &Handle, to: &Handle| from.0.lock().outgoing.mux.window() == to.0.lock().incoming.credit.open();
    let both = async {
        while !(agree(client, server) && agree(server, client)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(timeout(HANGS, both).await.is_ok(), "the ends take windows for different ones");
}

async fn run(plans: Vec<Plan>, room: usize) {
    let (near, far) = duplex(room);
    let (accepted, mut accepts) = mpsc::unbounded_channel();
    let _server = tokio::spawn(async move {
        let accept = |inbound: InboundConnect| accepted.send(inbound.accept(HeaderMap::new()).unwrap()).unwrap();
        serve(far, &small(), std::future::pending(), accept).await
    });
    let pool: Pool<(), ()> = Pool::new(small());
    let mut near = Some(near);
    let mut tasks = tokio::task::JoinSet::new();
    let mut ends = None;
    for (seed, plan) in plans.into_iter().enumerate() {
        let (here, _) = pool.open(&(), || std::future::ready(near.take().ok_or(())), request()).await.unwrap();
        let there: TunnelStream = accepts.recv().await.unwrap();
        ends.get_or_insert_with(|| (here.lane.carrier(), there.lane.carrier()));
        let (up, down) = (bytes(2 * seed, plan.up), bytes(2 * seed + 1, plan.down));
        let (client_stops, server_stops) = match plan.given_up {
            Some(after) if after % 2 == 0 => (Some(after), None),
            stop => (None, stop),
        };
        let client = exchange(here, up.clone(), down.clone(), plan.step, client_stops);
        let server = exchange(there, down, up, plan.step, server_stops);
        tasks.spawn(async move {
            let client = tokio::spawn(client);
            let server = tokio::spawn(server).await.unwrap();
            let both = client.await.unwrap() && server;
            assert!(both || plan.given_up.is_some(), "{plan:?}");
        });
    }
    timeout(Duration::from_secs(8), tasks.join_all()).await.expect("a stream hangs");
    if let Some((client, server)) = ends {
        quiet(&client, &server).await;
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn streams_arrive_whole_whatever_the_others_do(
        plans in prop::collection::vec(plan(), 1..7),
        room in prop_oneof![1usize..40, 40usize..3000, Just(1 << 20)],
    ) {
        // Single bytes only if there are few of them.
        let plans = plans.into_iter().map(|plan| match room {
            0..40 => Plan { up: plan.up.min(5000), down: plan.down.min(5000), ..plan },
            _ => plan,
        });
        runtime().block_on(run(plans.collect(), room));
    }

    #[test]
    fn the_librarys_own_client_is_served(
        sizes in prop::collection::vec((0usize..200_000, 0usize..200_000), 1..5),
        room in 1000usize..100_000,
    ) {
        runtime().block_on(library_client(sizes, room));
    }

    #[test]
    fn the_librarys_own_server_serves(
        sizes in prop::collection::vec((0usize..200_000, 0usize..200_000), 1..5),
        room in 1000usize..100_000,
    ) {
        runtime().block_on(library_server(sizes, room));
    }
}

/// Streams and connections on different threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_arrive_whole_on_many_threads() {
    for round in 0..10 {
        let plan = |stream: usize| Plan {
            up: 60_000 + 1000 * stream,
            down: 90_000 - 1000 * stream,
            step: 7000,
            given_up: (stream % 4 == 3).then_some(20_000 + stream / 4),
        };
        run((0..8).map(plan).collect(), 1000 << round).await;
    }
}

/// Receives everything from the library, and releases the window.
async fn library_reads(mut recv: h2::RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = recv.data().await {
        let chunk = chunk.unwrap();
        recv.flow_control().release_capacity(chunk.len()).unwrap();
        all.extend_from_slice(&chunk);
    }
    all
}

async fn library_client(sizes: Vec<(usize, usize)>, room: usize) {
    let (near, far) = duplex(room);
    let (accepted, mut accepts) = mpsc::unbounded_channel();
    let _server = tokio::spawn(async move {
        let accept = |inbound: InboundConnect| accepted.send(inbound.accept(HeaderMap::new()).unwrap()).unwrap();
        serve(far, &small(), std::future::pending(), accept).await
    });
    let (send, connection) = h2::client::handshake(near).await.unwrap();
    let _driver = tokio::spawn(connection);
    let mut tasks = tokio::task::JoinSet::new();
    let mut carrier = None;
    for (seed, (up, down)) in sizes.into_iter().enumerate() {
        let mut send: SendRequest<Bytes> = send.clone().ready().await.unwrap();
        let request = Request::connect("x:1").body(()).unwrap();
        let (answer, mut out) = send.send_request(request, false).unwrap();
        let there: TunnelStream = accepts.recv().await.unwrap();
        carrier.get_or_insert_with(|| there.lane.carrier());
        let (up, down) = (bytes(2 * seed, up), bytes(2 * seed + 1, down));
        out.send_data(Bytes::from(up.clone()), true).unwrap();
        let server = exchange(there, down.clone(), up, 5000, None);
        tasks.spawn(async move {
            let server = tokio::spawn(server);
            assert!(library_reads(answer.await.unwrap().into_body()).await == down, "not as sent");
            assert!(server.await.unwrap());
        });
    }
    timeout(Duration::from_secs(8), tasks.join_all()).await.expect("a stream hangs");
    nothing_kept(&carrier.unwrap()).await;
}

async fn library_server(sizes: Vec<(usize, usize)>, room: usize) {
    let (near, far) = duplex(room);
    let plans: Vec<_> =
        sizes.into_iter().enumerate().map(|(i, (up, down))| (bytes(2 * i, up), bytes(2 * i + 1, down))).collect();
    let expected = plans.clone();
    let _server = tokio::spawn(async move {
        let mut connection = h2::server::handshake(far).await.unwrap();
        let mut plans = expected.into_iter();
        while let Some(request) = connection.accept().await {
            let ((request, mut respond), (up, down)) = (request.unwrap(), plans.next().unwrap());
            respond.send_response(Response::new(()), false).unwrap().send_data(Bytes::from(down), true).unwrap();
            tokio::spawn(async move { assert!(library_reads(request.into_body()).await == up, "not as sent") });
        }
    });
    let pool: Pool<(), ()> = Pool::new(small());
    let mut near = Some(near);
    let mut tasks = tokio::task::JoinSet::new();
    let mut carrier = None;
    for (up, down) in plans {
        let (here, _) = pool.open(&(), || std::future::ready(near.take().ok_or(())), request()).await.unwrap();
        carrier.get_or_insert_with(|| here.lane.carrier());
        tasks.spawn(async move { assert!(exchange(here, up, down, 5000, None).await) });
    }
    timeout(Duration::from_secs(8), tasks.join_all()).await.expect("a stream hangs");
    nothing_kept(&carrier.unwrap()).await;
}
