//! Lies between the HTTP/2 library and the transport. DATA frames bypass the library.
//!
//! The library handles what is rare and intricate: headers, settings, pings, the states of streams, and the end of each.
//! Programs' bytes are taken out of the frames, and put into frames, here. That needs no task, no queue and no call of the
//! library, which would cost more than the encryption. Received bytes go to the program's socket from the buffer in which
//! they were decrypted.
//!
//! So the library never sees a byte of DATA. It is told of a stream's end by an empty frame, and sends an empty frame when
//! this side ends a stream. All windows are kept here, except that the library announces the connection's first one.
//!
//! ```text
//!  demux       splits received bytes into frames; judge: which frames are allowed
//!  incoming    acts on received frames: DATA goes to its stream; control: others, as far as they concern streams or windows
//!  mux         decides which stream may send, and how much
//!  outgoing    sends; transmit: writes to the transport, and keeps what it has no room for
//!  credit      what each peer may still send: flow-control windows
//!  library     the carrier as the library's transport
//!  passing     reads what the library writes; writing: applies it to the streams
//!  lane        a stream as its owner uses it; stream: its state here
//!  pulse       tells whether anything waits for the peer
//! ```
//!
//! Locks: the library may call the carrier with its own lock held. So the carrier never calls the library with the
//! carrier's lock held.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};

use crate::settings::Settings;
use crate::waking::keep;
use crate::window::Ledger;
use crate::{Error, Transport};

mod chunks;
mod control;
mod credit;
mod demux;
mod halves;
mod inbox;
mod incoming;
mod judge;
mod lane;
mod library;
mod mux;
mod outgoing;
mod pace;
mod passing;
mod pulse;
mod received;
mod stream;
mod transmit;
mod violation;
mod writing;

use halves::Holder;
use incoming::Incoming;
use outgoing::Outgoing;
use pulse::Pulse;
use received::Received;
use stream::Stream;

pub(crate) use lane::{Delivery, Lane};
pub(crate) use library::{LibraryIo, Patience};
pub use pace::thread_sleeps;
pub(crate) use violation::Violation;

/// Bytes read in one turn. The last read may bring up to twice what is left of them. A bulk sender keeps the
/// socket full. Without a limit, it would be read until it is empty, and the thread's other tasks would wait for
/// megabytes.
const TURN: usize = 256 << 10;

/// Most bytes read at once.
const LARGEST_READ: usize = 256 << 10;

/// The peer's assumption before it is told otherwise, bytes (RFC 9113 §6.5.2).
const DEFAULT_WINDOW: u32 = 65_535;
const DEFAULT_FRAME: usize = 16_384;

/// Our side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// One connection. Its task calls [`Handle::begin_turn`], polls the library if the library asked for it, and calls
/// [`Handle::end_turn`]. Streams use it through their [`Lane`]s.
pub(crate) struct Carrier {
    /// `None` when the connection is over.
    io: Option<Box<dyn Transport>>,
    role: Role,
    /// The task that drives the connection: its own or, before there is one, the task that waits for its handshake.
    driver: Option<Waker>,
    /// Whether the connection's task drives it. Then reading and flushing happen in its turns only.
    has_task: bool,
    /// Whether the task is in its turn, so that it need not be woken.
    in_turn: bool,
    /// Whether the library has begun to close the transport, which then belongs to the library.
    leaving: bool,
    streams: HashMap<u32, Stream, RandomState>,
    /// The latest stream that was begun.
    last_stream: u32,
    /// The latest stream whose first frame was sent or received.
    last_begun: u32,
    /// Of a server: streams after this one are not served.
    last_served: u32,
    /// Why the connection is over.
    failure: Option<Error>,
    incoming: Incoming,
    outgoing: Outgoing,
    pulse: Pulse,
    ledger: Arc<Ledger>,
}

/// A handle of a connection's carrier. Clones share it.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Mutex<Carrier>>);

