//! What comes from the peer: DATA to its streams, everything else to the library.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

use bytes::{Buf, Bytes, BytesMut};
use h2::Reason;
use leno_tls::buffer::{Buffer, ReadSize};
use tokio::io::ReadBuf;

use super::calm::{BROKEN, Calm, GIVEN_UP, OF_DATA, OF_HEADERS};
use super::chunks::{Chunks, SLICES};
use super::credit::Credit;
use super::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEAD, HEADERS, Head, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE,
    PADDED, PUSH_PROMISE, Piece, RST_STREAM, SETTINGS, Splitter, WINDOW_UPDATE, word,
};
use super::outgoing::Opened;
use super::stream::{Stream, write_now};
use super::{Carrier, DEFAULT_WINDOW, LARGEST_READ, Role};
use crate::window::Ledger;
use crate::{Error, Settings};

/// Whole frames that may wait for the library, bytes; beyond, nothing is read until it has taken
/// some: it may be waiting for the peer to read its answers.
const FOR_LIBRARY: usize = 64 << 10;

/// Memory for the library's frames that a connection keeps while there are none, bytes.
const KEPT: usize = 1 << 10;

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

/// Largest window a peer may ask for (RFC 9113 §6.9.1).
pub(super) const LARGEST_WINDOW: i64 = (1 << 31) - 1;

pub(super) struct Incoming {
    splitter: Splitter,
    current: Current,
    /// The stream whose header block has begun: only its CONTINUATION may follow (RFC 9113 §6.10).
    header_block: Option<u32>,
    largest_frame: u32,
    /// Frames for the library. The last may be incomplete.
    for_library: BytesMut,
    /// Bytes of it that are whole frames.
    whole: usize,
    /// The library, where it waits for a frame.
    pub(super) library: Option<Waker>,
    /// Nothing is read until the library has taken some.
    pub(super) paused: bool,
    /// The transport ended. The library is told once it has got everything else.
    end: Option<io::Result<()>>,
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
    lenient: u16,
}

/// What the frame is that is coming in.
enum Current {
    /// One for the library.
    Library(Head),
    Data(Data),
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
}

/// The peer broke a rule that the library can't see broken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Violation {
    pub(crate) code: Reason,
    what: &'static str,
}

impl Violation {
    pub(crate) fn error(self) -> Error {
        Error::Protocol(self.what.into())
    }
}

