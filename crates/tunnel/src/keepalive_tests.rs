use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::time::sleep;

use super::*;
use crate::Transport;
use crate::server::InboundConnect;
use crate::test_support::{Farm, echo, request, say, settle};
use crate::{Acknowledged, Error, OpenError, Pool, TunnelStream};

/// The longest that a caller may wait for a peer that is gone.
const FOUND: Duration = Duration::from_secs(10);

/// A transport that can be cut like a network: neither side is told.
struct Line {
    io: DuplexStream,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    cut: AtomicBool,
    /// Nothing comes from the peer for now. What is sent arrives.
    silent: AtomicBool,
    polls: AtomicUsize,
    /// Bytes that the peer's system acknowledges each time it is asked, although the peer's proxy sends nothing.
    acknowledges: AtomicU64,
    acknowledged: AtomicU64,
}

impl Transport for Line {
    fn acknowledged(&self) -> Option<Acknowledged> {
        let step = self.state.acknowledges.load(Relaxed);
        let bytes = self.state.acknowledged.fetch_add(step, Relaxed) + step;
        Some(Acknowledged { bytes, more_is_on_its_way: true })
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.state.polls.fetch_add(1, Relaxed);
        let silent = self.state.cut.load(Relaxed) || self.state.silent.load(Relaxed);
        if silent { Poll::Pending } else { Pin::new(&mut self.io).poll_read(cx, buf) }
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.state.polls.fetch_add(1, Relaxed);
        if self.state.cut.load(Relaxed) {
            Poll::Ready(Ok(buf.len()))
        } else {
            Pin::new(&mut self.io).poll_write(cx, buf)
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A pool whose connections use these transports, the latest one last.
struct Bench {
    pool: Pool<u8, &'static str>,
    farm: Farm,
    lines: Vec<Arc<State>>,
}

impl Bench {
    fn new() -> Self {
        let kept = Settings { idle_timeout: Duration::from_secs(24 * 3600), ..Settings::default() };
        Self { pool: Pool::new(kept), farm: Farm::new(Settings::default()), lines: Vec::new() }
    }

    async fn open(&mut self) -> Result<TunnelStream, OpenError<&'static str>> {
        self.open_to(|inbound| drop(tokio::spawn(echo(inbound)))).await
    }

    async fn open_to(
        &mut self,
        handler: impl FnMut(InboundConnect) + Send + Clone + 'static,
    ) -> Result<TunnelStream, OpenError<&'static str>> {
        let Self { pool, farm, lines } = self;
        let dial = || {
            let state = Arc::new(State::default());
            lines.push(state.clone());
            std::future::ready(Ok(Line { io: farm.dial_to(handler.clone()), state }))
        };
        pool.open(&1, dial, request()).await.map(|(stream, _)| stream)
    }

    fn cut(&self) {
        self.lines.last().unwrap().cut.store(true, Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_sent_something_to_a_peer_that_is_gone_hears_of_it_in_time() {
    // Whatever happened before, and however long ago.
    for idle in [0, 1, 2, 3, 5, 1000, 100_000] {
        let mut bench = Bench::new();
        let mut stream = bench.open().await.unwrap();
        say(&mut stream, "hello").await;
        sleep(Duration::from_millis(idle)).await;
        bench.cut();
        let begun = Instant::now();
        stream.write_all(b"hello").await.unwrap();
        assert!(stream.read(&mut [0]).await.is_err());
        let found = begun.elapsed();
        assert!(found < FOUND && found > FOUND / 2, "{found:?} after {idle} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_an_answer_since_long_hears_of_it_in_time() {
    for long in [1000, 2999, 3001, 4000, 60_000] {
        let mut bench = Bench::new();
        // The first request is answered, the second is not.
        let answered = Arc::new(AtomicBool::new(false));
        let handler = move |inbound: InboundConnect| {
            if answered.swap(true, Relaxed) {
                std::mem::forget(inbound);
            } else {
                std::mem::forget(inbound.accept(HeaderMap::new()));
            }
        };
        let mut stream = bench.open_to(handler).await.unwrap();
        let state = bench.lines[0].clone();
        let asking = tokio::spawn({
            let pool = bench.pool.clone();
            async move {
                let dial = || std::future::ready(Err::<DuplexStream, _>("nobody"));
                pool.open(&1, dial, request()).await.map(drop)
            }
        });
        sleep(Duration::from_millis(long)).await;
        state.cut.store(true, Relaxed);
        let begun = Instant::now();
        assert!(stream.read(&mut [0]).await.is_err());
        assert!(begun.elapsed() < FOUND, "{:?} after {long} ms", begun.elapsed());
        let error = asking.await.unwrap().unwrap_err();
        assert!(matches!(error, OpenError::Tunnel(Error::Unheard)), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_wakes_nobody() {
    let mut bench = Bench::new();
    let mut stream = bench.open().await.unwrap();
    say(&mut stream, "hello").await;
    // The last frames of both sides were answered.
    sleep(Duration::from_secs(60)).await;
    let polls = bench.lines[0].polls.load(Relaxed);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.lines[0].polls.load(Relaxed), polls);
    say(&mut stream, "hello").await;
    assert_eq!(bench.farm.dials(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_stream_on_an_idle_connection_to_a_peer_that_is_gone_does_not_wait_long() {
    let mut bench = Bench::new();
    let mut old = bench.open().await.unwrap();
    say(&mut old, "hello").await;
    sleep(Duration::from_secs(600)).await;
    bench.cut();
    let begun = Instant::now();
    let error = bench.open().await.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Tunnel(Error::Unheard)) && error.is_retryable(), "{error:?}");
    assert!(begun.elapsed() < FOUND / 2, "{:?}", begun.elapsed());
    assert_eq!(bench.lines.len(), 1, "other peers are to be tried first");
    // The next request gets a new connection.
    say(&mut bench.open().await.unwrap(), "hello").await;
    assert_eq!(bench.lines.len(), 2);
    // The old connection is given up.
    assert!(old.read(&mut [0]).await.is_err());
    assert!(begun.elapsed() < FOUND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_on_an_idle_connection_is_waited_for() {
    const SLOW: Duration = Duration::from_secs(60);
    let mut bench = Bench::new();
    let handler = |inbound: InboundConnect| {
        tokio::spawn(async {
            sleep(SLOW).await;
            std::mem::forget(inbound.accept(HeaderMap::new()));
        });
    };
    let first = bench.open_to(handler).await.unwrap();
    sleep(SLOW).await;
    let begun = Instant::now();
    let second = bench.open_to(handler).await.unwrap();
    assert_eq!((begun.elapsed().as_secs(), bench.lines.len()), (SLOW.as_secs(), 1));
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn who_was_asleep_does_not_take_the_peer_for_dead() {
    let mut bench = Bench::new();
    let mut stream = bench.open().await.unwrap();
    say(&mut stream, "hello").await;
    sleep(Duration::from_secs(10)).await;
    // Something was sent and not answered. Then this process does not run for a while.
    bench.cut();
    stream.write_all(b"lost").await.unwrap();
    settle().await;
    bench.lines[0].cut.store(false, Relaxed);
    tokio::time::advance(Duration::from_secs(60)).await;
    settle().await;
    say(&mut stream, "hello").await;
    assert_eq!(bench.farm.dials(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_peer_whose_system_goes_on_acknowledging_is_alive() {
    let mut bench = Bench::new();
    let mut stream = bench.open().await.unwrap();
    say(&mut stream, "hello").await;
    let line = bench.lines[0].clone();
    line.acknowledges.store(1000, Relaxed);
    bench.cut();
    // For all this side knows, megabytes are queued before its PING.
    stream.write_all(b"hello").await.unwrap();
    let waited = tokio::time::timeout(Duration::from_secs(300), stream.read(&mut [0])).await;
    assert!(waited.is_err(), "{waited:?}");
    line.acknowledges.store(0, Relaxed);
    let begun = Instant::now();
    assert!(stream.read(&mut [0]).await.is_err());
    assert!(begun.elapsed() < FOUND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_before_anybody_waited_keeps_no_dead_peer_alive() {
    // The peer may die at any time after something was sent, also between two checks.
    for later in [0, 1, 1499, 1501, 2999, 3001, 4000] {
        let mut bench = Bench::new();
        let mut stream = bench.open().await.unwrap();
        say(&mut stream, "hello").await;
        let line = bench.lines[0].clone();
        line.acknowledges.store(1000, Relaxed);
        // A first answer, to compare later ones with.
        line.silent.store(true, Relaxed);
        stream.write_all(b"hello").await.unwrap();
        sleep(Duration::from_secs(20)).await;
        line.silent.store(false, Relaxed);
        stream.write_all(b"and more").await.unwrap();
        stream.read_exact(&mut [0; 13]).await.unwrap();
        say(&mut stream, "hello").await;
        sleep(Duration::from_secs(60)).await;
        // Much is acknowledged while nobody waits, and nothing after that.
        line.acknowledges.store(0, Relaxed);
        line.acknowledged.fetch_add(1_000_000, Relaxed);
        sleep(Duration::from_millis(later)).await;
        bench.cut();
        let begun = Instant::now();
        stream.write_all(b"hello").await.unwrap();
        assert!(stream.read(&mut [0]).await.is_err());
        assert!(begun.elapsed() < FOUND, "{:?} after {later} ms", begun.elapsed());
    }
}
