//! What comes from the peer: DATA to its streams, everything else to the library.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use h2::Reason;
use leno_tls::buffer::ReadSize;

use super::calm::Calm;
use super::chunks::{Chunks, SLICES};
use super::credit::Credit;
use super::frame::{DATA, END_STREAM, HEAD, HEADERS, Head, PADDED, Piece, RST_STREAM, SETTINGS, Splitter};
use super::inbox::Inbox;
use super::judge::{Judge, Verdict};
use super::received::{Gathered, Received};
use super::stream::{Stream, write_now};
use super::violation::Violation;
use super::{Carrier, DEFAULT_WINDOW, LARGEST_READ, Role};
use crate::Settings;
use crate::window::Ledger;

/// What is left of a frame from so many bytes on is read by itself, bytes: a TLS record's. With less, the records that
/// small frames share would be cut at each of these.
const LARGE: usize = 16 << 10;

/// Frames taken apart in one turn. A read may bring twenty thousand that bring nothing or a byte each, and others on the
/// thread would wait for all of them: for 50 µs, so.
pub(super) const FRAMES: u32 = 256;

/// What a frame counts that begins or ends a request. With more, requests that are given up at once would
/// be handed out before there are enough in one turn for the library to tell.
const OF_REQUESTS: u32 = 2;

/// What another frame counts that is not DATA. The library takes its time, and answers.
pub(super) const OF_OTHERS: u32 = 4;

pub(super) struct Incoming {
    splitter: Splitter,
    current: Current,
    judge: Judge,
    /// Frames for the library.
    pub(super) inbox: Inbox,
    /// Nothing is read until the library has taken some.
    pub(super) paused: bool,
    /// Once it has broken one, nothing of it is looked at any more.
    pub(super) violation: Option<Violation>,
    /// Who drives the connection knows.
    pub(super) reported: bool,
    pub(super) received: Arc<AtomicU64>,
    /// Bytes that may still be read in this turn.
    pub(super) budget: usize,
    /// Frames that may still be taken apart in this turn.
    pub(super) frames: u32,
    /// What a turn has read and not taken apart, and how much of it it has.
    pub(super) rest: Option<Box<(Received, usize)>>,
    pub(super) calm: Calm,
    pub(super) size: ReadSize,
    /// The connection's window.
    pub(super) credit: Credit,
    /// What that is to be.
    pub(super) target: u32,
    /// A stream's, before it is open, and at most.
    first_stream_window: u32,
    pub(super) stream_window: u32,
    /// What a peer that has not heard of a stream's window takes it to be larger, bytes.
    pub(super) lenient: u16,
}

/// What the frame is that is coming in.
enum Current {
    /// One for the library.
    Library(Head),
    Data(Data),
    /// One whose body nobody has to see.
    Ignored(Head),
}

struct Data {
    stream: u32,
    ends: bool,
    /// The length of the padding has yet to come.
    padded: bool,
    /// Payload without padding that has yet to come.
    left: u32,
    /// There is such payload.
    brings: bool,
    /// Bytes of it that went to a program.
    gained: u32,
}

impl Incoming {
    pub(super) fn new(role: Role, settings: &Settings) -> Self {
        // A server's peer begins with a fixed text (RFC 9113 §3.4), which the library judges.
        let preface = if role == Role::Server { 24 } else { 0 };
        Self {
            splitter: Splitter::new(preface),
            current: Current::Library(Head { length: 0, kind: SETTINGS, flags: 0, stream: 0 }),
            judge: Judge::new(
                settings,
                if role == Role::Server { settings.server_header_list } else { settings.client_header_list },
            ),
            inbox: Inbox::default(),
            paused: false,
            violation: None,
            reported: false,
            received: Arc::default(),
            budget: 0,
            // Until there is a task, by what may wait for the library.
            frames: u32::MAX,
            rest: None,
            calm: Calm::default(),
            size: ReadSize::new(LARGEST_READ),
            // The library tells the peer of what exceeds the default, first thing.
            credit: Credit::new(settings.connection_window),
            target: settings.connection_window,
            first_stream_window: settings.first_stream_window(),
            stream_window: settings.stream_window,
            // A server hears of it before it hears of a stream.
            lenient: if role == Role::Server {
                DEFAULT_WINDOW.saturating_sub(settings.first_stream_window()) as u16
            } else {
                0
            },
        }
    }

    pub(super) fn new_stream(&self, send_window: i64, ledger: &Arc<Ledger>) -> Stream {
        let window = self.first_stream_window;
        Stream::new(window, Credit::with_leniency(window, self.lenient), send_window, ledger)
    }

    pub(super) fn may_read(&mut self) -> bool {
        self.paused = self.inbox.is_full();
        !self.paused && !self.inbox.has_ended() && self.violation.is_none()
    }