impl Incoming {
    pub(super) fn new(role: Role, settings: &Settings) -> Self {
        // A server's peer begins with a fixed text (RFC 9113 §3.4), which the library judges.
        let preface = if role == Role::Server { 24 } else { 0 };
        Self {
            splitter: Splitter::new(preface),
            current: Current::Library(Head { length: 0, kind: SETTINGS, flags: 0, stream: 0 }),
            header_block: None,
            largest_frame: settings.max_frame_size,
            for_library: BytesMut::new(),
            whole: 0,
            library: None,
            paused: false,
            end: None,
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
        self.paused = self.whole > FOR_LIBRARY;
        !self.paused && self.end.is_none() && self.violation.is_none()
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

    pub(super) fn ended(&mut self, how: io::Result<()>) {
        let cut_short = || io::Error::other("the connection ended within a frame");
        self.end = Some(how.and_then(|()| if self.splitter.is_between_frames() { Ok(()) } else { Err(cut_short()) }));
        self.wake_library();
    }

    pub(super) fn forget(&mut self) {
        self.rest = None;
        self.for_library = BytesMut::new();
        self.whole = 0;
        self.end.get_or_insert_with(|| Err(io::ErrorKind::BrokenPipe.into()));
        self.wake_library();
    }

    fn wake_library(&mut self) {
        if let Some(library) = self.library.take() {
            library.wake();
        }
    }

    /// Gives the library as much as has come whole and has room, nothing at the end. `None` if it
    /// has to wait.
    pub(super) fn give_library(&mut self, room: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        if self.whole == 0 {
            return match self.end.as_mut()? {
                Ok(()) => Some(Ok(())),
                // Told once; it can't be copied.
                end => Some(std::mem::replace(end, Ok(()))),
            };
        }
        let length = room.remaining().min(self.whole);
        room.put_slice(&self.for_library[..length]);
        self.for_library.advance(length);
        self.whole -= length;
        if self.for_library.is_empty() && self.for_library.capacity() > KEPT {
            self.for_library = BytesMut::new();
        }
        Some(Ok(()))
    }

    fn library_frame_is_whole(&mut self) {
        self.whole = self.for_library.len();
        self.wake_library();
    }

    /// Whether the library may be told something now: nothing may interrupt a header block.
    pub(super) fn may_tell(&self) -> bool {
        self.header_block.is_none()
    }

    /// Tells the library of a stream's end, between two frames.
    pub(super) fn tell_end(&mut self, stream: u32) {
        let end = Head { length: 0, kind: DATA, flags: END_STREAM, stream };
        let begun = self.for_library[self.whole..].to_vec();
        self.for_library.truncate(self.whole);
        self.for_library.extend_from_slice(&end.bytes());
        self.library_frame_is_whole();
        self.for_library.extend_from_slice(&begun);
    }

    /// Has the library end a stream whose window the peer has opened too far by the WINDOW_UPDATE that
    /// has just become whole. The library knows of no other: its own count lies between nothing and the
    /// largest, so one frame may not be beyond that, and two always are. It takes the second for late
    /// where the first was enough.
    fn tell_overflow(&mut self, stream: u32) {
        let twice = Head::window_update(stream, LARGEST_WINDOW as u32);
        self.for_library.truncate(self.for_library.len() - twice.len());
        self.for_library.extend_from_slice(&twice);
        self.for_library.extend_from_slice(&twice);
    }

    /// The payload of the library's frame that has just become whole.
    fn payload(&self, head: Head) -> &[u8] {
        &self.for_library[self.for_library.len() - head.length as usize..]
    }
}

/// One read's bytes. Whoever needs some of them for longer keeps all of them, or copies few.
pub(super) struct Received {
    buffer: Option<Buffer>,
    frozen: Bytes,
    length: usize,
    /// Bytes of memory that it takes.
    capacity: usize,
}

impl Received {
    pub(super) fn new(buffer: Buffer, length: usize) -> Self {
        let capacity = buffer.len();
        Self { buffer: Some(buffer), frozen: Bytes::new(), length, capacity }
    }

    fn bytes(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[..self.length],
            None => &self.frozen,
        }
    }

    /// Some of the bytes, for longer. Few of them are copied, or they would keep all of the buffer,
    /// whoever else keeps it now: a program that has stopped reading would hold a multiple of its
    /// window. `thrifty`: nor may much of it lie idle.
    fn keep(&mut self, range: Range<usize>, thrifty: bool) -> Bytes {
        let least = if thrifty { self.capacity / 8 * 7 } else { self.capacity / 2 };
        if range.len() < least {
            return Bytes::copy_from_slice(&self.bytes()[range]);
        }
        if let Some(buffer) = self.buffer.take() {
            self.frozen = buffer.freeze(self.length);
        }
        self.frozen.slice(range)
    }
}

/// Payload of several frames that go to the same stream: one system call for all.
#[derive(Default)]
struct Gathered {
    stream: u32,
    ranges: [Range<u32>; SLICES],
    count: usize,
}

impl Carrier {
    /// Takes received bytes from `at` on apart and passes them on, as many as this turn may.
    pub(super) fn take_apart(&mut self, mut received: Received, mut at: usize) {
        let mut gathered = Gathered::default();
        while self.incoming.violation.is_none() && self.incoming.frames > 0 {
            let Some(piece) = self.incoming.splitter.next(received.bytes(), &mut at) else { break };
            match piece {
                Piece::Preface(range) => {
                    self.incoming.for_library.extend_from_slice(&received.bytes()[range]);
                    self.incoming.library_frame_is_whole();
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
                            self.incoming.for_library.extend_from_slice(&received.bytes()[range]);
                        }
                        Current::Data(_) => self.data(range, &mut received, &mut gathered),
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
        if head.length > self.incoming.largest_frame {
            return self.violated(Reason::FRAME_SIZE_ERROR, "the peer sent a larger frame than it was told to");
        }
        // The library would see it only of what it gets, and what is taken out here has an effect at once.
        if let Some(stream) = self.incoming.header_block
            && (head.kind, head.stream) != (CONTINUATION, stream)
        {
            return self.violated(Reason::PROTOCOL_ERROR, "the peer sent another frame inside a header block");
        }
        let ours = head.kind == DATA && head.stream % 2 == 1 && head.stream <= self.last_stream;
        let unanswered = |stream: &Stream| self.role == Role::Client && !stream.receiving.is_answered();
        if !ours
            || self.streams.get(&head.stream).is_some_and(|stream| stream.receiving.has_ended() || unanswered(stream))
        {
            // Whatever is wrong with it, the library says so.
            self.incoming.for_library.extend_from_slice(&head.bytes());
            self.incoming.current = Current::Library(head);
            return;
        }
        let stream = self.streams.get_mut(&head.stream);
        if !self.incoming.credit.take(head.length) || stream.is_some_and(|stream| !stream.credit.take(head.length)) {
            self.violated(Reason::FLOW_CONTROL_ERROR, "the peer sent more than the window it was given");
        }
        self.incoming.current = Current::Data(Data {
            stream: head.stream,
            ends: head.has(END_STREAM),
            padded: head.has(PADDED),
            left: head.length,
            brings: head.length > 0,
        });
    }

    fn frame_ends(&mut self, received: &mut Received, gathered: &mut Gathered) {
        match self.incoming.current {
            Current::Data(Data { stream, ends, padded, brings, .. }) => {
                if padded {
                    // Of length 0, without a place for the padding's length.
                    return self.bad_padding();
                }
                if brings {
                    self.incoming.calm.earn(OF_DATA);
                } else if !ends {
                    self.brings_nothing(1);
                }
                if ends {
                    self.deliver(received, gathered);
                    let role = self.role;
                    if self.streams.get_mut(&stream).is_none_or(|stream| stream.receiving.end_beside(role)) {
                        self.incoming.tell_end(stream);
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
                let in_block = self.incoming.header_block.is_some();
                if self.library_needs(head) {
                    self.incoming.library_frame_is_whole();
                    if in_block && self.incoming.header_block.is_none() {
                        self.tell_late_ends();
                    }
                } else {
                    let before = self.incoming.for_library.len() - HEAD - head.length as usize;
                    self.incoming.for_library.truncate(before);
                }
            }
        }
    }

    fn tell_calm(&mut self, head: Head) {
        match head.kind {
            HEADERS => self.incoming.calm.earn(OF_HEADERS),
            // There are few in a block, by the library.
            CONTINUATION => {}
            RST_STREAM
                if self.role == Role::Server
                    && self.streams.get(&head.stream).is_some_and(|s| !s.sending.is_open()) =>
            {
                self.brings_nothing(GIVEN_UP);
            }
            _ => self.brings_nothing(1),
        }
    }

    /// A client's request was reset by the library, with this reason. A client may have as many served and
    /// reset as it likes by breaking a rule in each (CVE-2025-8671).
    pub(super) fn was_reset_for(&mut self, reason: Reason) {
        if self.role == Role::Server && matches!(reason, Reason::PROTOCOL_ERROR | Reason::FLOW_CONTROL_ERROR) {
            self.brings_nothing(BROKEN);
        }
    }

    fn brings_nothing(&mut self, frames: u32) {
        if !self.incoming.calm.spend(frames) {
            let what = "the peer floods the connection with frames that bring nothing (ENHANCE_YOUR_CALM)";
            self.violated(Reason::ENHANCE_YOUR_CALM, what);
        }
    }

    /// Nothing is read from such a peer any more.
    pub(super) fn violated(&mut self, code: Reason, what: &'static str) {
        self.incoming.violation.get_or_insert(Violation { code, what });
    }

    fn bad_padding(&mut self) {
        self.violated(Reason::PROTOCOL_ERROR, "the peer's padding is longer than its frame");
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
            Some(stream) if stream.is_listened_to() => {}
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

    fn receive_ends(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.receiving.end();
            stream.held.promise(0);
            stream.wake_reader();
        }
        self.forget_if_over(id);
    }

    /// A frame that is not DATA is whole. Takes from it what concerns streams; says whether the
    /// library has to see it.
    fn library_needs(&mut self, head: Head) -> bool {
        match head.kind {
            HEADERS => {
                if self.role == Role::Server && head.stream > self.last_stream && head.stream % 2 == 1 {
                    self.begin(head.stream);
                }
                if let Some(stream) = self.streams.get_mut(&head.stream) {
                    stream.receiving.answer();
                }
                if head.has(END_STREAM) {
                    self.receive_ends(head.stream);
                }
                self.incoming.header_block = (!head.has(END_HEADERS)).then_some(head.stream);
            }
            PUSH_PROMISE => self.incoming.header_block = (!head.has(END_HEADERS)).then_some(head.stream),
            CONTINUATION if head.has(END_HEADERS) => self.incoming.header_block = None,
            RST_STREAM if head.length == 4 => {
                let code = Reason::from(word(self.incoming.payload(head), 0));
                self.stream_fails(head.stream, Error::Reset { code, by_peer: true });
            }
            SETTINGS if head.stream == 0 && !head.has(ACK) => self.peer_settings(head),
            // It has heard of ours. What was on its way when it did, has come before.
            SETTINGS if head.stream == 0 => self.incoming.lenient = 0,
            GOAWAY if head.stream == 0 => {
                let (last, code) = (word(self.incoming.payload(head), 0), word(self.incoming.payload(head), 4));
                self.peer_leaves(last & (u32::MAX >> 1), Reason::from(code));
            }
            WINDOW_UPDATE if head.length == 4 => {
                let increment = word(self.incoming.payload(head), 0) & (u32::MAX >> 1);
                match self.window_opens(head.stream, i64::from(increment)) {
                    Opened::Here => return false,
                    Opened::Senseless => {}
                    Opened::TooFar => self.incoming.tell_overflow(head.stream),
                }
            }
            _ => {}
        }
        true
    }

    /// Tells the library of the ends that came due inside a header block.
    fn tell_late_ends(&mut self) {
        for (id, stream) in &mut self.streams {
            if stream.receiving.take_due() {
                self.incoming.tell_end(*id);
            }
        }
    }

    pub(super) fn stream_fails(&mut self, id: u32, error: Error) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.fail(error);
            self.leave_queue(id);
            self.forget_if_over(id);
        }
    }

    fn peer_settings(&mut self, head: Head) {
        let settings = self.incoming.payload(head);
        let (mut window, mut frame) = (None, None);
        // What makes no sense ends the connection in a moment, by the library.
        for setting in settings.chunks_exact(6) {
            let (name, value) = (u16::from_be_bytes([setting[0], setting[1]]), word(setting, 2));
            match name {
                INITIAL_WINDOW_SIZE => window = Some(i64::from(value)).filter(|window| *window <= LARGEST_WINDOW),
                MAX_FRAME_SIZE => frame = Some(value as usize).filter(|size| (1 << 14..1 << 24).contains(size)),
                _ => {}
            }
        }
        if let Some(frame) = frame {
            self.outgoing.largest_frame = frame;
        }
        if let Some(window) = window {
            self.initial_window_is(window);
        }
    }

    /// The peer closes the connection, and did nothing for our streams after `last`.
    fn peer_leaves(&mut self, last: u32, code: Reason) {
        if self.role != Role::Client {
            return;
        }
        let too_late: Vec<u32> = self.streams.keys().copied().filter(|id| *id > last).collect();
        for id in too_late {
            self.stream_fails(id, Error::GoAway { code, by_peer: true });
        }
    }
}
