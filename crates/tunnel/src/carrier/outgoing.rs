//! Sending: DATA of streams, between the library's frames.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::Reason;
use leno_tls::buffer::Buffer;

use super::mux::{Mux, Turn};
use super::pace::Pace;
use super::passing::Passing;
use super::violation::Violation;
use super::{Carrier, Role};
use crate::Error;
use crate::frame::{DATA, HEAD, Head};
use crate::waking::keep;

pub(super) struct Outgoing {
    /// Reads what the library writes.
    pub(super) passing: Passing,
    /// Decides which stream may send, and how much.
    pub(super) mux: Mux,
    /// Whether the library is inside a frame or header block, which no other frame may interrupt.
    pub(super) uninterruptible: bool,
    /// Frames that wait for the end of that.
    pub(super) held_back: Vec<u8>,
    /// Bytes that the transport had no room for. They are sent before anything else.
    pub(super) stuck: VecDeque<Bytes>,
    /// The transport has bytes that it may keep until it is flushed.
    pub(super) unflushed: bool,
    /// An error of the transport that could not be handled where it occurred.
    pub(super) error: Option<io::Error>,
    /// Streams that owe their peer a WINDOW_UPDATE, sent when the transport takes more.
    owing: Vec<u32>,
    /// The reason of the library's last GOAWAY.
    pub(super) goodbye: Option<Reason>,
    /// The library, if it waits until the transport takes more.
    pub(super) library: Option<Waker>,
    pace: Pace,
}

/// Bytes to be sent. They are kept if the transport has no room for them.
pub(crate) trait Payload: Deref<Target = [u8]> {
    /// The first `length` of them, kept as long as needed.
    fn keep(self, length: usize) -> Bytes;
}

impl Payload for Buffer {
    fn keep(self, length: usize) -> Bytes {
        self.freeze(length)
    }
}

impl Payload for Bytes {
    fn keep(mut self, length: usize) -> Bytes {
        self.truncate(length);
        self
    }
}

impl Outgoing {
    pub(super) fn new(role: Role) -> Self {
        Self {
            passing: Passing::new(role),
            mux: Mux::new(),
            uninterruptible: false,
            held_back: Vec::new(),
            stuck: VecDeque::new(),
            unflushed: false,
            error: None,
            owing: Vec::new(),
            goodbye: None,
            library: None,
            pace: Pace::default(),
        }
    }

    pub(super) fn forget(&mut self) {
        self.stuck = VecDeque::new();
        self.held_back = Vec::new();
        self.wake_library();
    }

    pub(super) fn wake_library(&mut self) {
        if let Some(library) = self.library.take() {
            library.wake();
        }
    }

    /// Whether bytes given now would have to wait here.
    pub(super) fn is_busy(&self) -> bool {
        !self.stuck.is_empty() || self.uninterruptible
    }
}

