use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::entries::{FEW, SPREAD_PAUSE};
use super::*;
use crate::test_support::{Draining, Farm, request, say, settle};

type TestPool = Pool<&'static str, &'static str>;

async fn open(pool: &TestPool, farm: &Farm) -> TunnelStream {
    pool.open(&"a", || std::future::ready(Ok(farm.dial())), request()).await.unwrap().0
}

fn pool() -> TestPool {
    Pool::new(Settings::default())
}

#[tokio::test]
async fn one_dial_serves_all_who_wait() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let gate = Arc::new(Semaphore::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let (pool, farm, gate) = (pool.clone(), farm.clone(), gate.clone());
        tasks.spawn(async move {
            let dial = || async {
                gate.acquire().await.unwrap().forget();
                Ok(farm.dial())
            };
            let (mut stream, head) = pool.open(&"a", dial, request()).await.unwrap();
            assert_eq!(head.status, StatusCode::OK);
            say(&mut stream, "hello").await;
        });
    }
    settle().await;
    assert_eq!(pool.stats(), PoolStats { connections: 0, streams: 0, dialling: 1 });
    gate.add_permits(50);
    tasks.join_all().await;
    assert_eq!(farm.dials(), 1);
    settle().await;
    assert_eq!(pool.stats(), PoolStats { connections: 1, streams: 0, dialling: 0 });
}

#[tokio::test]
async fn connections_are_filled_and_used_again_when_streams_end() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut streams = Vec::new();
    for _ in 0..250 {
        streams.push(open(&pool, &farm).await);
    }
    assert_eq!(farm.dials(), 3);
    assert_eq!(pool.stats(), PoolStats { connections: 3, streams: 250, dialling: 0 });
    for stream in &mut streams {
        say(stream, "x").await;
    }
    streams.truncate(120);
    settle().await;
    for _ in 0..130 {
        streams.push(open(&pool, &farm).await);
    }
    assert_eq!(farm.dials(), 3, "full connections return to use");
    for stream in &mut streams {
        say(stream, "y").await;
    }
}

fn spreading_pool() -> TestPool {
    Pool::new(Settings { spread: 2, ..Settings::default() })
}

/// As many streams as share one connection before they are spread.
async fn few(pool: &TestPool, farm: &Farm) -> Vec<TunnelStream> {
    let mut streams = Vec::new();
    for _ in 0..FEW {
        streams.push(open(pool, farm).await);
    }
    streams
}

#[tokio::test]
async fn a_few_streams_share_a_connection_and_more_are_spread() {
    let (pool, farm) = (spreading_pool(), Farm::new(Settings::default()));
    let mut streams = few(&pool, &farm).await;
    assert_eq!(farm.dials(), 1);
    for _ in FEW..200 {
        streams.push(open(&pool, &farm).await);
    }
    assert_eq!(pool.stats(), PoolStats { connections: 2, streams: 200, dialling: 0 });
    // Both connections are full. From here on, streams are placed as without spreading.
    streams.push(open(&pool, &farm).await);
    assert_eq!(farm.dials(), 3);
    for stream in &mut streams {
        say(stream, "x").await;
    }
}

