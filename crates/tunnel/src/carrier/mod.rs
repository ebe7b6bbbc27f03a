//! Between the HTTP/2 library and the transport: frames of DATA pass beside the library.
//!
//! The library keeps what is rare and intricate: headers, settings, pings, the states of streams,
//! and the end of each. What programs say is taken out of the stream of frames, and put into it,
//! here, without a task, a queue or a look at the library: it would cost more than the cipher.
//! Received bytes go to the program's socket from the buffer they were opened in.
//!
//! So the library never sees a byte of DATA. It is told of a stream's end by an empty frame, and
//! sends an empty frame where this side ends; all windows but the first word about the
//! connection's are kept here.
//!
//! ```text
//!  demux       takes apart what comes and says what it is; judge: whether it may come at all
//!  incoming    acts on that: DATA goes to its stream; control: other frames, as far as they concern streams or windows
//!  mux         says which stream may send, and how much
//!  outgoing    sends; transmit: what the transport takes, and what waits for it
//!  passing     reads what the library writes and says what it means; writing: acts on that
//!  lane        what a stream's owner has of it; stream: what is known of it here
//!  pulse       whether anything waits for the peer
//! ```
//!
//! Locks: the library may call in here with its own lock held. So nothing here calls the library
//! with the carrier's lock held.

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
mod frame;
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

/// Bytes read in one turn, but for the last read, which may bring twice what is left of them. A bulk
/// sender keeps the socket full, and would be read until it is empty: others on the thread would wait
/// for megabytes.
const TURN: usize = 256 << 10;

/// Most bytes read at once.
const LARGEST_READ: usize = 256 << 10;

/// What the peer assumes before it is told otherwise, bytes (RFC 9113 §6.5.2).
const DEFAULT_WINDOW: u32 = 65_535;
const DEFAULT_FRAME: usize = 16_384;

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// One connection. Its task calls [`Handle::begin_turn`], polls the library if that asks for it,
/// and calls [`Handle::end_turn`]; streams come in by their [`Lane`]s.
pub(crate) struct Carrier {
    /// None once the connection is over.
    io: Option<Box<dyn Transport>>,
    role: Role,
    /// Who drives the connection: its task or, before there is one, who waits for its handshake.
    driver: Option<Waker>,
    /// The task drives it: reading and flushing are left to its turns.
    has_task: bool,
    /// What the task does in its turn, it need not be woken for.
    in_turn: bool,
    /// The library has begun to close the transport, which is its own from then on.
    leaving: bool,
    streams: HashMap<u32, Stream, RandomState>,
    /// The latest stream that began.
    last_stream: u32,
    /// The latest stream whose first frame has passed.
    last_begun: u32,
    /// Of a server: nobody will take streams that begin after this one.
    last_served: u32,
    /// Why the connection is over.
    failure: Option<Error>,
    incoming: Incoming,
    outgoing: Outgoing,
    pulse: Pulse,
    ledger: Arc<Ledger>,
}

/// A connection's carrier. Clones are one.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Mutex<Carrier>>);

impl Handle {
    /// A carrier on `io`, and what the library is to take for its transport.
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

    /// What the library is to take for its transport.
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

    /// Receives what has come and passes it on. To be called first in each turn of the
    /// connection's task.
    ///
    /// # Errors
    /// Once, if the peer has broken the rules: the connection is to be ended.
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

    /// A client's last word to a server that has broken the rules, as far as it can be said now: the
    /// library has none for that.
    pub(crate) fn complain(&self, cx: &mut Context<'_>, violation: Violation) {
        self.0.lock().complain(cx, violation);
    }

    /// Sends what was gathered. To be called last in each turn.
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

    /// The connection's receive window has another size.
    pub(crate) fn resize_window(&self, size: u32) {
        let mut carrier = self.0.lock();
        let before = std::mem::replace(&mut carrier.incoming.target, size);
        carrier.incoming.credit.resize(before, size);
        carrier.tell_connection_credit();
    }

    /// A stream's lane. It may be asked for before or after the stream's first frame has passed.
    pub(crate) fn attach(&self, stream: u32) -> Lane {
        let mut carrier = self.0.lock();
        carrier.attach(stream);
        Lane::new(self.clone(), stream)
    }

    /// All streams end with this error; the connection may still say its last words.
    pub(crate) fn fail(&self, error: &Error) {
        self.0.lock().fail(error);
    }

    /// The connection is over: the transport is dropped, and streams that are still open end with
    /// this error.
    pub(crate) fn close(&self, error: &Error) {
        let io = {
            let mut carrier = self.0.lock();
            carrier.fail(error);
            carrier.outgoing.forget();
            carrier.incoming.forget();
            // Or lanes would keep the memory of a task that has ended.
            carrier.driver = None;
            carrier.pulse = Pulse::default();
            carrier.io.take()
        };
        drop(io);
    }
}

impl Carrier {
    /// From now on, whoever polls with `cx` is woken.
    fn driven_by(&mut self, cx: &Context<'_>) {
        keep(&mut self.driver, cx);
    }

    /// The transport has something that only the task's turn can send.
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

    /// Reads until nothing more has come, the turn's share is used up, or the library has to catch
    /// up first.
    fn receive(&mut self, cx: &mut Context<'_>) {
        while self.incoming.may_read() {
            if self.incoming.demux.had_its_turn() {
                // Not at once, as below: this one may have no end.
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
        // A server is asked to by the library, after the first frame has passed; a client by
        // whoever opens the stream, before or after, and several may do so at once.
        let (failure, known) = (&self.failure, id <= self.last_begun);
        let stream = self.streams.entry(id).or_insert_with(|| {
            let mut stream = self.incoming.new_stream(self.outgoing.mux.initial_window(), &self.ledger);
            // Its end has passed, too, before anybody looked at it.
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

    /// A stream begins with a frame that passes. One that was attached before is there already.
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

    /// Forgets a stream of a client that was given up before its headers passed. They may never
    /// come; if they do, what ends it follows them.
    fn forget_if_never_opened(&mut self, id: u32) {
        if self.role == Role::Client
            && self.streams.get(&id).is_some_and(|stream| !stream.is_held() && !stream.sending.is_open())
        {
            self.forget(id);
        }
    }

    /// Forgets a stream that nobody holds and that is over.
    fn forget_if_over(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(|stream| !stream.is_held() && stream.is_over()) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: u32) {
        let Some(mut stream) = self.streams.remove(&id) else { return };
        // What came for it before anybody held it, nobody will ask for.
        let given_back = stream.held.give_back(usize::MAX);
        self.incoming.credit.give(given_back as u32);
        self.tell_connection_credit();
        // The table of many streams is not kept for a few.
        if self.streams.is_empty() && self.streams.capacity() > 64 {
            self.streams.shrink_to_fit();
        }
    }
}

/// A connection's hold on its carrier: however its task ends, the transport is closed, and streams
/// are told.
pub(crate) struct Guard(pub(crate) Handle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.close(&closed());
    }
}

/// Has the task go on when all others on the thread have had their turn, and the kernel was asked for whom there is
/// something. A task that is woken at once would have sixty more turns before that.
fn let_others(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// Why streams end whose connection is closed without a reason.
fn closed() -> Error {
    Error::Lost(Arc::new(io::ErrorKind::BrokenPipe.into()))
}

#[cfg(test)]
#[path = "carrier_tests.rs"]
mod tests;
