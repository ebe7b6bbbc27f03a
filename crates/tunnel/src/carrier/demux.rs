//! The demultiplexer: splits the received bytes into pieces, and tells of each piece what it is and which stream it is
//! for.

use std::ops::Range;

use h2::Reason;

use super::Role;
use super::judge::{Judge, Verdict};
use super::violation::Violation;
use crate::Settings;
use crate::frame::{DATA, END_STREAM, HEADERS, Head, PADDED, PREFACE, Piece, RST_STREAM, SETTINGS, Splitter};

/// How many frames are processed in one turn. A read may bring twenty thousand frames with one byte or none, and the
/// thread's other tasks would wait for all of them. With this limit they wait for 50 µs.
pub(super) const FRAMES: u32 = 256;

/// How many frames a frame that begins or ends a request counts as. With a higher number, a turn would have too few
/// requests for the library to recognise a peer that resets its requests at once, and these would be handed out.
pub(super) const OF_REQUESTS: u32 = 2;

/// How many frames any other frame besides DATA counts as: the library processes and answers it, which takes longer.
pub(super) const OF_OTHERS: u32 = 4;

/// A received piece. Ranges are offsets in the bytes given to [`Demux::next`].
#[derive(Debug, PartialEq)]
pub(super) enum Arrival {
    /// A part of a client's connection preface, before the first frame. The library checks it.
    Preface(Range<usize>),
    /// The header of a frame for the library.
    Control(Head),
    /// A part of that frame's payload.
    ControlPayload(Range<usize>),
    /// That frame is complete. `ends_block`: so is a header block of several frames.
    ControlEnds { head: Head, ends_block: bool },
    /// The header of DATA for a stream that can have none now. The library reports the error; it need not see the payload.
    Misplaced(Head),
    /// A part of a DATA frame's payload for a program, possibly empty, and the bytes of padding before it. `end` is set if
    /// the frame is complete with it.
    Payload { stream: u32, range: Range<usize>, padding: u32, end: Option<End> },
    /// A DATA frame without payload.
    Empty { stream: u32, end: End },
    /// A frame with this many bytes that is ignored.
    Ignored(u32),
    /// The peer broke a rule. Nothing more of it is processed.
    Broken(Violation),
}

/// The decision about a frame of DATA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is for a program, and there is room for it in the windows.
    Yes,
    /// It exceeds the windows.
    TooMuch,
    /// The stream can have no DATA now.
    Misplaced,
}

/// The end of a frame of DATA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Its stream ends with it.
    pub(super) ends: bool,
    /// It has a payload.
    pub(super) brings: bool,
}

/// The frame that is being received.
enum Current {
    Control(Head),
    Data(Data),
    Ignored(Head),
}

struct Data {
    stream: u32,
    ends: bool,
    /// The byte with the padding's length has not come yet.
    padded: bool,
    /// Bytes of payload, without padding, that have not come yet.
    left: u32,
    /// Whether there is payload besides padding.
    brings: bool,
}

impl Data {
    fn of(head: Head) -> Self {
        Self {
            stream: head.stream,
            ends: head.has(END_STREAM),
            padded: head.has(PADDED),
            left: head.length,
            brings: head.length > 0,
        }
    }
}

pub(super) struct Demux {
    splitter: Splitter,
    current: Current,
    /// The current frame is complete, which was not reported yet.
    is_whole: bool,
    judge: Judge,
    /// How many frames may still be processed in this turn.
    frames: u32,
}

impl Demux {
    pub(super) fn new(role: Role, settings: &Settings) -> Self {
        let (preface, header_list) = match role {
            Role::Server => (PREFACE, settings.server_header_list),
            Role::Client => (0, settings.client_header_list),
        };
        Self {
            splitter: Splitter::new(preface),
            current: Current::Control(Head { length: 0, kind: SETTINGS, flags: 0, stream: 0 }),
            is_whole: false,
            judge: Judge::new(settings, header_list),
            frames: FRAMES,
        }
    }

    pub(super) fn turn_begins(&mut self) {
        self.frames = FRAMES;
    }

    /// Whether this turn has processed as many frames as it may.
    pub(super) fn had_its_turn(&self) -> bool {
        self.frames == 0
    }

