//! What goes to the peer: DATA of streams between the frames of the library.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use h2::Reason;
use leno_tls::buffer::Buffer;
use tokio::io::AsyncWrite;

use super::calm::OF_DATA;
use super::frame::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEAD, HEADERS, Head, Piece, RST_STREAM, Splitter, word,
};
use super::incoming::{LARGEST_WINDOW, Violation};
use super::{Carrier, DEFAULT_FRAME, DEFAULT_WINDOW, Role, closed};
use crate::Error;
use crate::waking::keep;

/// What the library may write while the transport takes nothing, bytes.
const FROM_LIBRARY: usize = 64 << 10;

pub(super) struct Outgoing {
    /// Of what the library writes.
    splitter: Splitter,
    /// The library's frame that is passing.
    current: Head,
    /// The library's header block is not complete (RFC 9113 §6.10).
    in_headers: bool,
    /// The library has yet to write the rest of something that no frame may interrupt.
    uninterruptible: bool,
    /// Frames that wait for that.
    held_back: Vec<u8>,
    /// What the transport had no room for; goes before anything else.
    stuck: VecDeque<Bytes>,
    /// The transport has bytes that it may keep until it is flushed.
    pub(super) unflushed: bool,
    /// Found by somebody who can do nothing about it.
    error: Option<io::Error>,
    /// Bytes that the peer will take on this connection.
    window: i64,
    /// What the peer takes of a new stream.
    pub(super) initial_window: i64,
    pub(super) largest_frame: usize,
    /// Streams with something to send that the connection has no room for, in their order. The
    /// first is woken when there is room, and lets the next on when it has sent.
    pub(super) queue: VecDeque<u32>,
    /// Streams whose backlog waits for the connection's window.
    backlogged: Vec<u32>,
    /// Streams whose peer is to be told of their credit once the transport takes more.
    owing: Vec<u32>,
    /// Of the library's last GOAWAY.
    goodbye: Option<Reason>,
    /// The library, where it waits until the transport takes more.
    library: Option<Waker>,
    pace: Pace,
}

/// What a WINDOW_UPDATE led to.
pub(super) enum Opened {
    /// The library need not see it.
    Here,
    /// The library has to see it, and judges it.
    Senseless,
    /// Its stream has a larger window now than there is: an error of the stream (RFC 9113 §6.9.1).
    TooFar,
}

thread_local! {
    /// How often this thread has gone to sleep.
    static SLEEPS: Cell<u64> = const { Cell::new(0) };
}

/// Says that this thread has nothing left to do and is about to sleep. Where that is said, what a
/// stream sends leaves at once as long as each waking of the thread brings one message; where it
/// is not, and where there are more, it leaves when the others have had their turn, all of it in
/// one record and one system call.
pub fn thread_sleeps() {
    SLEEPS.set(SLEEPS.get().wrapping_add(1));
}

/// How many messages one waking of the thread brings.
#[derive(Default)]
struct Pace {
    sleeps: u64,
    sent: u32,
    /// The waking before brought one at most.
    single: bool,
}

impl Pace {
    /// One more is sent; says whether it is likely to be the only one.
    fn one_more(&mut self) -> bool {
        let sleeps = SLEEPS.get();
        if sleeps != self.sleeps {
            *self = Self { sleeps, sent: 0, single: self.sent <= 1 };
        }
        self.sent = self.sent.saturating_add(1);
        self.single && self.sent == 1
    }
}