#[tokio::test]
async fn a_burst_is_spread_evenly() {
    let (pool, farm) = (spreading_pool(), Farm::new(Settings::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (pool, farm) = (pool.clone(), farm.clone());
        tasks.spawn(async move { open(&pool, &farm).await });
    }
    let _streams = tasks.join_all().await;
    assert_eq!(farm.dials(), 2);
    let loads: Vec<_> = pool.shared.keys.lock()["a"].connections.iter().map(|c| c.active()).collect();
    assert!(loads.iter().all(|load| (24..=40).contains(load)), "{loads:?}");
}

#[tokio::test]
async fn a_connection_that_can_not_be_had_for_spreading_costs_nobody_a_stream() {
    let (pool, farm) = (spreading_pool(), Farm::new(Settings::default()));
    let mut streams = few(&pool, &farm).await;
    let gate = Arc::new(Semaphore::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (pool, gate) = (pool.clone(), gate.clone());
        tasks.spawn(async move {
            let dial = || async {
                gate.acquire().await.unwrap().forget();
                Err::<DuplexStream, _>("no route")
            };
            pool.open(&"a", dial, request()).await.unwrap().0
        });
    }
    settle().await;
    assert_eq!(pool.stats().dialling, 1);
    assert!(pool.stats().streams > FEW, "who need not wait does not");
    gate.add_permits(20);
    streams.extend(tasks.join_all().await);
    for stream in &mut streams {
        say(stream, "x").await;
    }
    assert_eq!((pool.stats().streams, pool.stats().connections, farm.dials()), (FEW + 20, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_long_for_a_peer_that_takes_no_further_connection() {
    let (pool, farm) = (spreading_pool(), Farm::new(Settings::default()));
    let mut streams = few(&pool, &farm).await;
    let dials = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let (pool, dials) = (pool.clone(), dials.clone());
        tasks.spawn(async move {
            let dial = || {
                dials.fetch_add(1, Relaxed);
                std::future::pending::<Result<DuplexStream, _>>()
            };
            pool.open(&"a", dial, request()).await.unwrap().0
        });
    }
    streams.extend(tasks.join_all().await);
    assert!(began.elapsed() < 2 * SPREAD_WAIT, "{:?}", began.elapsed());
    for _ in 0..20 {
        streams.push(open(&pool, &farm).await);
    }
    assert_eq!((dials.load(Relaxed), farm.dials()), (1, 1), "it is left at one attempt");
    tokio::time::advance(2 * SPREAD_PAUSE).await;
    streams.push(open(&pool, &farm).await);
    assert_eq!(farm.dials(), 2, "for a while");
}

/// A peer that accepts a connection, sends no HTTP/2, and closes after `lasts`.
fn mute(lasts: Duration) -> DuplexStream {
    let (near, mut far) = duplex(64 << 10);
    tokio::spawn(async move {
        let _ = tokio::time::timeout(lasts, tokio::io::copy(&mut far, &mut tokio::io::sink())).await;
    });
    near
}

#[tokio::test(start_paused = true)]
async fn no_stream_is_bet_on_a_connection_whose_peer_has_not_spoken() {
    for lasts in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(3600)] {
        let (pool, farm) = (spreading_pool(), Farm::new(Settings::default()));
        let mut streams = few(&pool, &farm).await;
        let began = Instant::now();
        let mut dials = 0;
        for _ in 0..40 {
            let dial = || {
                dials += 1;
                std::future::ready(Ok(mute(lasts)))
            };
            streams.push(pool.open(&"a", dial, request()).await.unwrap().0);
        }
        assert!(began.elapsed() < 2 * SPREAD_WAIT, "{:?}", began.elapsed());
        assert_eq!((dials, farm.dials()), (1, 1));
        for stream in &mut streams {
            say(stream, "x").await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_further_away_a_peer_the_fewer_attempts_to_spread() {
    let (pool, farm) = (spreading_pool(), Farm::new(Settings::default()));
    let mut streams = few(&pool, &farm).await;
    let dials = AtomicUsize::new(0);
    for _ in 0..80 {
        let dial = || async {
            dials.fetch_add(1, Relaxed);
            tokio::time::sleep(2 * SPREAD_WAIT).await;
            Ok(farm.dial())
        };
        streams.push(pool.open(&"a", dial, request()).await.unwrap().0);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(dials.load(Relaxed), 4, "at 0, 10, 30 and 70 seconds");
}

#[tokio::test]
async fn a_low_limit_of_the_peer_is_honoured() {
    let farm = Farm::new(Settings { max_concurrent_streams: 1, ..Settings::default() });
    let pool = pool();
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let (pool, farm) = (pool.clone(), farm.clone());
        tasks.spawn(async move { open(&pool, &farm).await });
    }
    // All at once, so that some streams learn of the limit only from a refusal.
    let mut streams = tasks.join_all().await;
    for stream in &mut streams {
        say(stream, "hello").await;
    }
    assert_eq!(pool.stats().streams, 5);
    assert_eq!(farm.dials(), 5);
    drop(streams.pop());
    settle().await;
    say(&mut open(&pool, &farm).await, "again").await;
    assert_eq!(farm.dials(), 5);
}

#[tokio::test]
async fn a_connection_that_goes_away_gets_no_new_streams_and_loses_no_old_ones() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut old = open(&pool, &farm).await;
    say(&mut old, "before").await;
    farm.drain(0, Instant::now() + Duration::from_secs(3600));
    settle().await;
    let mut new = open(&pool, &farm).await;
    assert_eq!(farm.dials(), 2);
    say(&mut new, "new").await;
    say(&mut old, "after").await;
    drop(old);
    let served = farm.served(0).await;
    assert!(served.end.is_ok() && served.requests == 1, "{served:?}");
    assert_eq!(pool.stats().connections, 1);
}

/// Dials peers of which the first `leaving` say at once that they take no more requests.
fn dial_leaving(farm: &Farm, leaving: usize) -> DuplexStream {
    let io = farm.dial();
    if farm.dials() <= leaving {
        farm.drain(farm.dials() - 1, Instant::now() + Duration::from_secs(3600));
    }
    io
}

#[tokio::test]
async fn a_peer_that_leaves_as_soon_as_it_is_connected_to_costs_no_tunnel() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let dial = || std::future::ready(Ok(dial_leaving(&farm, DEPARTURES)));
    let mut stream = pool.open(&"a", dial, request()).await.unwrap().0;
    say(&mut stream, "hello").await;
    assert_eq!(farm.dials(), DEPARTURES + 1);
    assert_eq!(pool.stats().connections, 1);
}

#[tokio::test]
async fn a_peer_that_always_leaves_is_reported() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let dial = || std::future::ready(Ok(dial_leaving(&farm, usize::MAX)));
    let error = pool.open(&"a", dial, request()).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Tunnel(Error::GoAway { by_peer: true, .. })), "{error:?}");
    assert_eq!(farm.dials(), DEPARTURES + 1);
}

