//! The carrier's state of one stream.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::Role;
use super::chunks::Chunks;
use super::credit::Credit;
use super::halves::{Holder, Receiving, Sending};
use crate::Error;
use crate::meter::Meter;
use crate::waking::keep;
use crate::window::{Held, Ledger};

/// Evidence that the program reads. The kernel takes megabytes for a program that does not, which looks the same from
/// here. So after a little was delivered, the kernel is told to buffer little. What it takes from then on, except for
/// what fits its receive buffer, the program has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// No evidence was asked for. It never is for short connections.
    None,
    /// Evidence was asked for when this many bytes had been delivered.
    Since(u64),
    /// The program has read everything that was delivered beyond this many bytes.
    Given(u64),
}

/// Bytes delivered before evidence is asked for.
const ASKED_FROM: u64 = 32 << 10;

/// Bytes that the kernel may hold unsent for a program while evidence is asked for.
const UNSENT: u32 = 16 << 10;

/// Bytes that the kernel takes for such a program if it does not read: its receive buffer, which grows a little, and
/// the unsent bytes. Measured: 410 KiB.
const ABSORBED: u64 = 1 << 20;

pub(super) struct Stream {
    pub(super) holder: Holder,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    /// Whether it is in the queue of streams that wait to send.
    pub(super) queued: bool,
    /// Whether it owes its peer a WINDOW_UPDATE, sent when the transport takes more.
    pub(super) owing: bool,
    pub(super) failure: Option<Error>,
    // Receiving.
    pub(super) credit: Credit,
    /// The size that the stream's window should have.
    pub(super) target: u32,
    proof: Proof,
    pub(super) chunks: Chunks,
    /// What is in `chunks`, or was taken out of it and not released.
    pub(super) held: Held,
    pub(super) reader: Option<Waker>,
    pub(super) sink: Option<Sink>,
    /// Bytes written to the sink.
    pub(super) delivered: u64,
    // Sending.
    /// Bytes that the peer accepts on this stream. Negative if it has reduced the window since.
    pub(super) window: i64,
    /// Bytes given before the stream was open, or beyond its window.
    pub(super) backlog: Bytes,
    pub(super) sender: Option<Waker>,
}

impl Stream {
    /// `credit` is what the peer may send, out of `receive_window`.
    pub(super) fn new(receive_window: u32, credit: Credit, send_window: i64, ledger: &Arc<Ledger>) -> Self {
        Self {
            holder: Holder::Awaited,
            receiving: Receiving::Awaited,
            sending: Sending::Unopened,
            queued: false,
            owing: false,
            failure: None,
            credit,
            target: receive_window,
            proof: Proof::None,
            chunks: Chunks::default(),
            held: Held::new(ledger.clone()),
            reader: None,
            sink: None,
            delivered: 0,
            window: send_window,
            backlog: Bytes::new(),
            sender: None,
        }
    }

    /// Adapts the window to the other waiting bytes and to what the program has read. `largest` is the limit.
    pub(super) fn resize(&mut self, largest: u32) {
        let read = match self.proof {
            Proof::None if self.delivered >= ASKED_FROM => self.ask_for_proof(),
            Proof::None => 0,
            Proof::Since(delivered) => self.proven(self.delivered - delivered),
            Proof::Given(delivered) => self.delivered - delivered,
        };
        let window = self.held.window(largest, read);
        if window != self.target {
            self.credit.resize(self.target, window);
            self.target = window;
        }
        let ends = !self.wants_more();
        self.held.promise(if ends { 0 } else { self.credit.outstanding() });
    }

    fn ask_for_proof(&mut self) -> u64 {
        let Some(sink) = &self.sink else { return 0 };
        // If the option can't be set, what the kernel takes counts as read.
        let _ = SockRef::from(&*sink.socket).set_tcp_notsent_lowat(UNSENT);
        self.proof = Proof::Since(self.delivered);
        0
    }

    fn proven(&mut self, delivered: u64) -> u64 {
        if delivered <= ABSORBED {
            return 0;
        }
        if let Some(sink) = &self.sink {
            // Back to the system's default.
            let _ = SockRef::from(&*sink.socket).set_tcp_notsent_lowat(0);
        }
        self.proof = Proof::Given(self.delivered - delivered + ABSORBED);
        delivered - ABSORBED
    }

    /// Nothing more will come or may be sent.
    pub(super) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.sink = None;
        self.backlog = Bytes::new();
        self.wake_reader();
        self.wake_sender();
    }

    /// Nobody will read what still comes. Returns the sink.
    pub(super) fn abandon(&mut self) -> Option<Sink> {
        self.holder = Holder::Gone;
        self.chunks = Chunks::default();
        (self.reader, self.sender) = (None, None);
        self.sink.take()
    }

    /// Why the stream failed. Until it fails, the task of `cx` is woken when it does or when something comes.
    pub(super) fn poll_failed(&mut self, cx: &Context<'_>) -> Poll<Error> {
        match &self.failure {
            Some(failure) => Poll::Ready(failure.clone()),
            None => {
                keep(&mut self.reader, cx);
                Poll::Pending
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() || (self.receiving.has_ended() && self.sending.has_ended())
    }

    /// Whether somebody holds its lane.
    pub(super) fn is_held(&self) -> bool {
        self.holder == Holder::Somebody
    }

    /// Whether there may be DATA for its program now. If not, the library reports the peer's violation.
    pub(super) fn takes_data(&self, role: Role) -> bool {
        !self.receiving.has_ended() && (role == Role::Server || self.receiving.is_answered())
    }

    /// Whether somebody reads, or may still read, what comes.
    pub(super) fn is_listened_to(&self) -> bool {
        self.holder != Holder::Gone && self.failure.is_none()
    }

    /// Whether it makes sense to let the peer send more.
    pub(super) fn wants_more(&self) -> bool {
        !self.receiving.has_ended() && self.is_listened_to()
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    pub(super) fn wake_sender(&mut self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

/// The program's side of a stream.
pub(super) struct Sink {
    pub(super) socket: Arc<TcpStream>,
    pub(super) meter: Arc<dyn Meter>,
}
