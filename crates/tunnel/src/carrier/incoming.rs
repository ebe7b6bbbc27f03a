//! Passes received frames on: DATA to its stream, everything else to the library.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use leno_tls::buffer::ReadSize;

use super::chunks::{Chunks, SLICES};
use super::credit::Credit;
use super::demux::{Arrival, Demux, End, Taken};
use super::inbox::Inbox;
use super::received::{Gathered, Received};
use super::stream::Stream;
use super::violation::Violation;
use super::{Carrier, DEFAULT_WINDOW, LARGEST_READ, Role};
use crate::Settings;
use crate::calm::Calm;
use crate::frame::{END_STREAM, HEAD, Head, RST_STREAM};
use crate::sockets::write_now;
use crate::window::Ledger;

/// If at least this much of a frame is missing, bytes, it is read by itself. The value is the size of a TLS record.
/// With a lower one, records shared by small frames would be cut at each of them.
const LARGE: usize = 16 << 10;

/// How many frames without use a peer may send within ten seconds, besides those that it earns. A well-behaved peer sends
/// one for several useful ones, and a few a minute on its own. This many frames take a tenth of a second of a thread, in
/// many turns. With a lower limit, a flooding peer that reconnects after each cut would cost more by its handshakes than
/// by its frames.
const BORNE: u32 = 100_000;

/// The received bytes and their state.
pub(super) struct Incoming {
    pub(super) demux: Demux,
    /// Frames for the library.
    pub(super) inbox: Inbox,
    /// Nothing is read until the library has taken some frames.
    pub(super) paused: bool,
    /// Set when the peer has broken a rule. Nothing of it is handled any more.
    pub(super) violation: Option<Violation>,
    /// Whether the connection's driver was told.
    pub(super) reported: bool,
    pub(super) received: Arc<AtomicU64>,
    /// Bytes that may still be read in this turn.
    pub(super) budget: usize,
    /// The bytes that a turn has read, and how many of them have been handled.
    pub(super) rest: Option<Box<(Received, usize)>>,
    /// Whether somebody held the stream of the current DATA frame when the frame began.
    is_heard: bool,
    /// Bytes of that frame that are for a program.
    gained: u32,
    pub(super) calm: Calm,
    pub(super) size: ReadSize,
    /// The connection's window.
    pub(super) credit: Credit,
    /// The size that it should have.
    pub(super) target: u32,
    /// The window of a stream before it is open, and its largest window.
    first_stream_window: u32,
    pub(super) stream_window: u32,
    /// By how many bytes a peer that has not heard of a stream's window overestimates it.
    pub(super) lenient: u16,
}

