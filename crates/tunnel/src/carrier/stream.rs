//! What the carrier knows of one stream.

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

/// Whether the program reads. Its kernel takes megabytes for one that does not, which looks the same
/// from here. So once it has taken a little, it is told to keep little: what it takes from then on, but
/// for what fits its receive buffer, the program has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// Short connections are never asked.
    None,
    /// Asked when so many bytes had been delivered.
    Since(u64),
    /// What was delivered beyond so many bytes, it has read.
    Given(u64),
}

/// Proof is asked for once so many bytes were delivered.
const ASKED_FROM: u64 = 32 << 10;

/// What the kernel may have yet to send to a program that is asked for proof, bytes.
const UNSENT: u32 = 16 << 10;

/// What it takes for such a program that does not read: its receive buffer, which grows a little, and
/// what is unsent. Measured 410 KiB.
const ABSORBED: u64 = 1 << 20;

pub(super) struct Stream {
    pub(super) holder: Holder,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    /// It stands in the queue of those who wait for their turn to send.
    pub(super) queued: bool,
    /// It stands among those whose peer is to be told of their credit when the transport takes more.
    pub(super) owing: bool,
    pub(super) failure: Option<Error>,
    // Receiving.
    pub(super) credit: Credit,
    /// What the stream's window is to be.
    pub(super) target: u32,
    proof: Proof,
    pub(super) chunks: Chunks,
    /// What is in `chunks`, or was taken out of it and not released.
    pub(super) held: Held,
    pub(super) reader: Option<Waker>,
    pub(super) sink: Option<Sink>,
    /// Bytes that were written to the sink.
    pub(super) delivered: u64,
    // Sending.
    /// Bytes that the peer will take of this stream; less than nothing where it has changed its mind.
    pub(super) window: i64,
    /// Given to be sent before the stream was open, or beyond its window.
    pub(super) backlog: Bytes,
    pub(super) sender: Option<Waker>,
}

impl Stream {
    /// `credit` is what the peer may send of it, of `receive_window` in all.
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

    /// Has the window follow what else waits, and what the program has read; `largest` is the most it
    /// may be.
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
        // Where it can't be set, what the kernel takes passes for read.
        let _ = SockRef::from(&*sink.socket).set_tcp_notsent_lowat(UNSENT);
        self.proof = Proof::Since(self.delivered);
        0
    }

    fn proven(&mut self, delivered: u64) -> u64 {
        if delivered <= ABSORBED {
            return 0;
        }
        if let Some(sink) = &self.sink {
            // The system's own setting.
            let _ = SockRef::from(&*sink.socket).set_tcp_notsent_lowat(0);
        }
        self.proof = Proof::Given(self.delivered - delivered + ABSORBED);
        delivered - ABSORBED
    }

    /// Nothing more will come of it, or may be sent.
    pub(super) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.sink = None;
        self.backlog = Bytes::new();
        self.wake_reader();
        self.wake_sender();
    }

    /// Nobody will ask for what still comes; gives what its bytes went to.
    pub(super) fn abandon(&mut self) -> Option<Sink> {
        self.holder = Holder::Gone;
        self.chunks = Chunks::default();
        (self.reader, self.sender) = (None, None);
        self.sink.take()
    }

    /// Why the stream failed; until it does, whoever polls with `cx` is woken when that happens, or something comes.
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

    /// Somebody holds its lane.
    pub(super) fn is_held(&self) -> bool {
        self.holder == Holder::Somebody
    }

    /// Whether there may be DATA for its program now; if not, the peer breaks a rule that the library sees broken.
    pub(super) fn takes_data(&self, role: Role) -> bool {
        !self.receiving.has_ended() && (role == Role::Server || self.receiving.is_answered())
    }

    /// Whether what still comes is of use to anybody, or will be.
    pub(super) fn is_listened_to(&self) -> bool {
        self.holder != Holder::Gone && self.failure.is_none()
    }

    /// Whether the peer may go on sending to somebody's use.
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

/// The program that a stream's bytes are for.
pub(super) struct Sink {
    pub(super) socket: Arc<TcpStream>,
    pub(super) meter: Arc<dyn Meter>,
}