    /// Bytes of the current frame that are still to come.
    pub(super) fn left(&self) -> usize {
        self.splitter.left()
    }

    pub(super) fn is_between_frames(&self) -> bool {
        self.splitter.is_between_frames()
    }

    /// Whether a frame for the library may be inserted here. It must not interrupt a header block.
    pub(super) fn may_interrupt(&self) -> bool {
        !self.judge.is_inside_block()
    }

    /// The next piece of `bytes`, starting at `at`, which is moved behind the piece. `None` at the end of `bytes` and at the
    /// end of the turn. `take` decides about each frame of DATA, given its stream and its length with padding.
    pub(super) fn next(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
        mut take: impl FnMut(u32, u32) -> Taken,
    ) -> Option<Arrival> {
        loop {
            if std::mem::take(&mut self.is_whole) {
                return Some(self.ends());
            }
            if self.frames == 0 {
                return None;
            }
            let arrival = match self.splitter.next(bytes, at)? {
                Piece::Preface(range) => Some(Arrival::Preface(range)),
                Piece::Head(head) => self.begins(head, &mut take),
                Piece::Payload(range, last) => self.payload(range, bytes, last),
            };
            if arrival.is_some() {
                return arrival;
            }
        }
    }

    fn begins(&mut self, head: Head, take: impl FnOnce(u32, u32) -> Taken) -> Option<Arrival> {
        let share = match head.kind {
            DATA => 1,
            HEADERS | RST_STREAM => OF_REQUESTS,
            _ => OF_OTHERS,
        };
        self.frames = self.frames.saturating_sub(share);
        self.is_whole = head.length == 0;
        let (current, arrival) = match self.judge.begins(head) {
            Verdict::Refused(violation) => return Some(Arrival::Broken(violation)),
            Verdict::Ignored => (Current::Ignored(head), None),
            Verdict::Taken if head.kind != DATA => (Current::Control(head), Some(Arrival::Control(head))),
            Verdict::Taken => {
                let taken = if head.stream % 2 == 1 { take(head.stream, head.length) } else { Taken::Misplaced };
                match taken {
                    Taken::Yes => (Current::Data(Data::of(head)), None),
                    Taken::Misplaced => (Current::Ignored(head), Some(Arrival::Misplaced(head))),
                    Taken::TooMuch => {
                        let what = "the peer sent more than the window it was given";
                        return Some(Arrival::Broken(Violation::new(Reason::FLOW_CONTROL_ERROR, what)));
                    }
                }
            }
        };
        self.current = current;
        arrival
    }

    fn payload(&mut self, mut range: Range<usize>, bytes: &[u8], last: bool) -> Option<Arrival> {
        let data = match &mut self.current {
            Current::Data(data) => data,
            other => {
                self.is_whole = last;
                return matches!(other, Current::Control(_)).then_some(Arrival::ControlPayload(range));
            }
        };
        let mut padding = 0;
        if std::mem::take(&mut data.padded) {
            padding = 1 + u32::from(bytes[range.start]);
            range.start += 1;
            match data.left.checked_sub(padding) {
                Some(left) => (data.left, data.brings) = (left, left > 0),
                None => return Some(bad_padding()),
            }
        }
        range.end = range.end.min(range.start + data.left as usize);
        data.left -= range.len() as u32;
        let end = last.then_some(End { ends: data.ends, brings: data.brings });
        Some(Arrival::Payload { stream: data.stream, range, padding, end })
    }

    fn ends(&mut self) -> Arrival {
        match self.current {
            Current::Control(head) => Arrival::ControlEnds { head, ends_block: self.judge.came(head) },
            // A padded frame of length 0 has no room for the padding's length.
            Current::Data(Data { padded: true, .. }) => bad_padding(),
            Current::Data(Data { stream, ends, brings, .. }) => Arrival::Empty { stream, end: End { ends, brings } },
            Current::Ignored(head) => Arrival::Ignored(head.length),
        }
    }
}

fn bad_padding() -> Arrival {
    Arrival::Broken(Violation::new(Reason::PROTOCOL_ERROR, "the peer's padding is longer than its frame"))
}

#[cfg(test)]
#[path = "demux_tests.rs"]
mod tests;