impl Incoming {
    pub(super) fn new(role: Role, settings: &Settings) -> Self {
        Self {
            demux: Demux::new(role, settings),
            inbox: Inbox::default(),
            paused: false,
            violation: None,
            reported: false,
            received: Arc::default(),
            budget: 0,
            rest: None,
            is_heard: false,
            gained: 0,
            calm: Calm::bearing(BORNE),
            size: ReadSize::new(LARGEST_READ),
            // The library's first frame tells the peer of what exceeds the default.
            credit: Credit::new(settings.connection_window),
            target: settings.connection_window,
            first_stream_window: settings.first_stream_window(),
            stream_window: settings.stream_window,
            // A server's peer hears of it before it opens a stream.
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

    /// Bytes to read at once: the rest of a large frame, if one has begun, or else as many as the load suggests, and
    /// the head of the next frame. So a frame of 256 KiB that the peer's proxy has sent in one piece goes to its
    /// program in one piece. Reads that ignored frames would each bring the end of one frame and the beginning of the
    /// next: twice as many system calls, and twice as many wake-ups of programs.
    pub(super) fn wanted(&self) -> usize {
        let (left, size) = (self.demux.left(), self.size.bytes());
        if (LARGE..size).contains(&left) { left } else { size + HEAD }
    }

    /// A read of up to `wanted` bytes has brought `length`.
    pub(super) fn observe(&mut self, length: usize, wanted: usize) {
        // A read that was to end with its frame tells nothing about the load.
        if wanted > self.size.bytes() {
            self.size.observe(length, wanted);
        }
    }

    /// The transport has ended.
    pub(super) fn ended(&mut self, how: io::Result<()>) {
        let cut_short = || io::Error::other("the connection ended within a frame");
        self.inbox.end(how.and_then(|()| if self.demux.is_between_frames() { Ok(()) } else { Err(cut_short()) }));
    }

    pub(super) fn forget(&mut self) {
        self.rest = None;
        self.inbox.forget();
    }
}

impl Carrier {
    /// Handles received bytes from `at` on, as many as this turn may.
    pub(super) fn take_apart(&mut self, mut received: Received, mut at: usize) {
        let mut gathered = Gathered::default();
        while self.incoming.violation.is_none() {
            let (last, role) = (self.last_stream, self.role);
            let Incoming { demux, credit, is_heard, gained, .. } = &mut self.incoming;
            let take = |id, length| {
                let stream = self.streams.get_mut(&id);
                if id > last || stream.as_ref().is_some_and(|stream| !stream.takes_data(role)) {
                    return Taken::Misplaced;
                }
                (*is_heard, *gained) = (stream.as_ref().is_some_and(|stream| stream.is_listened_to()), 0);
                let has_room = credit.take(length) && stream.is_none_or(|stream| stream.credit.take(length));
                if has_room { Taken::Yes } else { Taken::TooMuch }
            };
            let Some(arrival) = demux.next(received.bytes(), &mut at, take) else { break };
            match arrival {
                Arrival::Preface(range) => {
                    self.incoming.inbox.add(&received.bytes()[range]);
                    self.incoming.inbox.frame_is_whole();
                }
                Arrival::Control(head) => self.incoming.inbox.add(&head.bytes()),
                Arrival::ControlPayload(range) => self.incoming.inbox.add(&received.bytes()[range]),
                Arrival::ControlEnds { head, ends_block } => {
                    if head.kind == RST_STREAM {
                        // Bytes that came before the failure are delivered first.
                        self.deliver(&mut received, &mut gathered);
                    }
                    self.control_came(head, ends_block);
                }
                Arrival::Misplaced(head) => {
                    let empty = Head { length: 0, flags: head.flags & END_STREAM, ..head };
                    self.incoming.inbox.add(&empty.bytes());
                    self.incoming.inbox.frame_is_whole();
                }
                Arrival::Payload { stream, range, padding, end } => {
                    if padding > 0 {
                        // Nobody will read these bytes.
                        self.consumed(stream, padding);
                    }
                    if !range.is_empty() {
                        self.payload(stream, range, &mut received, &mut gathered);
                    }
                    if let Some(end) = end {
                        self.data_ends(stream, end, &mut received, &mut gathered);
                    }
                }
                Arrival::Empty { stream, end } => self.data_ends(stream, end, &mut received, &mut gathered),
                Arrival::Ignored(bytes) => self.brings_nothing(1 + (bytes >> 10)),
                Arrival::Broken(violation) => self.violated(violation),
            }
        }
        self.deliver(&mut received, &mut gathered);
        self.tell_connection_credit();
        if at < received.length && self.incoming.violation.is_none() {
            self.incoming.rest = Some(Box::new((received, at)));
        }
    }

    fn data_ends(&mut self, id: u32, end: End, received: &mut Received, gathered: &mut Gathered) {
        if end.brings {
            let borne = self.incoming.calm.received(self.incoming.gained);
            self.is_calm(borne);
        } else if !end.ends {
            self.brings_nothing(1);
        }
        if end.ends {
            self.deliver(received, gathered);
            self.stream_ends(id);
        }
    }

    /// The peer has ended its half by DATA.
    fn stream_ends(&mut self, id: u32) {
        let role = self.role;
        if self.streams.get_mut(&id).is_none_or(|stream| stream.receiving.end_beside(role)) {
            self.incoming.inbox.tell_end(id);
        }
        self.receive_ends(id);
    }

    /// The peer has broken a rule. Nothing is read any more.
    pub(super) fn violated(&mut self, violation: Violation) {
        self.incoming.violation.get_or_insert(violation);
    }

    /// Bytes for a program.
    fn payload(&mut self, id: u32, range: Range<usize>, received: &mut Received, gathered: &mut Gathered) {
        if self.incoming.is_heard {
            self.incoming.gained += range.len() as u32;
        }
        if gathered.stream != id || gathered.count == SLICES {
            self.deliver(received, gathered);
            gathered.stream = id;
        }
        gathered.ranges[gathered.count] = range.start as u32..range.end as u32;
        gathered.count += 1;
    }

    /// Delivers what was gathered: as much as the program's socket takes now. The rest waits for the stream's reader.
    fn deliver(&mut self, received: &mut Received, gathered: &mut Gathered) {
        let count = std::mem::take(&mut gathered.count);
        if count == 0 {
            return;
        }
        let ranges = &gathered.ranges[..count];
        let Some(stream) = self.streams.get_mut(&gathered.stream).filter(|stream| stream.is_listened_to()) else {
            return self.consumed(gathered.stream, ranges.iter().map(|range| range.end - range.start).sum());
        };
        let mut written = 0;
        if let Some(sink) = &stream.sink
            && stream.chunks.is_empty()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            for (slice, range) in slices.iter_mut().zip(ranges) {
                *slice = IoSlice::new(&received.bytes()[range.start as usize..range.end as usize]);
            }
            // The relay meets the error again and handles it.
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

    /// Received bytes have left this process or will never be read.
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
