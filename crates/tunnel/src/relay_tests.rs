use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::FixedState;
use http::HeaderMap;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;
use crate::server::serve;
use crate::test_support::request;
use crate::timers::sleep;
use crate::{Counters, Pool, Settings};

/// Nothing here takes long. A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// What lies between the two programs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Path {
    /// Two proxies and a tunnel.
    Tunnel,
    /// Three proxies and two tunnels.
    Waypoint,
    /// One proxy without a tunnel.
    Plain,
}

const PATHS: [Path; 3] = [Path::Tunnel, Path::Waypoint, Path::Plain];

/// Two programs, and the proxies between them.
struct Rig {
    client: TcpStream,
    server: TcpStream,
    /// The client's relay, and the relays behind its tunnel.
    near: JoinHandle<Result<(), RelayError>>,
    far: Vec<JoinHandle<Result<(), RelayError>>>,
    counters: Arc<Counters>,
    cancel: Option<oneshot::Sender<()>>,
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

async fn tunnel_pair(settings: Settings) -> (TunnelStream, TunnelStream) {
    let (near, far) = duplex(256 << 10);
    let (sender, receiver) = oneshot::channel();
    tokio::spawn({
        let settings = settings.clone();
        async move {
            let mut sender = Some(sender);
            serve(far, &settings, std::future::pending(), |inbound| {
                let stream = inbound.accept(HeaderMap::new()).unwrap();
                assert!(sender.take().unwrap().send(stream).is_ok());
            })
            .await
        }
    });
    let pool: Pool<(), ()> = Pool::new(settings);
    let mut near = Some(near);
    let (near, _) = pool.open(&(), || std::future::ready(near.take().ok_or(())), request()).await.unwrap();
    // The connection is needed as long as the test runs, even if its pool is gone.
    (near, receiver.await.unwrap())
}

impl Rig {
    async fn start(path: Path) -> Self {
        Self::with(path, RelayOptions::default(), Settings::default()).await
    }

