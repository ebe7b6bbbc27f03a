//! The task of a client's connection: new streams, idle timeout, and whether the peer lives.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

use crate::carrier::{Handle, LibraryIo, Role, Violation};
use crate::connection::{Connection, Permit};
use crate::driver::{Driver, Side};
use crate::keepalive::Keepalive;
use crate::rarely::Asked;
use crate::timers::{sleep, timeout};
use crate::waking::Registered;
use crate::{Error, Settings, Transport};

/// Resolution of the timers. A shorter wait would be no wait at all.
const SHORTEST: Duration = Duration::from_millis(1);

/// What the task of a connection reports to the pool.
pub(crate) trait Registry: Send + Sync + 'static {
    /// The peer has announced its limits. More streams than the first may be opened.
    fn settled(&self);
    /// Takes the connection out of use if it carries no stream; with `only_if_surplus`, only if there are others to the
    /// same peer. Returns whether it is out of use.
    fn release_if_idle(&self, only_if_surplus: bool) -> bool;
    /// The connection is gone. `error` is the reason if it did not end in good order.
    fn gone(&self, error: Option<&Error>);
}

/// Starts HTTP/2 on `io` and a task that drives it. The task needs the connection to know when it is idle, and the
/// registry needs it to find it, so the registry is made from the connection. Returns a place for the first stream.
pub(crate) async fn start<IO, R: Registry>(
    io: IO,
    settings: &Arc<Settings>,
    register: impl FnOnce(&Arc<Connection>) -> R,
) -> Result<Permit, Error>
where
    IO: Transport + 'static,
{
    let drains = io.drains_at();
    let mut driver = Driver::new(io, Role::Client, settings);
    let carrier = driver.carrier().clone();
    let io = carrier.library_io();
    // The task ends only when the connection is of no more use.
    io.patience().raise(settings.closing_timeout);
    let (send, mut http2) = timeout(settings.handshake_timeout, settings.client().handshake::<_, Bytes>(io))
        .await
        .map_err(|_| Error::HandshakeTimeout(settings.handshake_timeout))??;
    carrier.has_task();
    let connection = Arc::new(Connection::new(send, carrier.clone(), settings.streams_per_connection, drains));
    // The permit is taken before anybody else can take the last place.
    let permit = connection.acquire();
    let registry = register(&connection);
    let keepalive = Keepalive::new(&carrier, http2.ping_pong(), settings, None);
    let surplus_timeout = settings.surplus_timeout.min(settings.idle_timeout).max(SHORTEST);
    let mut side = ClientSide {
        idleness: Idleness {
            timer: Some(Box::pin(sleep(surplus_timeout))),
            surplus_timeout,
            registered: Registered::default(),
            awaits_last: false,
            settings: settings.clone(),
        },
        connection: Arc::downgrade(&connection),
        registry,
        http2,
        keepalive,
        watch: Asked::new(),
        received: carrier.received(),
        heard: connection.heard.clone(),
        created: connection.created,
        carrier,
        seen: 0,
        turns: 0,
        looked: false,
    };
    tokio::spawn(async move {
        let result = driver.run(&mut side).await;
        // The carrier is closed before the guard closes the transport, because the guard knows no reason.
        match &result {
            Err(error) => driver.close(error),
            Ok(()) => drop(driver),
        }
        side.registry.gone(result.as_ref().err());
        if let Err(error) = result {
            tracing::debug!(%error, "HBONE connection ended");
        }
    });
    Ok(permit)
}

struct ClientSide<R> {
    /// Weak: HTTP/2 keeps the transport open while anyone holds the connection.
    connection: Weak<Connection>,
    registry: R,
    carrier: Handle,
    http2: h2::client::Connection<LibraryIo, Bytes>,
    idleness: Idleness,
    keepalive: Box<Keepalive>,
    /// Shared by both of them.
    watch: Asked,
    received: Arc<AtomicU64>,
    heard: Arc<AtomicU64>,
    created: Instant,
    /// Bytes received by the end of the previous turn.
    seen: u64,
    turns: u32,
    /// Whether the library was polled in this turn.
    looked: bool,
}

impl<R: Registry> Side for ClientSide<R> {
    type Error = Error;

    fn poll_due(&mut self, cx: &mut Context<'_>, _: &Asked) -> Poll<Error> {
        self.looked = false;
        let Self { watch, idleness, keepalive, connection, registry, .. } = self;
        let silent = watch.poll(cx, |cx| {
            idleness.look(cx, connection, registry);
            keepalive.poll_due(cx)
        });
        silent.map(|_| {
            if let Some(connection) = connection.upgrade() {
                connection.fell_silent.store(true, Relaxed);
            }
            Error::PingTimeout(idleness.settings.ping_timeout)
        })
    }

    fn poll_received(&mut self, cx: &mut Context<'_>, broken: Option<Violation>, _: &Asked) -> Poll<Error> {
        let Some(violation) = broken else { return Poll::Pending };
        self.carrier.complain(cx, violation);
        Poll::Ready(violation.error())
    }

    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.looked = true;
        Pin::new(&mut self.http2).poll(cx).map_err(Error::from)
    }

    fn lost(&mut self, error: io::Error) -> Error {
        Error::Lost(Arc::new(error))
    }

    fn turn_ends(&mut self) {
        let so_far = self.received.load(Relaxed);
        if so_far <= self.seen {
            return;
        }
        // The time is not stored for each message, because reading the clock is expensive. Opening a stream makes the library
        // process its answer.
        self.turns = self.turns.wrapping_add(1);
        if self.looked || self.turns.is_multiple_of(16) {
            self.heard.store(self.created.elapsed().as_millis() as u64, Relaxed);
        }
        // SETTINGS are the first frame of a peer (RFC 9113 §3.4).
        if self.seen == 0 {
            if let Some(connection) = self.connection.upgrade() {
                connection.settled.store(true, Release);
            }
            self.registry.settled();
        }
        self.seen = so_far;
    }
}

/// How long a connection without streams is kept.
struct Idleness {
    /// `None` when it is out of use.
    timer: Option<Pin<Box<Sleep>>>,
    surplus_timeout: Duration,
    registered: Registered,
    /// Whether it waits for the end of the last stream, without a timer.
    awaits_last: bool,
    settings: Arc<Settings>,
}

impl Idleness {
    /// Drops the connection when nobody needs it.
    fn look(&mut self, cx: &mut Context<'_>, connection: &Weak<Connection>, registry: &impl Registry) {
        while let Some(timer) = &mut self.timer {
            if !self.awaits_last && timer.as_mut().poll(cx).is_pending() {
                break;
            }
            let Some(connection) = connection.upgrade() else {
                self.timer = None;
                break;
            };
            self.awaits_last = connection.poll_idle(&mut self.registered, cx).is_pending();
            if self.awaits_last {
                break;
            }
            let (now, since) = (Instant::now(), connection.idle_since());
            let (surplus, unused) = (since + self.surplus_timeout, since + connection.patience(&self.settings));
            let again = if surplus > now {
                surplus
            } else if registry.release_if_idle(unused > now) {
                self.timer = None;
                break;
            } else {
                // Another connection may be opened meanwhile, and then this one is surplus.
                unused.min(now + self.surplus_timeout).max(now + SHORTEST)
            };
            timer.as_mut().reset(again);
        }
    }
}