#[tokio::test(start_paused = true)]
async fn past_its_time_a_connection_gets_no_new_streams_and_loses_no_old_ones() {
    const LIFE: Duration = Duration::from_secs(100);
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let dial = || std::future::ready(Ok(Draining { io: farm.dial(), at: Instant::now() + LIFE }));
    let open = async || pool.open(&"a", dial, request()).await.unwrap().0;
    let mut old = open().await;
    tokio::time::sleep(LIFE - Duration::from_secs(1)).await;
    let mut beside = open().await;
    assert_eq!(farm.dials(), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut new = open().await;
    assert_eq!(farm.dials(), 2);
    for stream in [&mut old, &mut beside, &mut new] {
        say(stream, "hello").await;
    }
    tokio::time::sleep(10 * LIFE).await;
    say(&mut old, "hello").await;
    drop((old, beside));
    let served = farm.served(0).await;
    assert!(served.end.is_ok() && served.requests == 2, "{served:?}");
}

#[tokio::test]
async fn a_failed_dial_fails_all_who_wait_and_nobody_after() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let gate = Arc::new(Semaphore::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let (pool, gate) = (pool.clone(), gate.clone());
        tasks.spawn(async move {
            let dial = || async {
                gate.acquire().await.unwrap().forget();
                Err::<DuplexStream, _>("no route")
            };
            pool.open(&"a", dial, request()).await.map(drop)
        });
    }
    settle().await;
    gate.add_permits(1);
    for result in tasks.join_all().await {
        assert!(matches!(result, Err(OpenError::Dial("no route"))), "{result:?}");
    }
    assert_eq!(pool.stats(), PoolStats::default());
    say(&mut open(&pool, &farm).await, "hello").await;
}