    async fn with(path: Path, options: RelayOptions, settings: Settings) -> Self {
        let (client, near_tcp) = tcp_pair().await;
        let (far_tcp, server) = tcp_pair().await;
        let counters = Arc::new(Counters::default());
        let (cancel, cancelled) = oneshot::channel::<()>();
        let cancelled = async move {
            if cancelled.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let meter = counters.clone();
        let (near, far) = match path {
            Path::Tunnel | Path::Waypoint => {
                let (near_end, mut far_end) = tunnel_pair(settings.clone()).await;
                let mut far = Vec::new();
                if path == Path::Waypoint {
                    let (from, options) = (far_end, options.clone());
                    let (to, last) = tunnel_pair(settings).await;
                    far.push(tokio::spawn(async move {
                        tunnel_to_tunnel(from, to, &Counters::default(), &options, std::future::pending()).await
                    }));
                    far_end = last;
                }
                let near_options = options.clone();
                let near = async move { tcp_to_tunnel(near_tcp, near_end, &meter, &near_options, cancelled).await };
                far.push(tokio::spawn(async move {
                    tcp_to_tunnel(far_tcp, far_end, &Arc::<Counters>::default(), &options, std::future::pending()).await
                }));
                (tokio::spawn(near), far)
            }
            Path::Plain => {
                let near = async move { tcp_to_tcp(near_tcp, far_tcp, &*meter, &options, cancelled).await };
                (tokio::spawn(near), Vec::new())
            }
        };
        Self { client, server, near, far, counters, cancel: Some(cancel) }
    }

    /// Both relays' results.
    async fn end(self) -> Vec<Result<(), RelayError>> {
        drop((self.client, self.server));
        let mut results = vec![timeout(LIMIT, self.near).await.unwrap().unwrap()];
        for far in self.far {
            results.push(timeout(LIMIT, far).await.unwrap().unwrap());
        }
        results
    }
}

async fn read_all(io: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    timeout(LIMIT, io.read_to_end(&mut all)).await.expect("it hangs")?;
    Ok(all)
}

fn reset(tcp: TcpStream) {
    abort(&tcp);
    drop(tcp);
}

fn is_reset(result: io::Result<Vec<u8>>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn bytes_travel_both_ways_and_are_counted() {
    for path in PATHS {
        let mut rig = Rig::start(path).await;
        for _ in 0..3 {
            rig.client.write_all(b"question").await.unwrap();
            let mut got = [0; 8];
            rig.server.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"question");
            rig.server.write_all(b"answer").await.unwrap();
            rig.client.read_exact(&mut got[..6]).await.unwrap();
            assert_eq!(&got[..6], b"answer");
        }
        let counters = rig.counters.clone();
        assert!(rig.end().await.iter().all(Result::is_ok));
        assert_eq!((counters.forward.load(Relaxed), counters.backward.load(Relaxed)), (24, 18), "{path:?}");
    }
}

#[tokio::test]
async fn either_side_may_close_first() {
    for path in PATHS {
        for client_first in [true, false] {
            let mut rig = Rig::start(path).await;
            let (first, second) = match client_first {
                true => (&mut rig.client, &mut rig.server),
                false => (&mut rig.server, &mut rig.client),
            };
            first.write_all(b"request").await.unwrap();
            first.shutdown().await.unwrap();
            assert_eq!(read_all(second).await.unwrap(), b"request");
            // The other direction is still open.
            second.write_all(b"the").await.unwrap();
            let mut got = [0; 3];
            first.read_exact(&mut got).await.unwrap();
            second.write_all(b" answer").await.unwrap();
            second.shutdown().await.unwrap();
            assert_eq!(read_all(first).await.unwrap(), b" answer");
            let results = rig.end().await;
            assert!(results.iter().all(Result::is_ok), "{path:?} {client_first} {results:?}");
        }
    }
}

/// Pseudo-random bytes that differ at every position of a transfer.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

async fn transfer(mut from: TcpStream, mut to: TcpStream, bytes: usize) -> (TcpStream, TcpStream) {
    use std::hash::BuildHasher;
    let send = async {
        let mut hash = FixedState::default().build_hasher();
        let mut pattern = Pattern(1);
        let mut block = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            pattern.fill(&mut block);
            // Both sides hash block by block, because the hasher is no stream.
            hash.write(&block);
            from.write_all(&block).await.unwrap();
        }
        from.shutdown().await.unwrap();
        hash.finish()
    };
    let receive = async {
        let mut hash = FixedState::default().build_hasher();
        let mut block = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            to.read_exact(&mut block).await.unwrap();
            hash.write(&block);
        }
        assert!(read_all(&mut to).await.unwrap().is_empty());
        hash.finish()
    };
    let (sent, received) = timeout(LIMIT, async { tokio::join!(send, receive) }).await.expect("it hangs");
    assert_eq!(sent, received);
    (from, to)
}

#[tokio::test]
async fn large_transfers_arrive_whole_in_both_directions() {
    for path in PATHS {
        let rig = Rig::start(path).await;
        let Rig { client, server, near, far, counters, cancel } = rig;
        let (client, server) = transfer(client, server, 64 << 20).await;
        let (server, client) = transfer(server, client, 64 << 20).await;
        let rig = Rig { client, server, near, far, counters: counters.clone(), cancel };
        assert!(rig.end().await.iter().all(Result::is_ok));
        assert_eq!((counters.forward.load(Relaxed), counters.backward.load(Relaxed)), (64 << 20, 64 << 20));
    }
}

#[tokio::test]
async fn a_reset_arrives_as_a_reset() {
    for path in PATHS {
        for by_client in [true, false] {
            let Rig { mut client, mut server, near, far, .. } = Rig::start(path).await;
            client.write_all(b"x").await.unwrap();
            server.read_exact(&mut [0]).await.unwrap();
            let hears = if by_client {
                reset(client);
                read_all(&mut server).await
            } else {
                reset(server);
                read_all(&mut client).await
            };
            assert!(is_reset(hears), "{path:?} {by_client}");
            let near = near.await.unwrap().unwrap_err();
            assert!(near.is_reset(), "{near:?}");
            match (path, by_client) {
                (_, true) => assert!(matches!(near, RelayError::Local(_)), "{near:?}"),
                (Path::Plain, false) => assert!(matches!(near, RelayError::Remote(_)), "{near:?}"),
                (Path::Tunnel | Path::Waypoint, false) => assert!(
                    matches!(near, RelayError::Tunnel(Error::Reset { code: Reason::CONNECT_ERROR, by_peer: true })),
                    "{near:?}"
                ),
            }
            for far in far {
                assert!(far.await.unwrap().unwrap_err().is_reset());
            }
        }
    }
}