    /// Bytes to read at once: what is left of a large frame, if that has begun, and else as many as
    /// load suggests, and the head of their frame. So a frame of 256 KiB that the peer's proxy has sent
    /// in one piece goes to its program in one piece; read without regard to frames, each read would bring
    /// the end of one and the beginning of the next, twice as many system calls and twice as many
    /// wakings of programs.
    pub(super) fn wanted(&self) -> usize {
        let (left, size) = (self.splitter.left(), self.size.bytes());
        if (LARGE..size).contains(&left) { left } else { size + HEAD }
    }

    /// A read has brought `length` bytes where so many were `wanted`.
    pub(super) fn observe(&mut self, length: usize, wanted: usize) {
        // One that was to end with its frame tells nothing of the load.
        if wanted > self.size.bytes() {
            self.size.observe(length, wanted);
        }
    }

    /// The transport has ended.
    pub(super) fn ended(&mut self, how: io::Result<()>) {
        let cut_short = || io::Error::other("the connection ended within a frame");
        self.inbox.end(how.and_then(|()| if self.splitter.is_between_frames() { Ok(()) } else { Err(cut_short()) }));
    }

    pub(super) fn forget(&mut self) {
        self.rest = None;
        self.inbox.forget();
    }

    /// Whether the library may be told something now: nothing may interrupt a header block.
    pub(super) fn may_tell(&self) -> bool {
        !self.judge.is_inside_block()
    }
}

impl Carrier {
    /// Takes received bytes from `at` on apart and passes them on, as many as this turn may.
    pub(super) fn take_apart(&mut self, mut received: Received, mut at: usize) {
        let mut gathered = Gathered::default();
        while self.incoming.violation.is_none() && self.incoming.frames > 0 {
            let Some(piece) = self.incoming.splitter.next(received.bytes(), &mut at) else { break };
            match piece {
                Piece::Preface(range) => {
                    self.incoming.inbox.add(&received.bytes()[range]);
                    self.incoming.inbox.frame_is_whole();
                }
                Piece::Head(head) => {
                    self.frame_begins(head);
                    if head.length == 0 && self.incoming.violation.is_none() {
                        self.frame_ends(&mut received, &mut gathered);
                    }
                }
                Piece::Payload(range, last) => {
                    match &mut self.incoming.current {
                        Current::Library(_) => {
                            self.incoming.inbox.add(&received.bytes()[range]);
                        }
                        Current::Data(_) => self.data(range, &mut received, &mut gathered),
                        Current::Ignored(_) => {}
                    }
                    if last {
                        self.frame_ends(&mut received, &mut gathered);
                    }
                }
            }
        }
        self.deliver(&mut received, &mut gathered);
        self.tell_connection_credit();
        if at < received.length && self.incoming.violation.is_none() {
            self.incoming.rest = Some(Box::new((received, at)));
        }
    }

    fn frame_begins(&mut self, head: Head) {
        let share = match head.kind {
            DATA => 1,
            HEADERS | RST_STREAM => OF_REQUESTS,
            _ => OF_OTHERS,
        };
        self.incoming.frames = self.incoming.frames.saturating_sub(share);
        match self.incoming.judge.begins(head) {
            Verdict::Taken => {}
            Verdict::Ignored => {
                self.incoming.current = Current::Ignored(head);
                return;
            }
            Verdict::Refused(violation) => return self.violated(violation),
        }
        if head.kind != DATA {
            self.incoming.inbox.add(&head.bytes());
            self.incoming.current = Current::Library(head);
            return;
        }
        let unanswered = |stream: &Stream| self.role == Role::Client && !stream.receiving.is_answered();
        let out_of_place = |stream: &Stream| stream.receiving.has_ended() || unanswered(stream);
        let was_opened = head.stream % 2 == 1 && head.stream <= self.last_stream;
        if !was_opened || self.streams.get(&head.stream).is_some_and(out_of_place) {
            // Whatever is wrong with it, the library says so, and need not see its body for that.
            let empty = Head { length: 0, flags: head.flags & END_STREAM, ..head };
            self.incoming.inbox.add(&empty.bytes());
            self.incoming.inbox.frame_is_whole();
            self.incoming.current = Current::Ignored(head);
            return;
        }
        let stream = self.streams.get_mut(&head.stream);
        if !self.incoming.credit.take(head.length) || stream.is_some_and(|stream| !stream.credit.take(head.length)) {
            let what = "the peer sent more than the window it was given";
            self.violated(Violation::new(Reason::FLOW_CONTROL_ERROR, what));
        }
        self.incoming.current = Current::Data(Data {
            stream: head.stream,
            ends: head.has(END_STREAM),
            padded: head.has(PADDED),
            left: head.length,
            brings: head.length > 0,
            gained: 0,
        });
    }