#[tokio::test]
async fn a_waiter_takes_over_when_the_dialler_gives_up() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let hang = || std::future::pending::<Result<DuplexStream, _>>();
    let dialler = tokio::spawn({
        let pool = pool.clone();
        async move { pool.open(&"a", hang, request()).await.map(drop) }
    });
    settle().await;
    let waiter = tokio::spawn({
        let (pool, farm) = (pool.clone(), farm.clone());
        async move { open(&pool, &farm).await }
    });
    settle().await;
    assert!(!waiter.is_finished());
    dialler.abort();
    say(&mut waiter.await.unwrap(), "hello").await;
    assert_eq!(pool.stats(), PoolStats { connections: 1, streams: 0, dialling: 0 });
}

#[tokio::test]
async fn a_hanging_dial_holds_nobody_else_up() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let hanging = tokio::spawn({
        let pool = pool.clone();
        let hang = || std::future::pending::<Result<DuplexStream, _>>();
        async move { pool.open(&"b", hang, request()).await.map(drop) }
    });
    settle().await;
    say(&mut open(&pool, &farm).await, "hello").await;
    hanging.abort();
    let _ = hanging.await;
    assert_eq!(pool.stats().dialling, 0);
}

#[tokio::test]
async fn evicted_connections_keep_their_streams_only() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut old = open(&pool, &farm).await;
    pool.evict(|key| *key == "b");
    drop(open(&pool, &farm).await);
    assert_eq!(farm.dials(), 1);
    pool.evict(|key| *key == "a");
    assert_eq!(pool.stats(), PoolStats::default());
    let _new = open(&pool, &farm).await;
    assert_eq!(farm.dials(), 2);
    say(&mut old, "still here").await;
    drop(old);
    assert!(farm.served(0).await.end.is_ok(), "closed with its last stream");
}

#[tokio::test]
async fn closing_waits_until_the_last_byte_has_left() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut stream = open(&pool, &farm).await;
    say(&mut stream, "hello").await;
    let mut closing = std::pin::pin!(pool.close());
    tokio::select! {
        biased;
        () = &mut closing => panic!("closed while a tunnel is open"),
        () = settle() => {}
    }
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"bye");
    drop(stream);
    closing.await;
    assert!(farm.served(0).await.end.is_ok());
}

