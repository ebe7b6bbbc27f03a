//! The demultiplexer: takes apart what comes from the peer, and says of each piece what it is and whom it is for.

use std::ops::Range;

use h2::Reason;

use super::Role;
use super::frame::{DATA, END_STREAM, HEADERS, Head, PADDED, Piece, RST_STREAM, SETTINGS, Splitter};
use super::judge::{Judge, Verdict};
use super::violation::Violation;
use crate::Settings;

/// Frames taken apart in one turn. A read may bring twenty thousand that bring nothing or a byte each, and others on the
/// thread would wait for all of them: for 50 µs, so.
pub(super) const FRAMES: u32 = 256;

/// What a frame counts that begins or ends a request. With more, requests that are given up at once would
/// be handed out before there are enough in one turn for the library to tell.
const OF_REQUESTS: u32 = 2;

/// What another frame counts that is not DATA. The library takes its time, and answers.
pub(super) const OF_OTHERS: u32 = 4;

/// What has come. Ranges are of the bytes that are taken apart.
#[derive(Debug, PartialEq)]
pub(super) enum Arrival {
    /// Of what a client begins with, before the first frame: the library judges it.
    Preface(Range<usize>),
    /// A frame for the library begins.
    Control(Head),
    /// Some of its payload.
    ControlPayload(Range<usize>),
    /// It is whole. `ends_block`: and so is a header block of several frames.
    ControlEnds { head: Head, ends_block: bool },
    /// DATA of a stream that can have none. It is for the library to say so, which need not see the payload.
    Misplaced(Head),
    /// Some of a frame's payload, which is for a program and may be none, behind so many bytes of padding; and the frame's
    /// end, if it is whole with that.
    Payload { stream: u32, range: Range<usize>, padding: u32, end: Option<End> },
    /// A frame for a program that has none.
    Empty { stream: u32, end: End },
    /// A frame of so many bytes that nobody has to see.
    Ignored(u32),
    /// The peer broke a rule: nothing of it is to be looked at any more.
    Broken(Violation),
}

/// What becomes of a frame of DATA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is for a program, and there is room for it in the windows.
    Yes,
    /// It is more than the windows have room for.
    TooMuch,
    /// The stream can have none now.
    Misplaced,
}

/// The end of a frame of DATA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Its stream ends with it.
    pub(super) ends: bool,
    /// It had a payload.
    pub(super) brings: bool,
}

/// What the frame is that is coming in.
enum Current {
    Control(Head),
    Data(Data),
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
    /// It is whole, which has yet to be said.
    is_whole: bool,
    judge: Judge,
    /// Frames that may still be taken apart in this turn.
    frames: u32,
}

impl Demux {
    pub(super) fn new(role: Role, settings: &Settings) -> Self {
        // A server's peer begins with a fixed text (RFC 9113 §3.4).
        let (preface, header_list) = match role {
            Role::Server => (24, settings.server_header_list),
            Role::Client => (0, settings.client_header_list),
        };
        Self {
            splitter: Splitter::new(preface),
            current: Current::Control(Head { length: 0, kind: SETTINGS, flags: 0, stream: 0 }),
            is_whole: false,
            judge: Judge::new(settings, header_list),
            // Until there is a task, by what may wait for the library.
            frames: u32::MAX,
        }
    }

    pub(super) fn turn_begins(&mut self) {
        self.frames = FRAMES;
    }

    /// As many frames were taken apart as a turn may.
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

    /// Whether the library may be told something between two frames: nothing may interrupt a header block.
    pub(super) fn may_interrupt(&self) -> bool {
        !self.judge.is_inside_block()
    }

    /// The next piece in `bytes`, from `at` on, which is moved behind it; none once all is taken, or the turn is over.
    /// `take` is asked of each frame of DATA, by its stream and its length with padding.
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
            // Of length 0, without a place for the padding's length.
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