impl Handle {
    /// A carrier on `io`.
    pub(crate) fn new(io: Box<dyn Transport>, role: Role, settings: &Settings, ledger: Arc<Ledger>) -> Self {
        Self(Arc::new(Mutex::new(Carrier {
            io: Some(io),
            role,
            driver: None,
            has_task: false,
            in_turn: false,
            leaving: false,
            streams: HashMap::default(),
            last_stream: 0,
            last_begun: 0,
            last_served: u32::MAX,
            failure: None,
            incoming: Incoming::new(role, settings),
            outgoing: Outgoing::new(role),
            pulse: Pulse::default(),
            ledger,
        })))
    }

    /// The transport for the library.
    pub(crate) fn library_io(&self) -> LibraryIo {
        LibraryIo::new(self.clone())
    }

    /// Bytes received so far.
    pub(crate) fn received(&self) -> Arc<AtomicU64> {
        self.0.lock().incoming.received.clone()
    }

    /// From now on, the connection's own task drives it.
    pub(crate) fn has_task(&self) {
        self.0.lock().has_task = true;
    }

    /// Receives what has come and passes it on. Call it first in each turn of the connection's task.
    ///
    /// # Errors
    /// Once, if the peer has broken a rule and the connection must end.
    pub(crate) fn begin_turn(&self, cx: &mut Context<'_>) -> Result<(), Violation> {
        let mut carrier = self.0.lock();
        carrier.in_turn = true;
        carrier.driven_by(cx);
        carrier.incoming.budget = TURN;
        carrier.incoming.demux.turn_begins();
        if !carrier.leaving {
            carrier.receive(cx);
        }
        let Some(violation) = carrier.incoming.violation else { return Ok(()) };
        if std::mem::replace(&mut carrier.incoming.reported, true) { Ok(()) } else { Err(violation) }
    }

    /// Sends a client's final frame to a server that has broken a rule, as far as that is possible now. The library has
    /// no function for it.
    pub(crate) fn complain(&self, cx: &mut Context<'_>, violation: Violation) {
        self.0.lock().complain(cx, violation);
    }