impl Outgoing {
    pub(super) fn new(role: Role) -> Self {
        // A client begins with a fixed text (RFC 9113 §3.4).
        let preface = if role == Role::Client { 24 } else { 0 };
        Self {
            splitter: Splitter::new(preface),
            current: Head { length: 0, kind: DATA, flags: 0, stream: 0 },
            in_headers: false,
            uninterruptible: false,
            held_back: Vec::new(),
            stuck: VecDeque::new(),
            unflushed: false,
            error: None,
            window: i64::from(DEFAULT_WINDOW),
            initial_window: i64::from(DEFAULT_WINDOW),
            largest_frame: DEFAULT_FRAME,
            queue: VecDeque::new(),
            backlogged: Vec::new(),
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

    fn wake_library(&mut self) {
        if let Some(library) = self.library.take() {
            library.wake();
        }
    }

    /// What is given now would have to wait here.
    pub(super) fn is_busy(&self) -> bool {
        !self.stuck.is_empty() || self.uninterruptible
    }

    /// Nobody may send DATA now.
    fn is_blocked(&self) -> bool {
        self.is_busy() || self.window <= 0
    }
}

impl Carrier {
    /// Sends a whole frame, before anything that is given later.
    pub(super) fn write(&mut self, frame: &[u8]) {
        if self.outgoing.uninterruptible {
            self.outgoing.held_back.extend_from_slice(frame);
        } else {
            self.append(frame);
        }
    }

    /// Sends bytes after those that were given before.
    fn append(&mut self, frame: &[u8]) {
        let taken = if self.outgoing.stuck.is_empty() { self.offer(&mut [IoSlice::new(frame)]) } else { 0 };
        if taken < frame.len() {
            self.outgoing.stuck.push_back(Bytes::copy_from_slice(&frame[taken..]));
        }
        self.ask_for_flush();
    }

    /// Gives the transport what it takes now; says how much. With an error, all of it: nothing
    /// will be sent any more.
    fn offer(&mut self, mut slices: &mut [IoSlice<'_>]) -> usize {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.leaving {
            // Whoever closes the transport waits for it, and would not be woken any more.
            return total;
        }
        let Some(io) = &mut self.io else { return total };
        let mut cx = Context::from_waker(self.driver.as_ref().unwrap_or(Waker::noop()));
        let mut taken = 0;
        while taken < total {
            match Pin::new(&mut *io).poll_write_vectored(&mut cx, slices) {
                Poll::Pending => break,
                Poll::Ready(Ok(length)) if length > 0 => {
                    taken += length;
                    IoSlice::advance_slices(&mut slices, length);
                }
                Poll::Ready(failed) => {
                    let error = failed.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into());
                    self.outgoing.error.get_or_insert(error);
                    self.wake_driver();
                    return total;
                }
            }
        }
        taken
    }

    /// Sends all that was gathered; ready when the transport has it.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.outgoing.error.take() {
            return Poll::Ready(Err(error));
        }
        let Some(io) = &mut self.io else { return Poll::Ready(Ok(())) };
        if !self.outgoing.stuck.is_empty() {
            while let Some(first) = self.outgoing.stuck.front_mut() {
                let length = ready!(Pin::new(&mut *io).poll_write(cx, first))?;
                if length == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                first.advance(length);
                if first.is_empty() {
                    self.outgoing.stuck.pop_front();
                }
            }
            self.outgoing.wake_library();
            self.tell_what_is_owed();
            self.let_next();
        }
        let Some(io) = &mut self.io else { return Poll::Ready(Ok(())) };
        if self.outgoing.unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.outgoing.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

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
        // What they lead to comes after them.
        self.outgoing.uninterruptible = true;
        let mut at = 0;
        while let Some(piece) = self.outgoing.splitter.next(bytes, &mut at) {
            match piece {
                Piece::Preface(_) => {}
                Piece::Head(head) => {
                    self.outgoing.current = head;
                    if matches!(head.kind, HEADERS | DATA) {
                        self.expects_life();
                    }
                    if head.kind == HEADERS && self.role == Role::Client {
                        self.begin(head.stream);
                    }
                    if head.length == 0 {
                        self.library_frame_passed(head);
                    }
                }
                Piece::Payload(range, last) => {
                    let head = self.outgoing.current;
                    if head.kind == RST_STREAM && range.len() == 4 {
                        let code = Reason::from(word(bytes, range.start));
                        self.was_reset_for(code);
                        self.stream_fails(head.stream, Error::Reset { code, by_peer: false });
                    }
                    if head.kind == GOAWAY && range.len() >= 8 {
                        self.outgoing.goodbye = Some(Reason::from(word(bytes, range.start + 4)));
                        self.nothing_served_after(word(bytes, range.start) & (u32::MAX >> 1));
                    }
                    if last {
                        self.library_frame_passed(head);
                    }
                }
            }
        }
        if self.outgoing.splitter.is_between_frames() && !self.outgoing.in_headers {
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

    /// A server takes its leave: the library does not look at later requests, nor answer them.
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
        if matches!(head.kind, HEADERS | CONTINUATION) {
            self.outgoing.in_headers = !head.has(END_HEADERS);
        }
        let ends = matches!(head.kind, DATA | HEADERS) && head.has(END_STREAM);
        let Some(stream) = self.streams.get_mut(&head.stream) else { return };
        if ends {
            stream.sending.end();
        }
        if matches!(head.kind, HEADERS | CONTINUATION) && head.has(END_HEADERS) && stream.sending.open() {
            stream.wake_sender();
            self.send_backlog(head.stream);
            // The peer hears of the stream's own window in the same record.
            self.consumed(head.stream, 0);
        }
        if ends {
            // Who gave up a write, and ended the stream instead, may still stand before others.
            self.leave_queue(head.stream);
            self.forget_if_over(head.stream);
        }
    }

