//! A connection's transport as HTTP/2 sees it: when it flushes, how it takes its leave, and
//! whether the peer is alive.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::timers::sleep;

/// A transport that counts what the peer sent, that flushes when the connection's task has done
/// all it can ([`Flusher`]), and that takes its leave when shut down: it reads on until the peer
/// has closed too.
///
/// Without the last, a late frame of the peer (a WINDOW_UPDATE, mostly) that meets a closed socket is
/// answered with a RST by the kernel, which then throws away what it had still to send: the last
/// megabytes of the connection's last streams.
pub(crate) struct Watched<IO> {
    transport: Arc<Mutex<Transport<IO>>>,
    received: Arc<AtomicU64>,
    patience: Patience,
    /// Set while it takes its leave.
    leaving: Option<Pin<Box<Sleep>>>,
}

struct Transport<IO> {
    io: IO,
    /// Flushes are left to the [`Flusher`].
    deferring: bool,
    /// One was left.
    unflushed: bool,
    /// Bytes that may still be read in this turn.
    budget: usize,
}

/// Bytes read in one turn. A bulk sender keeps the socket full, and HTTP/2 reads until it is
/// empty: megabytes would pass through the caches before the first of them is passed on.
const TURN: usize = 256 << 10;

/// Flushes a [`Watched`] transport once for all frames of a turn. HTTP/2 itself flushes after
/// each larger frame: a record and a system call for each of many small answers.
pub(crate) struct Flusher<IO>(Arc<Mutex<Transport<IO>>>);

impl<IO: AsyncWrite + Unpin> Flusher<IO> {
    /// From now on, flushing waits for [`Flusher::poll`]; to be called when the connection's own
    /// task polls it, not before.
    pub(crate) fn defer(&self) {
        self.0.lock().deferring = true;
    }

    /// Flushes what was left; to be called at the end of each turn.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut transport = self.0.lock();
        transport.budget = TURN;
        if transport.unflushed {
            ready!(Pin::new(&mut transport.io).poll_flush(cx))?;
            transport.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// How long a peer may take to close once this side has. Clones are one.
#[derive(Clone)]
pub(crate) struct Patience(Arc<AtomicU64>);

impl Patience {
    /// Long enough for a last word (GOAWAY) to arrive; no longer, for it may be said to somebody
    /// who keeps on sending what it is said for.
    fn short() -> Self {
        Self(Arc::new(AtomicU64::new(1000)))
    }

    /// This connection will end in good order, and may have much to deliver yet.
    pub(crate) fn raise(&self, to: Duration) {
        self.0.store(u64::try_from(to.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }
}

impl<IO> Watched<IO> {
    pub(crate) fn new(io: IO) -> (Self, Flusher<IO>, Arc<AtomicU64>) {
        let received = Arc::new(AtomicU64::new(0));
        let transport = Arc::new(Mutex::new(Transport { io, deferring: false, unflushed: false, budget: TURN }));
        let flusher = Flusher(transport.clone());
        (Self { transport, received: received.clone(), patience: Patience::short(), leaving: None }, flusher, received)
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience.clone()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Watched<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut transport = self.transport.lock();
        if transport.budget == 0 && transport.deferring {
            // Those for whom something came get their turn first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut transport.io).poll_read(cx, buf));
        let read = buf.filled().len() - before;
        transport.budget = transport.budget.saturating_sub(read);
        self.received.fetch_add(read as u64, Relaxed);
        Poll::Ready(result)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport.lock().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport.lock().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut transport = self.transport.lock();
        if transport.deferring {
            transport.unflushed = true;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut transport.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let io = &mut this.transport.lock().io;
        if this.leaving.is_none() {
            ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
        }
        let timer = this.leaving.get_or_insert_with(|| Box::pin(sleep(this.patience.get())));
        let mut scratch = [0; 4096];
        loop {
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut unwanted = ReadBuf::new(&mut scratch);
            // Whatever its end looks like, the peer has closed.
            if ready!(Pin::new(&mut *io).poll_read(cx, &mut unwanted)).is_err() || unwanted.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// Sends PINGs on a silent connection and tells when the peer is dead. Any byte from the peer
/// proves it alive: a PONG may queue behind megabytes of data on a slow link.
pub(crate) struct Keepalive {
    ping: Option<PingPong>,
    received: Arc<AtomicU64>,
    seen: u64,
    waiting: bool,
    timer: Pin<Box<Sleep>>,
    interval: Duration,
    timeout: Duration,
}

impl Keepalive {
    pub(crate) fn new(ping: Option<PingPong>, received: Arc<AtomicU64>, interval: Duration, timeout: Duration) -> Self {
        Self { ping, received, seen: 0, waiting: false, timer: Box::pin(sleep(interval)), interval, timeout }
    }

    /// Ready once the peer has been silent for the whole timeout after a PING.
    pub(crate) fn poll_dead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let received = self.received.load(Relaxed);
            let alive = received != self.seen;
            if self.waiting && !alive {
                return Poll::Ready(());
            }
            self.seen = received;
            if alive {
                self.waiting = false;
                self.rearm(self.interval);
                continue;
            }
            if let Some(ping) = &mut self.ping {
                // A PONG must be taken before the next PING can be sent; nobody waits for it.
                let _ = ping.poll_pong(&mut Context::from_waker(Waker::noop()));
                let _ = ping.send_ping(Ping::opaque());
            }
            self.waiting = true;
            self.rearm(self.timeout);
        }
    }

    fn rearm(&mut self, after: Duration) {
        self.timer.as_mut().reset(Instant::now() + after);
    }
}