    /// Sends what was gathered. Call it last in each turn.
    ///
    /// # Errors
    /// If the transport failed.
    pub(crate) fn end_turn(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut carrier = self.0.lock();
        carrier.in_turn = false;
        if carrier.leaving {
            return Ok(());
        }
        match carrier.poll_flush(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    /// Changes the size of the connection's receive window.
    pub(crate) fn resize_window(&self, size: u32) {
        let mut carrier = self.0.lock();
        let before = std::mem::replace(&mut carrier.incoming.target, size);
        carrier.incoming.credit.resize(before, size);
        carrier.tell_connection_credit();
    }

    /// A stream's lane. It may be requested before or after the stream's first frame.
    pub(crate) fn attach(&self, stream: u32) -> Lane {
        let mut carrier = self.0.lock();
        carrier.attach(stream);
        Lane::new(self.clone(), stream)
    }

    /// Ends all streams with this error. The connection may still send its final frames.
    pub(crate) fn fail(&self, error: &Error) {
        self.0.lock().fail(error);
    }

    /// The connection is over. Drops the transport, and ends streams that are still open with this error.
    pub(crate) fn close(&self, error: &Error) {
        let io = {
            let mut carrier = self.0.lock();
            carrier.fail(error);
            carrier.outgoing.forget();
            carrier.incoming.forget();
            // Otherwise lanes would keep the memory of a task that has ended.
            carrier.driver = None;
            carrier.pulse = Pulse::default();
            carrier.io.take()
        };
        drop(io);
    }
}

impl Carrier {
    /// From now on, the task of `cx` is woken.
    fn driven_by(&mut self, cx: &Context<'_>) {
        keep(&mut self.driver, cx);
    }

    /// The transport has bytes that only the task's turn can flush.
    fn ask_for_flush(&mut self) {
        let asked = std::mem::replace(&mut self.outgoing.unflushed, true);
        if !asked && self.has_task && !self.in_turn {
            self.wake_driver();
        }
    }

    fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    /// Reads until nothing more has come, the turn's share is used up, or the library must catch up first.
    fn receive(&mut self, cx: &mut Context<'_>) {
        while self.incoming.may_read() {
            if self.incoming.demux.had_its_turn() {
                // The task is not woken at once, because there may be no end to that; see [`let_others`].
                return let_others(cx);
            }
            if let Some(rest) = self.incoming.rest.take() {
                let (received, at) = *rest;
                self.take_apart(received, at);
                continue;
            }
            let wanted = self.incoming.wanted();
            if self.incoming.budget < wanted / 2 && self.has_task {
                cx.waker().wake_by_ref();
                return;
            }
            let Some(io) = &mut self.io else { return self.incoming.ended(Err(io::ErrorKind::BrokenPipe.into())) };
            let mut buffer = self.incoming.size.buffer();
            let mut room = ReadBuf::new(&mut buffer[..wanted]);
            match Pin::new(io).poll_read(cx, &mut room) {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => return self.incoming.ended(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
            let length = room.filled().len();
            if length == 0 {
                return self.incoming.ended(Ok(()));
            }
            self.incoming.observe(length, wanted);
            self.incoming.budget = self.incoming.budget.saturating_sub(length);
            self.incoming.received.fetch_add(length as u64, Relaxed);
            self.take_apart(Received::new(buffer, length), 0);
        }
    }

    fn attach(&mut self, id: u32) {
        // On a server, the library asks for it after the first frame has come. On a client, whoever opens the stream
        // asks for it before or after that, and several may do so at the same time.
        let (failure, known) = (&self.failure, id <= self.last_begun);
        let stream = self.streams.entry(id).or_insert_with(|| {
            let mut stream = self.incoming.new_stream(self.outgoing.mux.initial_window(), &self.ledger);
            // The stream's end came as well, before anybody attached to the stream.
            if known && failure.is_none() {
                stream.failure = Some(Error::Reset { code: h2::Reason::CANCEL, by_peer: true });
            }
            stream
        });
        stream.holder = Holder::Somebody;
        if let Some(failure) = failure {
            stream.failure.get_or_insert_with(|| failure.clone());
        }
        self.last_stream = self.last_stream.max(id);
    }

    /// A stream begins with a frame that is sent or received. It may have been attached before.
    fn begin(&mut self, id: u32) {
        self.last_stream = self.last_stream.max(id);
        self.last_begun = self.last_begun.max(id);
        if id > self.last_served || self.failure.is_some() {
            return;
        }
        let initial = self.outgoing.mux.initial_window();
        self.streams.entry(id).or_insert_with(|| self.incoming.new_stream(initial, &self.ledger));
    }

    fn fail(&mut self, error: &Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        self.outgoing.mux.all_leave();
        for stream in self.streams.values_mut() {
            stream.fail(error.clone());
        }
        self.streams.retain(|_, stream| stream.is_held());
    }

    /// Forgets a client's stream that was given up before its headers were sent. They may never be sent; if they are,
    /// the frame that ends the stream follows them.
    fn forget_if_never_opened(&mut self, id: u32) {
        if self.role == Role::Client
            && self.streams.get(&id).is_some_and(|stream| !stream.is_held() && !stream.sending.is_open())
        {
            self.forget(id);
        }
    }

    /// Forgets a stream that is over and that nobody holds.
    fn forget_if_over(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(|stream| !stream.is_held() && stream.is_over()) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: u32) {
        let Some(mut stream) = self.streams.remove(&id) else { return };
        // What came for it before anybody held it will not be read.
        let given_back = stream.held.give_back(usize::MAX);
        self.incoming.credit.give(given_back as u32);
        self.tell_connection_credit();
        // A table that once held many streams is not kept for a few.
        if self.streams.is_empty() && self.streams.capacity() > 64 {
            self.streams.shrink_to_fit();
        }
    }
}

/// Closes the transport and informs the streams, however the connection's task ends.
pub(crate) struct Guard(pub(crate) Handle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close(&closed());
    }
}

/// Lets the task continue only when all others on the thread have had their turn and the kernel was asked for new
/// events. A task that wakes itself would get sixty more turns before that.
fn let_others(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// The error of streams whose connection is closed without a reason.
fn closed() -> Error {
    Error::Lost(Arc::new(io::ErrorKind::BrokenPipe.into()))
}

#[cfg(test)]
#[path = "carrier_tests.rs"]
mod tests;