#[tokio::test]
async fn a_dial_under_way_when_evicted_is_not_shared() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let gate = Arc::new(Semaphore::new(0));
    let dialler = tokio::spawn({
        let (pool, farm, gate) = (pool.clone(), farm.clone(), gate.clone());
        async move {
            let dial = || async {
                gate.acquire().await.unwrap().forget();
                Ok(farm.dial())
            };
            pool.open(&"a", dial, request()).await.unwrap().0
        }
    });
    settle().await;
    pool.evict(|_| true);
    let mut other = open(&pool, &farm).await;
    gate.add_permits(1);
    let mut stale = dialler.await.unwrap();
    assert_eq!(pool.stats(), PoolStats { connections: 1, streams: 1, dialling: 0 });
    say(&mut stale, "stale").await;
    say(&mut other, "other").await;
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_released() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut stream = open(&pool, &farm).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    say(&mut stream, "a stream keeps it").await;
    drop(stream);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(pool.stats().connections, 1);
    drop(open(&pool, &farm).await);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(pool.stats().connections, 1, "use makes it young again");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pool.stats(), PoolStats::default());
    let served = farm.served(0).await;
    assert!(served.end.is_ok() && served.requests == 2, "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn of_idle_connections_to_one_peer_one_is_kept_for_long() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut streams = Vec::new();
    for _ in 0..250 {
        streams.push(open(&pool, &farm).await);
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    // The third connection carries no stream, but the others are full.
    streams.truncate(200);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(pool.stats(), PoolStats { connections: 3, streams: 200, dialling: 0 });
    streams.clear();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(pool.stats().connections >= 2, "used a moment ago: {:?}", pool.stats());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pool.stats(), PoolStats { connections: 1, streams: 0, dialling: 0 });
    tokio::time::sleep(Duration::from_secs(18)).await;
    assert_eq!(pool.stats().connections, 1, "ready for the next stream");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pool.stats(), PoolStats::default(), "it was full once");
    assert_eq!(farm.dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_that_carried_half_of_its_streams_is_kept_half_as_long() {
    for (streams, kept) in [(49, 60), (50, 30)] {
        let (pool, farm) = (pool(), Farm::new(Settings::default()));
        let mut open_at_once = Vec::new();
        for _ in 0..streams {
            open_at_once.push(open(&pool, &farm).await);
        }
        drop(open_at_once);
        tokio::time::sleep(Duration::from_secs(kept - 1)).await;
        assert_eq!(pool.stats().connections, 1, "{streams} streams");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(pool.stats(), PoolStats::default(), "{streams} streams");
    }
}

#[tokio::test]
async fn a_kept_connection_that_turns_out_dead_is_replaced() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    // The peer's process dies when the second request arrives.
    let (kill, killed) = tokio::sync::oneshot::channel();
    let mut kill = Some(kill);
    let mut first = Some(farm.dial_to({
        let mut requests = 0;
        move |inbound| {
            requests += 1;
            if requests == 1 {
                tokio::spawn(crate::test_support::echo(inbound));
            } else {
                let _ = kill.take().map(|kill| kill.send(()));
                std::mem::forget(inbound);
            }
        }
    }));
    let task = farm.peers.lock()[0].task.abort_handle();
    tokio::spawn(async move {
        let _ = killed.await;
        task.abort();
    });
    let mut dial = || std::future::ready(Ok(first.take().unwrap_or_else(|| farm.dial())));
    let (mut old, _) = pool.open(&"a", &mut dial, request()).await.unwrap();
    say(&mut old, "hello").await;
    let (mut new, _) = pool.open(&"a", &mut dial, request()).await.unwrap();
    say(&mut new, "hello").await;
    assert_eq!(farm.dials(), 2);
    let mut rest = Vec::new();
    assert!(old.read_to_end(&mut rest).await.is_err(), "a cut stream is no complete one");
    assert_eq!(pool.stats().connections, 1);
}

#[tokio::test]
async fn a_new_connection_that_dies_is_reported() {
    let pool = pool();
    let mut dials = 0;
    let dial = || {
        dials += 1;
        let (near, far) = duplex(1024);
        drop(far);
        std::future::ready(Ok::<_, &str>(near))
    };
    let error = pool.open(&"a", dial, request()).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Tunnel(Error::Lost(_))), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(dials, 1);
    assert_eq!(pool.stats(), PoolStats::default());
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_noticed() {
    let pool = pool();
    let (near, far) = duplex(1 << 20);
    let mut near = Some(near);
    let started = Instant::now();
    let dial = || std::future::ready(near.take().ok_or("gone"));
    let error = pool.open(&"a", dial, request()).await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Tunnel(Error::Lost(_))), "{error:?}");
    assert!((5..10).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert_eq!(pool.stats(), PoolStats::default());
    drop(far);
}

#[tokio::test]
async fn refusals_carry_the_peers_words() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let dial = || {
        std::future::ready(Ok(farm.dial_to(|inbound| {
            let mut headers = HeaderMap::new();
            headers.insert("reason", "policy".parse().unwrap());
            inbound.refuse(StatusCode::UNAUTHORIZED, headers);
        })))
    };
    let error = pool.open(&"a", dial, request()).await.map(drop).unwrap_err();
    let OpenError::Refused { status, headers } = &error else { panic!("{error:?}") };
    assert_eq!(*status, StatusCode::UNAUTHORIZED);
    assert_eq!(headers["reason"], "policy");
    assert!(!error.is_retryable());
    settle().await;
    assert_eq!(pool.stats(), PoolStats { connections: 1, streams: 0, dialling: 0 });
}