#[tokio::test]
async fn a_reset_after_a_half_close_arrives_too() {
    for path in PATHS {
        let Rig { mut client, mut server, near, .. } = Rig::start(path).await;
        client.shutdown().await.unwrap();
        assert!(read_all(&mut server).await.unwrap().is_empty());
        server.write_all(b"half an ans").await.unwrap();
        client.read_exact(&mut [0; 11]).await.unwrap();
        reset(server);
        assert!(is_reset(read_all(&mut client).await), "{path:?}: half an answer must not look complete");
        assert!(near.await.unwrap().is_err());
    }
}

#[tokio::test]
async fn a_stream_that_its_peer_drops_is_no_complete_one() {
    // As ztunnel does when a copy fails: RST_STREAM(CANCEL) without END_STREAM.
    let (mut app, tcp) = tcp_pair().await;
    let (near, mut far) = tunnel_pair(Settings::default()).await;
    let relay = tokio::spawn(async move {
        tcp_to_tunnel(tcp, near, &Arc::<Counters>::default(), &RelayOptions::default(), std::future::pending()).await
    });
    far.write_all(b"half").await.unwrap();
    app.read_exact(&mut [0; 4]).await.unwrap();
    drop(far);
    assert!(is_reset(read_all(&mut app).await));
    let error = relay.await.unwrap().unwrap_err();
    assert!(matches!(error, RelayError::Tunnel(Error::Reset { code: Reason::CANCEL, by_peer: true })), "{error:?}");
}