    /// The stream's credit is told once the transport takes more. Until then it adds up: a peer that
    /// reads nothing must not have one frame after the other wait for it.
    pub(super) fn owe(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.owing, true)
        {
            self.outgoing.owing.push(id);
        }
    }

    fn tell_what_is_owed(&mut self) {
        self.tell_connection_credit();
        for id in std::mem::take(&mut self.outgoing.owing) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.owing = false;
                self.consumed(id, 0);
            }
        }
    }

    /// Why streams end that are open when the library closes the connection.
    pub(super) fn last_word(&self) -> Error {
        match self.outgoing.goodbye {
            Some(code) if code != Reason::NO_ERROR => Error::GoAway { code, by_peer: false },
            _ => closed(),
        }
    }

    /// Waits until the stream may send; says how much, `want` at most.
    pub(super) fn poll_reserve(&mut self, id: u32, cx: &Context<'_>, want: usize) -> Poll<Result<usize, Error>> {
        let blocked = self.outgoing.is_blocked();
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(gone())) };
        if let Some(failure) = &stream.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        let ready = stream.sending.is_open() && stream.backlog.is_empty() && stream.window > 0;
        let first = self.outgoing.queue.front().is_none_or(|first| *first == id);
        if !ready || blocked || !first {
            keep(&mut stream.sender, cx);
            if !ready {
                // Nobody is to wait for one who could not send anyway.
                self.leave_queue(id);
            } else if !std::mem::replace(&mut stream.queued, true) {
                self.outgoing.queue.push_back(id);
            }
            return Poll::Pending;
        }
        if std::mem::take(&mut stream.queued) {
            self.outgoing.queue.pop_front();
        }
        Poll::Ready(Ok(want.min(stream.window.min(self.outgoing.window) as usize)))
    }

    /// Waits until all that the stream was given has gone to the transport.
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

    /// Sends the first `length` bytes of `buffer`; at most as many as were reserved.
    pub(super) fn send(&mut self, id: u32, buffer: Buffer, length: usize) -> Result<(), Error> {
        let Some(stream) = self.streams.get_mut(&id) else { return Err(gone()) };
        if let Some(failure) = &stream.failure {
            return Err(failure.clone());
        }
        if self.outgoing.uninterruptible || stream.window.min(self.outgoing.window) < length as i64 {
            // Since it was reserved, others have used the connection's window, the peer has changed
            // its mind, or the library has begun something.
            self.send_soon(id, buffer.freeze(length));
            self.let_next();
            return Ok(());
        }
        stream.window -= length as i64;
        self.outgoing.window -= length as i64;
        self.incoming.calm.earn(OF_DATA + (length >> 10) as u32);
        self.expects_life();
        let (mut from, mut buffer, mut frozen) = (0, Some(buffer), Bytes::new());
        while from < length {
            let part = (length - from).min(self.outgoing.largest_frame);
            let head = Head { length: part as u32, kind: DATA, flags: 0, stream: id }.bytes();
            let taken = match &buffer {
                Some(buffer) if self.outgoing.stuck.is_empty() => {
                    self.offer(&mut [IoSlice::new(&head), IoSlice::new(&buffer[from..from + part])])
                }
                _ => 0,
            };
            if taken < HEAD + part {
                if taken < HEAD {
                    self.outgoing.stuck.push_back(Bytes::copy_from_slice(&head[taken..]));
                }
                if let Some(buffer) = buffer.take() {
                    frozen = buffer.freeze(length);
                }
                let rest = frozen.slice(from + taken.saturating_sub(HEAD)..from + part);
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

    /// Sends what was gathered outside of the task's turns.
    fn flush_now(&mut self) {
        self.outgoing.unflushed = true;
        let Some(driver) = self.driver.clone() else { return };
        if let Poll::Ready(Err(error)) = self.poll_flush(&mut Context::from_waker(&driver)) {
            self.outgoing.error = Some(error);
            driver.wake();
        }
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

    fn send_backlog(&mut self, id: u32) {
        while let Some(stream) = self.streams.get_mut(&id)
            && stream.sending.is_open()
            && !stream.backlog.is_empty()
        {
            let room = stream.window.min(self.outgoing.window);
            if room <= 0 {
                // Once: the peer may open the stream's own window any number of times meanwhile.
                if stream.window > 0 && !self.outgoing.backlogged.contains(&id) {
                    self.outgoing.backlogged.push(id);
                }
                return;
            }
            let part = stream.backlog.len().min(room as usize).min(self.outgoing.largest_frame);
            let bytes = stream.backlog.split_to(part);
            stream.window -= part as i64;
            if stream.backlog.is_empty() {
                stream.wake_sender();
            }
            self.outgoing.window -= part as i64;
            self.expects_life();
            let mut frame = Vec::with_capacity(HEAD + part);
            frame.extend_from_slice(&Head { length: part as u32, kind: DATA, flags: 0, stream: id }.bytes());
            frame.extend_from_slice(&bytes);
            self.write(&frame);
        }
    }

    /// The peer takes so many bytes more.
    pub(super) fn window_opens(&mut self, id: u32, increment: i64) -> Opened {
        if increment == 0 || id > self.last_stream {
            return Opened::Senseless;
        }
        if id == 0 {
            self.outgoing.window += increment;
            if self.outgoing.window > LARGEST_WINDOW {
                self.too_large_a_window();
            }
            for id in std::mem::take(&mut self.outgoing.backlogged) {
                self.send_backlog(id);
            }
            self.let_next();
        } else if let Some(stream) = self.streams.get_mut(&id) {
            let window = stream.window + increment;
            stream.window = window.min(LARGEST_WINDOW);
            stream.wake_sender();
            self.send_backlog(id);
            if window > LARGEST_WINDOW {
                return Opened::TooFar;
            }
        }
        Opened::Here
    }

    /// What the peer takes of each stream has changed (RFC 9113 §6.9.2).
    pub(super) fn initial_window_is(&mut self, window: i64) {
        let more = window - std::mem::replace(&mut self.outgoing.initial_window, window);
        let mut too_large = false;
        let mut backlogged = Vec::new();
        for (id, stream) in &mut self.streams {
            stream.window += more;
            too_large |= stream.window > LARGEST_WINDOW;
            stream.wake_sender();
            if !stream.backlog.is_empty() {
                backlogged.push(*id);
            }
        }
        for id in backlogged {
            self.send_backlog(id);
        }
        if too_large {
            self.too_large_a_window();
        }
    }

    fn too_large_a_window(&mut self) {
        self.violated(Reason::FLOW_CONTROL_ERROR, "the peer opened a window beyond the largest there is");
    }

    /// Wakes the first of those who wait for room, if there is some.
    pub(super) fn let_next(&mut self) {
        if let Some(first) = self.outgoing.queue.front()
            && !self.outgoing.is_blocked()
            && let Some(stream) = self.streams.get_mut(first)
        {
            stream.wake_sender();
        }
    }

    /// The stream does not wait for room any more.
    pub(super) fn leave_queue(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && std::mem::take(&mut stream.queued)
        {
            self.outgoing.queue.retain(|queued| *queued != id);
        }
        self.let_next();
    }

    /// Tells the peer what it did wrong, as far as that can be done now.
    pub(super) fn complain(&mut self, cx: &mut Context<'_>, violation: Violation) {
        // The peer of a client has opened no stream.
        self.write(&Head::goaway(0, violation.code.into()));
        let _ = self.poll_flush(cx);
    }
}

/// A stream that nobody should hold any more.
fn gone() -> Error {
    Error::Protocol("the stream is gone".into())
}

#[cfg(test)]
impl Outgoing {
    pub(super) fn window(&self) -> i64 {
        self.window
    }

    pub(super) fn stuck_frames(&self) -> usize {
        self.stuck.len()
    }

    pub(super) fn backlogged(&self) -> &[u32] {
        &self.backlogged
    }
}
