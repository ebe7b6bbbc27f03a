//! Applies what the library writes to the carrier's streams: they open, end and fail with it.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::Reason;

use super::passing::Passed;
use super::{Carrier, Role, closed};
use crate::Error;
use crate::frame::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, Head};

/// How many bytes the library may write while the transport takes nothing.
const FROM_LIBRARY: usize = 64 << 10;

impl Carrier {
    /// Takes what the library writes.
    pub(super) fn poll_library_write(&mut self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.io.is_none() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.outgoing.stuck.iter().map(Bytes::len).sum::<usize>() > FROM_LIBRARY {
            self.outgoing.library = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.append(bytes);
        // Frames that result from these are sent after them.
        self.outgoing.uninterruptible = true;
        let mut at = 0;
        while let Some(passed) = self.outgoing.passing.next(bytes, &mut at) {
            match passed {
                Passed::Begins(head) => {
                    if matches!(head.kind, HEADERS | DATA) {
                        self.expects_life();
                    }
                    if head.kind == HEADERS && self.role == Role::Client {
                        self.begin(head.stream);
                    }
                }
                Passed::Resets { stream, code } => {
                    let code = Reason::from(code);
                    self.was_reset_for(code);
                    self.stream_fails(stream, Error::Reset { code, by_peer: false });
                }
                Passed::Leaves { last, code } => {
                    self.outgoing.goodbye = Some(Reason::from(code));
                    self.nothing_served_after(last);
                }
                Passed::Whole(head) => self.library_frame_passed(head),
            }
        }
        if self.outgoing.passing.may_interrupt() {
            self.outgoing.uninterruptible = false;
            let held_back = std::mem::take(&mut self.outgoing.held_back);
            if !held_back.is_empty() {
                self.append(&held_back);
            }
            self.tell_what_is_owed();
            self.let_next();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// The server closes the connection in good order. The library neither processes nor answers later requests.
    fn nothing_served_after(&mut self, last: u32) {
        if self.role != Role::Server {
            return;
        }
        self.last_served = last;
        let late: Vec<u32> =
            self.streams.iter().filter(|(id, stream)| **id > last && !stream.is_held()).map(|(id, _)| *id).collect();
        for id in late {
            self.forget(id);
        }
    }

    fn library_frame_passed(&mut self, head: Head) {
        let ends = matches!(head.kind, DATA | HEADERS) && head.has(END_STREAM);
        let Some(stream) = self.streams.get_mut(&head.stream) else { return };
        if ends {
            stream.sending.end();
            stream.wake_sender();
        }
        if matches!(head.kind, HEADERS | CONTINUATION) && head.has(END_HEADERS) && stream.sending.open() {
            stream.wake_sender();
            // A refused request earns its peer nothing.
            if !stream.sending.has_ended() {
                self.incoming.calm.opened();
            }
            self.send_backlog(head.stream);
            // The stream's own window is announced in the same TLS record.
            self.consumed(head.stream, 0);
        }
        if ends {
            // A stream that gave up a write and ended may still be in the queue before others.
            self.leave_queue(head.stream);
            self.forget_if_over(head.stream);
        }
    }

    /// The error of streams that are open when the library closes the connection.
    pub(super) fn last_word(&self) -> Error {
        match self.outgoing.goodbye {
            Some(code) if code != Reason::NO_ERROR => Error::GoAway { code, by_peer: false },
            _ => closed(),
        }
    }
}