#[tokio::test]
async fn a_peer_that_ends_and_then_drops_has_closed() {
    let (mut app, tcp) = tcp_pair().await;
    let (near, mut far) = tunnel_pair(Settings::default()).await;
    let relay = tokio::spawn(async move {
        tcp_to_tunnel(tcp, near, &Arc::<Counters>::default(), &RelayOptions::default(), std::future::pending()).await
    });
    far.write_all(b"all of it").await.unwrap();
    far.shutdown().await.unwrap();
    drop(far);
    assert_eq!(read_all(&mut app).await.unwrap(), b"all of it");
    relay.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_relay_resets_both_sides() {
    for path in PATHS {
        let Rig { mut client, mut server, near, cancel, far, .. } = Rig::start(path).await;
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        cancel.unwrap().send(()).unwrap();
        assert!(matches!(near.await.unwrap(), Err(RelayError::Cancelled)));
        assert!(is_reset(read_all(&mut client).await), "{path:?}");
        assert!(is_reset(read_all(&mut server).await), "{path:?}");
        drop(far);
    }
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_silent_connection_ends() {
    for path in PATHS {
        let options = RelayOptions { half_close_timeout: Some(Duration::from_secs(60)), ..RelayOptions::default() };
        let started = Instant::now();
        let Rig { mut client, mut server, near, far, .. } = Rig::with(path, options, Settings::default()).await;
        sleep(Duration::from_secs(1000)).await;
        assert!(!near.is_finished(), "both halves open: no limit");
        client.shutdown().await.unwrap();
        assert!(read_all(&mut server).await.unwrap().is_empty());
        for _ in 0..20 {
            sleep(Duration::from_secs(50)).await;
            server.write_all(b"x").await.unwrap();
            client.read_exact(&mut [0]).await.unwrap();
        }
        let error = near.await.unwrap().unwrap_err();
        assert!(matches!(error, RelayError::HalfClosed(_)), "{error:?}");
        let took = started.elapsed().as_secs();
        assert!((2060..=2200).contains(&took), "{took}");
        drop(far);
    }
}

/// Writes until nothing more is taken. Returns how many bytes were.
async fn write_until_stuck(io: &mut TcpStream, chunk: &[u8], most: usize) -> usize {
    let mut written = 0;
    while written < most {
        match timeout(Duration::from_millis(500), io.write(chunk)).await {
            Ok(len) => written += len.unwrap(),
            Err(_) => break,
        }
    }
    written
}

#[tokio::test]
async fn a_stalled_reader_stalls_its_writer_and_loses_nothing() {
    for path in PATHS {
        let settings = Settings { stream_window: 1 << 20, ..Settings::default() };
        let mut rig = Rig::with(path, RelayOptions::default(), settings).await;
        // Four kernel buffers of up to 6 MiB, a window of 1 MiB, and 256 KiB twice.
        let most = 64 << 20;
        let written = write_until_stuck(&mut rig.client, &[7; 64 << 10], most).await;
        assert!(written < most / 2, "{path:?}: {written} bytes were buffered");
        // The other direction is not affected.
        rig.server.write_all(b"hello").await.unwrap();
        rig.client.read_exact(&mut [0; 5]).await.unwrap();
        let Rig { mut client, mut server, near, .. } = rig;
        assert!(!near.is_finished());
        let rest = tokio::spawn(async move {
            client.write_all(&[8; 1 << 20]).await.unwrap();
            client.shutdown().await.unwrap();
            client
        });
        let got = read_all(&mut server).await.unwrap();
        assert_eq!(got.len(), written + (1 << 20));
        assert!(got[..written].iter().all(|b| *b == 7) && got[written..].iter().all(|b| *b == 8));
        drop((rest.await.unwrap(), server));
        near.await.unwrap().unwrap();
    }
}

/// Nobody reads what the program sent before, so only the reset itself tells that it is gone.
#[tokio::test]
async fn a_reset_behind_a_stalled_reader_arrives() {
    let arrives = |path, by_client| async move {
        let settings = Settings { stream_window: 1 << 20, ..Settings::default() };
        let Rig { client, server, near, far, .. } = Rig::with(path, RelayOptions::default(), settings).await;
        let (mut sender, mut reader) = if by_client { (client, server) } else { (server, client) };
        write_until_stuck(&mut sender, &[7; 64 << 10], 64 << 20).await;
        reset(sender);
        let near = timeout(LIMIT, near).await.expect("the relay outlives its program").unwrap().unwrap_err();
        assert!(near.is_reset(), "{path:?} {by_client}: {near:?}");
        for far in far {
            let far = timeout(LIMIT, far).await.expect("the peer's relay outlives the program").unwrap();
            assert!(far.unwrap_err().is_reset());
        }
        assert!(is_reset(read_all(&mut reader).await), "{path:?} {by_client}");
    };
    let all = PATHS.iter().flat_map(|path| [arrives(*path, true), arrives(*path, false)]);
    let all: Vec<_> = all.map(tokio::spawn).collect();
    for one in all {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn what_has_ended_behind_a_stalled_reader_is_delivered_whatever_comes_then() {
    let is_delivered = |path, reader_ends| async move {
        let settings = Settings { stream_window: 1 << 20, ..Settings::default() };
        let Rig { mut client, mut server, near, far, .. } = Rig::with(path, RelayOptions::default(), settings).await;
        // The less the reader's kernel takes, the more stays with the relay.
        SockRef::from(&client).set_send_buffer_size(4 << 10).unwrap();
        let written = write_until_stuck(&mut client, &[7; 64 << 10], 64 << 20).await;
        client.shutdown().await.unwrap();
        // Wait until the other kernel has acknowledged everything, because a reset discards the rest. On a busy machine an
        // acknowledgement takes its time, and whoever reads on meanwhile has nothing left that could be stalled.
        let mut got = 0;
        let mut buffer = vec![0; 64 << 10];
        while unacknowledged(&client) {
            if let Ok(read) = timeout(Duration::from_millis(10), server.read(&mut buffer)).await {
                got += read.unwrap();
            }
            let asked = Instant::now();
            while unacknowledged(&client) && asked.elapsed() < Duration::from_millis(200) {
                tokio::task::yield_now().await;
            }
        }
        // How much the kernels take beforehand differs between machines.
        assert!(got + (512 << 10) < written, "{path:?}: {got} of {written} bytes were read, nothing is stalled");
        let (own, relays) = (client.local_addr().unwrap().port(), client.peer_addr().unwrap().port());
        let is_relays = |socket: &Vec<String>| ends_with_port(&socket[1], relays) && ends_with_port(&socket[2], own);
        reset(client);
        if reader_ends {
            // Nobody is left who could be told. Before the end has arrived, a reset would meet a connection that both sides
            // have ended, for which the kernel reports the same error as for lost bytes.
            while sockets().iter().any(is_relays) {
                tokio::task::yield_now().await;
            }
            server.shutdown().await.unwrap();
        }
        // The relay notices, and has nothing to do except to write what is left.
        sleep(reset::PATIENCE * 3 / 2).await;
        let rest = match read_all(&mut server).await {
            Ok(rest) => rest,
            Err(error) => {
                let mut relays = Vec::new();
                for relay in std::iter::once(near).chain(far) {
                    relays.push(timeout(LIMIT, relay).await);
                }
                panic!("{path:?} {reader_ends}: {error:?}; the relays, from the client's: {relays:?}");
            }
        };
        assert_eq!(got + rest.len(), written, "{path:?} {reader_ends}");
        drop(server);
        timeout(LIMIT, near).await.unwrap().unwrap().unwrap();
    };
    let all = PATHS.iter().flat_map(|path| [is_delivered(*path, true), is_delivered(*path, false)]);
    let all: Vec<_> = all.map(tokio::spawn).collect();
    for one in all {
        one.await.unwrap();
    }
}

/// The kernel's list of sockets, by columns: local and remote address are the second and third.
fn sockets() -> Vec<Vec<String>> {
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let columns = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    sockets.lines().skip(1).map(columns).collect()
}

fn ends_with_port(address: &str, port: u16) -> bool {
    address.ends_with(&format!(":{port:04X}"))
}

/// Whether the other kernel has not yet acknowledged something that was sent, including the end.
fn unacknowledged(tcp: &TcpStream) -> bool {
    // By both ends: the kernel gives one port to several connections that lead to different places, and one of them may be over.
    let (own, peers) = (tcp.local_addr().unwrap().port(), tcp.peer_addr().unwrap().port());
    let is_it = |socket: &Vec<String>| ends_with_port(&socket[1], own) && ends_with_port(&socket[2], peers);
    let socket = sockets().into_iter().find(is_it).unwrap();
    !socket[4].starts_with("00000000:")
}

#[tokio::test]
async fn tiny_frames_to_a_stalled_reader_end_no_connection() {
    // Half the default connection window is what h2 lets small frames cost, 255 bytes each:
    // 200 000 of them would exhaust it six times over.
    const FRAMES: usize = 200_000;
    let (mut app, tcp) = tcp_pair().await;
    // A small buffer, so that the kernel does not take everything.
    SockRef::from(&tcp).set_send_buffer_size(4 << 10).unwrap();
    SockRef::from(&app).set_recv_buffer_size(4 << 10).unwrap();
    let (near, mut far) = tunnel_pair(Settings::default()).await;
    let relay = tokio::spawn(async move {
        tcp_to_tunnel(tcp, near, &Arc::<Counters>::default(), &RelayOptions::default(), std::future::pending()).await
    });
    let writer = tokio::spawn(async move {
        for i in 0..FRAMES {
            far.write_all(&[i as u8]).await.unwrap();
            if i % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        far.shutdown().await.unwrap();
        far
    });
    let far = timeout(LIMIT, writer).await.expect("it hangs").unwrap();
    let got = read_all(&mut app).await.unwrap();
    assert_eq!(got.len(), FRAMES);
    assert!(got.iter().enumerate().all(|(i, b)| *b == i as u8));
    drop(app);
    timeout(LIMIT, relay).await.unwrap().unwrap().unwrap();
    drop(far);
}

#[tokio::test]
async fn a_lost_tunnel_resets_the_program() {
    let (mut app, tcp) = tcp_pair().await;
    let (near, far) = duplex(64 << 10);
    let server = tokio::spawn(async move {
        let settings = Settings::default();
        serve(far, &settings, std::future::pending(), |inbound| {
            std::mem::forget(inbound.accept(HeaderMap::new()));
        })
        .await
    });
    let pool: Pool<(), ()> = Pool::new(Settings::default());
    let mut near = Some(near);
    let (stream, _) = pool.open(&(), || std::future::ready(near.take().ok_or(())), request()).await.unwrap();
    let relay = tokio::spawn(async move {
        tcp_to_tunnel(tcp, stream, &Arc::<Counters>::default(), &RelayOptions::default(), std::future::pending()).await
    });
    app.write_all(b"x").await.unwrap();
    server.abort();
    assert!(is_reset(read_all(&mut app).await));
    let error = relay.await.unwrap().unwrap_err();
    assert!(matches!(error, RelayError::Tunnel(Error::Lost(_))), "{error:?}");
}

#[tokio::test]
async fn an_idle_relay_is_small() {
    let (_app, tcp) = tcp_pair().await;
    let (near, _far) = tunnel_pair(Settings::default()).await;
    let (counters, options) = (Arc::<Counters>::default(), RelayOptions::default());
    let relay = tcp_to_tunnel(tcp, near, &counters, &options, std::future::pending());
    assert!(size_of_val(&relay) <= 1024, "{}", size_of_val(&relay));
    let ((a, _a), (b, _b)) = (tcp_pair().await, tcp_pair().await);
    let relay = tcp_to_tcp(a, b, &*counters, &options, std::future::pending());
    assert!(size_of_val(&relay) <= 1024, "{}", size_of_val(&relay));
    let ((a, _a), (b, _b)) = (tunnel_pair(Settings::default()).await, tunnel_pair(Settings::default()).await);
    let relay = tunnel_to_tunnel(a, b, &*counters, &options, std::future::pending());
    assert!(size_of_val(&relay) <= 1024, "{}", size_of_val(&relay));
}

/// Both ends of two tunnels, and the relay between them.
async fn between_tunnels(
    cancel: impl Future<Output = ()> + Send + 'static,
) -> (TunnelStream, TunnelStream, JoinHandle<Result<(), RelayError>>) {
    let ((first, from), (to, last)) = (tunnel_pair(Settings::default()).await, tunnel_pair(Settings::default()).await);
    let relay = async move { tunnel_to_tunnel(from, to, &Counters::default(), &RelayOptions::default(), cancel).await };
    (first, last, tokio::spawn(relay))
}

#[tokio::test]
async fn what_ends_one_tunnel_is_told_the_other() {
    let reason = async |mut stream: TunnelStream| match timeout(LIMIT, stream.chunk()).await.expect("it hangs") {
        Err(Error::Reset { code, by_peer: true }) => code,
        other => panic!("{other:?}"),
    };
    for code in [Reason::CONNECT_ERROR, Reason::CANCEL, Reason::INTERNAL_ERROR] {
        for by_first in [true, false] {
            let (first, last, relay) = between_tunnels(std::future::pending()).await;
            let (mut one, other) = if by_first { (first, last) } else { (last, first) };
            one.reset(code);
            assert_eq!(reason(other).await, code);
            let error = relay.await.unwrap().unwrap_err();
            assert!(matches!(error, RelayError::Tunnel(Error::Reset { by_peer: true, .. })), "{error:?}");
        }
    }
    let (cancel, cancelled) = oneshot::channel();
    let (first, last, relay) = between_tunnels(async { cancelled.await.unwrap() }).await;
    cancel.send(()).unwrap();
    assert_eq!((reason(first).await, reason(last).await), (Reason::CANCEL, Reason::CANCEL));
    assert!(matches!(relay.await.unwrap(), Err(RelayError::Cancelled)));
}

/// Sends as much as is taken, ends its half, and drops the stream. Returns how many bytes it sent.
async fn say_and_leave(mut stream: TunnelStream) -> usize {
    let mut said = 0;
    while let Ok(written) = timeout(Duration::from_millis(200), stream.write(&[7; 64 << 10])).await {
        said += written.unwrap();
    }
    stream.shutdown().await.unwrap();
    // A reset would overtake what the library has not sent.
    sleep(Duration::from_millis(200)).await;
    stream.reset(Reason::CANCEL);
    said
}

/// A complete stream is delivered even if its peer is gone before the last of it is read.
#[tokio::test]
async fn what_was_complete_is_delivered_though_its_peer_has_gone() {
    let (first, mut last, relay) = between_tunnels(std::future::pending()).await;
    let said = timeout(LIMIT, say_and_leave(first)).await.expect("it hangs");
    assert_eq!(read_all(&mut last).await.unwrap().len(), said);
    drop(last);
    assert!(timeout(LIMIT, relay).await.expect("it hangs").unwrap().is_ok());

    let (mut app, tcp) = tcp_pair().await;
    let (near, far) = tunnel_pair(Settings::default()).await;
    let relay = tokio::spawn(async move {
        tcp_to_tunnel(tcp, near, &Arc::<Counters>::default(), &RelayOptions::default(), std::future::pending()).await
    });
    let said = timeout(LIMIT, say_and_leave(far)).await.expect("it hangs");
    assert_eq!(read_all(&mut app).await.unwrap().len(), said);
    assert!(timeout(LIMIT, relay).await.expect("it hangs").unwrap().is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Client(usize),
    Server(usize),
    ClientEnds,
    ServerEnds,
    Pause,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1usize..200_000).prop_map(Step::Client),
        5 => (1usize..200_000).prop_map(Step::Server),
        3 => (1usize..50).prop_map(Step::Client),
        3 => (1usize..50).prop_map(Step::Server),
        1 => Just(Step::ClientEnds),
        1 => Just(Step::ServerEnds),
        3 => Just(Step::Pause),
    ]
}

/// Plays one side's steps. Returns what it sent.
async fn play(mut io: tokio::net::tcp::OwnedWriteHalf, steps: Vec<Option<usize>>, seed: u64) -> Vec<u8> {
    let mut sent = Vec::new();
    let mut pattern = Pattern(seed);
    for step in steps {
        let Some(len) = step else {
            tokio::task::yield_now().await;
            continue;
        };
        let mut block = vec![0; len];
        pattern.fill(&mut block);
        io.write_all(&block).await.unwrap();
        sent.extend(block);
    }
    io.shutdown().await.unwrap();
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_order_everything_arrives(
        steps in prop::collection::vec(step(), 0..30),
        path in prop::sample::select(&PATHS),
    ) {
        let (mut client_steps, mut server_steps) = (Vec::new(), Vec::new());
        let (mut client_open, mut server_open) = (true, true);
        for step in steps {
            match step {
                Step::Client(len) if client_open => client_steps.push(Some(len)),
                Step::Server(len) if server_open => server_steps.push(Some(len)),
                Step::ClientEnds => client_open = false,
                Step::ServerEnds => server_open = false,
                _ => {
                    client_steps.push(None);
                    server_steps.push(None);
                }
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let settings = Settings { stream_window: 100_000, connection_window: 150_000, ..Settings::default() };
            let Rig { client, server, near, far, counters, cancel } =
                Rig::with(path, RelayOptions::default(), settings).await;
            let ((mut client_read, client_write), (mut server_read, server_write)) =
                (client.into_split(), server.into_split());
            let (from_client, from_server, at_client, at_server) = timeout(LIMIT, async {
                tokio::join!(
                    play(client_write, client_steps, 1),
                    play(server_write, server_steps, 2),
                    read_all(&mut client_read),
                    read_all(&mut server_read),
                )
            })
            .await
            .expect("it hangs");
            assert!(at_server.unwrap() == from_client && at_client.unwrap() == from_server);
            near.await.unwrap().unwrap();
            for far in far {
                far.await.unwrap().unwrap();
            }
            assert_eq!(counters.forward.load(Relaxed), from_client.len() as u64);
            assert_eq!(counters.backward.load(Relaxed), from_server.len() as u64);
            drop(cancel);
        });
    }
}