    fn frame_ends(&mut self, received: &mut Received, gathered: &mut Gathered) {
        match self.incoming.current {
            Current::Data(Data { stream, ends, padded, brings, gained, .. }) => {
                if padded {
                    // Of length 0, without a place for the padding's length.
                    return self.bad_padding();
                }
                if brings {
                    let borne = self.incoming.calm.received(gained);
                    self.is_calm(borne);
                } else if !ends {
                    self.brings_nothing(1);
                }
                if ends {
                    self.deliver(received, gathered);
                    let role = self.role;
                    if self.streams.get_mut(&stream).is_none_or(|stream| stream.receiving.end_beside(role)) {
                        self.incoming.inbox.tell_end(stream);
                    }
                    self.receive_ends(stream);
                }
            }
            Current::Library(head) => {
                if head.kind == RST_STREAM {
                    // What came before it comes first.
                    self.deliver(received, gathered);
                }
                self.tell_calm(head);
                let block_ended = self.incoming.judge.came(head);
                if self.library_needs(head) {
                    self.incoming.inbox.frame_is_whole();
                    if block_ended {
                        self.tell_late_ends();
                    }
                } else {
                    self.incoming.inbox.withdraw(head);
                }
            }
            Current::Ignored(head) => self.brings_nothing(1 + (head.length >> 10)),
        }
    }

    /// Nothing is read from such a peer any more.
    pub(super) fn violated(&mut self, violation: Violation) {
        self.incoming.violation.get_or_insert(violation);
    }

    fn bad_padding(&mut self) {
        self.violated(Violation::new(Reason::PROTOCOL_ERROR, "the peer's padding is longer than its frame"));
    }

    /// Payload of the current DATA frame.
    fn data(&mut self, mut range: Range<usize>, received: &mut Received, gathered: &mut Gathered) {
        let Current::Data(data) = &mut self.incoming.current else { return };
        let id = data.stream;
        if std::mem::take(&mut data.padded) {
            let padding = u32::from(received.bytes()[range.start]);
            range.start += 1;
            match data.left.checked_sub(1 + padding) {
                Some(left) => (data.left, data.brings) = (left, left > 0),
                None => return self.bad_padding(),
            }
            // Nobody will ever read it.
            self.consumed(id, 1 + padding);
        }
        let Current::Data(data) = &mut self.incoming.current else { return };
        let length = range.len().min(data.left as usize);
        data.left -= length as u32;
        if length == 0 {
            return;
        }
        match self.streams.get(&id) {
            Some(stream) if stream.is_listened_to() => data.gained += length as u32,
            _ => return self.consumed(id, length as u32),
        }
        if gathered.stream != id || gathered.count == SLICES {
            self.deliver(received, gathered);
            gathered.stream = id;
        }
        gathered.ranges[gathered.count] = range.start as u32..(range.start + length) as u32;
        gathered.count += 1;
    }

    /// Passes on what was gathered: to the program's socket as far as that takes it now, the rest
    /// waits for the stream's reader.
    fn deliver(&mut self, received: &mut Received, gathered: &mut Gathered) {
        let count = std::mem::take(&mut gathered.count);
        let ranges = &gathered.ranges[..count];
        let Some(stream) = self.streams.get_mut(&gathered.stream).filter(|_| count > 0) else { return };
        let mut written = 0;
        if let Some(sink) = &stream.sink
            && stream.chunks.is_empty()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            for (slice, range) in slices.iter_mut().zip(ranges) {
                *slice = IoSlice::new(&received.bytes()[range.start as usize..range.end as usize]);
            }
            // The relay meets an error again, and knows what to do.
            written = write_now(&sink.socket, &slices[..count]).unwrap_or(0);
            sink.meter.backward(written as u64);
        }
        stream.delivered += written as u64;
        let (mut skip, thrifty) = (written, stream.held.is_much());
        for range in ranges {
            let (start, end) = (range.start as usize, range.end as usize);
            let gone = skip.min(end - start);
            skip -= gone;
            if start + gone == end {
                continue;
            }
            stream.held.hold(end - start - gone);
            if Chunks::copies(end - start - gone) {
                stream.chunks.push_copy(&received.bytes()[start + gone..end]);
            } else {
                stream.chunks.push(received.keep(start + gone..end, thrifty));
            }
        }
        if !stream.chunks.is_empty() {
            stream.wake_reader();
        }
        self.consumed(gathered.stream, written as u32);
    }

    /// Received bytes have left this process, or will never be asked for.
    pub(super) fn consumed(&mut self, id: u32, bytes: u32) {
        self.incoming.credit.give(bytes);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.credit.give(bytes);
        stream.resize(self.incoming.stream_window);
        if !stream.wants_more() {
            return;
        }
        if self.outgoing.is_busy() {
            self.owe(id);
        } else if let Some(more) = stream.credit.due() {
            self.write(&Head::window_update(id, more));
        }
    }

    pub(super) fn tell_connection_credit(&mut self) {
        if !self.outgoing.is_busy()
            && let Some(more) = self.incoming.credit.due()
        {
            self.write(&Head::window_update(0, more));
        }
    }

    pub(super) fn receive_ends(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.receiving.end();
            stream.held.promise(0);
            stream.wake_reader();
        }
        self.forget_if_over(id);
    }
}