/// A peer that serves the first `taken` requests of its connection and refuses the others unprocessed.
fn dial_tiring(farm: &Farm, taken: usize) -> DuplexStream {
    let mut requests = 0;
    farm.dial_to(move |inbound| {
        requests += 1;
        if requests <= taken {
            tokio::spawn(crate::test_support::echo(inbound));
        } else {
            inbound.turn_away();
        }
    })
}

#[tokio::test]
async fn a_connection_that_takes_no_more_requests_is_replaced_and_keeps_its_streams() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let mut old = pool.open(&"a", || std::future::ready(Ok(dial_tiring(&farm, 1))), request()).await.unwrap().0;
    let mut new = open(&pool, &farm).await;
    say(&mut new, "new").await;
    say(&mut open(&pool, &farm).await, "next").await;
    assert_eq!((farm.dials(), pool.stats().connections), (2, 1), "the one is dialled once, the other out of use");
    say(&mut old, "old").await;
    drop(old);
    let served = farm.served(0).await;
    assert!(served.end.is_ok() && served.requests == 2 + REFUSALS as u64, "{served:?}");
}

#[tokio::test]
async fn a_peer_that_takes_no_request_at_all_is_dialled_once_more_only() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let error = pool.open(&"a", || std::future::ready(Ok(dial_tiring(&farm, 0))), request()).await.map(drop);
    assert!(matches!(&error, Err(OpenError::Tunnel(error)) if error.is_refused_stream()), "{error:?}");
    assert_eq!(farm.dials(), 2);
}

#[tokio::test]
async fn authorities_are_checked() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    for good in ["10.0.0.1:80", "[fd00::1]:80", "web.shop.svc.cluster.local:80"] {
        let request = ConnectRequest { authority: good.to_owned(), headers: HeaderMap::new() };
        pool.open(&"a", || std::future::ready(Ok(farm.dial())), request).await.unwrap();
    }
    for wrong in ["", "10.0.0.1", "http://10.0.0.1:80", "a b:80", "/", "[::1:80"] {
        let request = ConnectRequest { authority: wrong.to_owned(), headers: HeaderMap::new() };
        let error = pool.open(&"a", || std::future::ready(Ok(farm.dial())), request).await.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Tunnel(Error::InvalidAuthority(_))), "{wrong}: {error:?}");
    }
}

#[tokio::test]
async fn pools_work_across_threads() {
    fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<Pool<String, Infallible>>();
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let (near, mut far) = duplex(64);
    let runtime = std::thread::spawn({
        let (pool, farm) = (pool.clone(), farm.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for _ in 0..300 {
                    let (pool, farm) = (pool.clone(), farm.clone());
                    tasks.spawn(async move { say(&mut open(&pool, &farm).await, "hello").await });
                }
                tasks.join_all().await;
            });
            drop(near);
        }
    });
    let _ = far.read(&mut [0]).await;
    runtime.join().unwrap();
    assert!((1..=3).contains(&farm.dials()), "{}", farm.dials());
    assert_eq!(pool.stats().streams, 0);
}

#[tokio::test]
async fn opening_costs_little() {
    let (pool, farm) = (pool(), Farm::new(Settings::default()));
    let future = pool.open(&"a", || std::future::ready(Ok(farm.dial())), request());
    let size = size_of_val(&future);
    assert!(size <= 2048, "{size}");
    let (mut stream, _) = future.await.unwrap();
    assert!(size_of::<TunnelStream>() <= 160, "{}", size_of::<TunnelStream>());
    stream.shutdown().await.unwrap();
}
