//! Checks received frames by their heads. A frame for the library is buffered until it is complete, so one that is too
//! long is refused before its body has come.

use h2::Reason;

use super::violation::Violation;
use crate::Settings;
use crate::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, Head, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE,
};

/// Most bytes of HEADERS besides the header block: the padding's length, the padding and the priority (RFC 9113 §6.2).
const BESIDE_BLOCK: u32 = 1 + 255 + 5;

/// Most settings in one frame. HTTP/2 defines seven; some peers send one or two unknown ones.
const MOST_SETTINGS: u32 = 32;

/// Length of one setting (RFC 9113 §6.5.1), bytes.
const SETTING: u32 = 6;

/// Longest GOAWAY, bytes. All but eight of them are a text for people.
const LONGEST_GOAWAY: u32 = 4 << 10;

/// What to do with a frame.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Handle the frame.
    Taken,
    /// Ignore its body.
    Ignored,
    Refused(Violation),
}

/// The state needed to check the next frame.
pub(super) struct Judge {
    largest_frame: u32,
    /// Longest header block, bytes: as long as the announced limit of the header list. A field is shorter in a block
    /// than by the count of RFC 9113 §6.5.2. So a list that is slightly too long still reaches the library, which
    /// refuses that request alone.
    longest_block: u32,
    /// The stream whose header block has begun. Only its CONTINUATION may follow (RFC 9113 §6.10).
    open_block: Option<u32>,
    /// Bytes of that block so far.
    block: u32,
}

impl Judge {
    /// `header_list` is the longest header list that was announced to the peer, bytes.
    pub(super) fn new(settings: &Settings, header_list: u32) -> Self {
        Self { largest_frame: settings.max_frame_size, longest_block: header_list, open_block: None, block: 0 }
    }

    /// A frame begins.
    pub(super) fn begins(&mut self, head: Head) -> Verdict {
        // Most frames, and nothing more can be wrong with one.
        if head.kind == DATA && head.length <= self.largest_frame && self.open_block.is_none() {
            return Verdict::Taken;
        }
        match self.fault(head) {
            Some((code, what)) => Verdict::Refused(Violation::new(code, what)),
            // RFC 9113 §5.5.
            None if head.kind > CONTINUATION => Verdict::Ignored,
            None => Verdict::Taken,
        }
    }

    fn fault(&mut self, head: Head) -> Option<(Reason, &'static str)> {
        if head.length > self.largest_frame {
            return Some((Reason::FRAME_SIZE_ERROR, "the peer sent a larger frame than it was told to"));
        }
        // The library checks only frames that it gets. Frames handled here take effect at once, so the rule must be
        // checked here.
        if let Some(stream) = self.open_block
            && (head.kind, head.stream) != (CONTINUATION, stream)
        {
            return Some((Reason::PROTOCOL_ERROR, "the peer sent another frame inside a header block"));
        }
        let length = head.length;
        let wrong_length = |is_wrong: bool| {
            is_wrong.then_some((Reason::FRAME_SIZE_ERROR, "the peer sent a frame of a length that its kind can't have"))
        };
        let too_long = |is_too_long: bool, what| is_too_long.then_some((Reason::ENHANCE_YOUR_CALM, what));
        match head.kind {
            CONTINUATION if self.open_block.is_none() => {
                Some((Reason::PROTOCOL_ERROR, "the peer continues a header block that has not begun"))
            }
            HEADERS | CONTINUATION => {
                let before = if head.kind == HEADERS { 0 } else { self.block };
                self.block = before.saturating_add(length);
                let longest = self.longest_block.saturating_add(BESIDE_BLOCK);
                let what = "the peer sent a header block longer than the announced header list (ENHANCE_YOUR_CALM)";
                too_long(self.block > longest, what)
            }
            SETTINGS => wrong_length(!length.is_multiple_of(SETTING) || (head.has(ACK) && length > 0)).or_else(|| {
                let what = "the peer sent too many settings in one frame (ENHANCE_YOUR_CALM)";
                too_long(length > MOST_SETTINGS * SETTING, what)
            }),
            GOAWAY => wrong_length(length < 8).or_else(|| {
                let what = "the peer sent a GOAWAY with too long a text (ENHANCE_YOUR_CALM)";
                too_long(length > LONGEST_GOAWAY, what)
            }),
            PING => wrong_length(length != 8),
            PRIORITY => wrong_length(length != 5),
            RST_STREAM | WINDOW_UPDATE => wrong_length(length != 4),
            // A client has announced that it accepts none, and a server never accepts any (RFC 9113 §8.4).
            PUSH_PROMISE => Some((Reason::PROTOCOL_ERROR, "the peer sent a PUSH_PROMISE, which nobody takes here")),
            // DATA is bounded by windows, and others are of no interest.
            _ => None,
        }
    }

    /// A frame that is not DATA is complete. Returns whether it ends a header block of several frames.
    pub(super) fn came(&mut self, head: Head) -> bool {
        let ends = head.has(END_HEADERS);
        match head.kind {
            HEADERS => self.open_block = (!ends).then_some(head.stream),
            CONTINUATION if ends => return self.open_block.take().is_some(),
            _ => {}
        }
        false
    }

    /// Whether nothing may be inserted between what has come and what follows.
    pub(super) fn is_inside_block(&self) -> bool {
        self.open_block.is_some()
    }
}