impl Carrier {
    /// Owes the stream's peer a WINDOW_UPDATE until the transport takes more. Until then the credit adds up: otherwise
    /// one frame after the other would wait for a peer that reads nothing.
    pub(super) fn owe(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.owing, true)
        {
            self.outgoing.owing.push(id);
        }
    }

    pub(super) fn tell_what_is_owed(&mut self) {
        self.tell_connection_credit();
        for id in std::mem::take(&mut self.outgoing.owing) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.owing = false;
                self.consumed(id, 0);
            }
        }
    }

    /// Waits until the stream may send. Returns how much, at most `want`.
    pub(super) fn poll_reserve(&mut self, id: u32, cx: &Context<'_>, want: usize) -> Poll<Result<usize, Error>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(gone())) };
        if let Some(failure) = &stream.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        if !stream.sending.is_open() || !stream.backlog.is_empty() || stream.window <= 0 {
            keep(&mut stream.sender, cx);
            // A stream that could not send anyway must not hold up others.
            self.leave_queue(id);
            return Poll::Pending;
        }
        let blocked = self.outgoing.is_busy();
        match self.outgoing.mux.turn(id, stream.window, &mut stream.queued, blocked) {
            Turn::Yours(room) => Poll::Ready(Ok(want.min(room))),
            Turn::Waits => {
                keep(&mut stream.sender, cx);
                Poll::Pending
            }
        }
    }

    /// Waits until everything that the stream was given has gone to the transport.
    pub(super) fn poll_sent(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(gone())) };
        match &stream.failure {
            Some(failure) => Poll::Ready(Err(failure.clone())),
            None if stream.backlog.is_empty() => Poll::Ready(Ok(())),
            None => {
                keep(&mut stream.sender, cx);
                Poll::Pending
            }
        }
    }

    /// Waits until the end of our half has gone to the transport.
    pub(super) fn poll_ended(&mut self, id: u32, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(gone())) };
        match &stream.failure {
            _ if stream.sending.has_ended() => Poll::Ready(Ok(())),
            Some(failure) => Poll::Ready(Err(failure.clone())),
            None => {
                keep(&mut stream.sender, cx);
                Poll::Pending
            }
        }
    }

    /// Sends the first `length` bytes of `payload`, at most as many as were reserved.
    pub(super) fn send(&mut self, id: u32, payload: impl Payload, length: usize) -> Result<(), Error> {
        let Some(stream) = self.streams.get_mut(&id) else { return Err(gone()) };
        if let Some(failure) = &stream.failure {
            return Err(failure.clone());
        }
        if self.outgoing.uninterruptible || self.outgoing.mux.room(stream.window) < length as i64 {
            // Since the reservation, others have used the connection's window, the peer has reduced the stream's, or
            // the library has begun something that can't be interrupted.
            self.send_soon(id, payload.keep(length));
            self.let_next();
            return Ok(());
        }
        stream.window -= length as i64;
        self.outgoing.mux.take(length);
        self.incoming.calm.sent(length);
        self.expects_life();
        let (mut from, mut payload, mut kept) = (0, Some(payload), Bytes::new());
        while from < length {
            let part = (length - from).min(self.outgoing.mux.largest_frame());
            let head = Head { length: part as u32, kind: DATA, flags: 0, stream: id }.bytes();
            let taken = match &payload {
                Some(payload) if self.outgoing.stuck.is_empty() => {
                    self.offer(&mut [IoSlice::new(&head), IoSlice::new(&payload[from..from + part])])
                }
                _ => 0,
            };
            if taken < HEAD + part {
                if taken < HEAD {
                    self.outgoing.stuck.push_back(Bytes::copy_from_slice(&head[taken..]));
                }
                if let Some(payload) = payload.take() {
                    kept = payload.keep(length);
                }
                let rest = kept.slice(from + taken.saturating_sub(HEAD)..from + part);
                self.outgoing.stuck.push_back(rest);
            }
            from += part;
        }
        if self.outgoing.pace.one_more() && self.has_task && !self.in_turn && !self.leaving {
            self.flush_now();
        } else {
            self.ask_for_flush();
        }
        self.let_next();
        Ok(())
    }

    /// Sends bytes as soon as the stream is open and the windows have room.
    pub(super) fn send_soon(&mut self, id: u32, bytes: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.failure.is_some() {
            return;
        }
        debug_assert!(stream.backlog.is_empty());
        stream.backlog = bytes;
        self.send_backlog(id);
    }

    pub(super) fn send_backlog(&mut self, id: u32) {
        while let Some(stream) = self.streams.get_mut(&id)
            && stream.sending.is_open()
            && !stream.backlog.is_empty()
        {
            let room = self.outgoing.mux.room(stream.window);
            if room <= 0 {
                if stream.window > 0 {
                    self.outgoing.mux.backlog_waits(id);
                }
                return;
            }
            let part = stream.backlog.len().min(room as usize).min(self.outgoing.mux.largest_frame());
            let bytes = stream.backlog.split_to(part);
            stream.window -= part as i64;
            if stream.backlog.is_empty() {
                stream.wake_sender();
            }
            self.outgoing.mux.take(part);
            self.expects_life();
            let mut frame = Vec::with_capacity(HEAD + part);
            frame.extend_from_slice(&Head { length: part as u32, kind: DATA, flags: 0, stream: id }.bytes());
            frame.extend_from_slice(&bytes);
            self.write(&frame);
        }
    }

    /// Wakes the first stream that waits for room, if there is any.
    pub(super) fn let_next(&mut self) {
        if let Some(first) = self.outgoing.mux.next()
            && !self.outgoing.is_busy()
            && let Some(stream) = self.streams.get_mut(&first)
        {
            stream.wake_sender();
        }
    }

    /// The stream no longer waits for room.
    pub(super) fn leave_queue(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && std::mem::take(&mut stream.queued)
        {
            self.outgoing.mux.leaves(id);
        }
        self.let_next();
    }

    /// Tells the peer which rule it broke, as far as that is possible now.
    pub(super) fn complain(&mut self, cx: &mut Context<'_>, violation: Violation) {
        // A client's peer has opened no stream.
        self.write(&Head::goaway(0, violation.code.into()));
        let _ = self.poll_flush(cx);
    }
}

/// The error of a stream that is no longer known.
fn gone() -> Error {
    Error::Protocol("the stream is gone".into())
}

#[cfg(test)]
impl Outgoing {
    pub(super) fn stuck_frames(&self) -> usize {
        self.stuck.len()
    }
}
