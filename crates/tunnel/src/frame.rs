//! The parts of HTTP/2 frames that lie outside of the HTTP/2 library: heads, and where they are in a stream of bytes (RFC 9113
//! §3.4, §4.1, §6).

use std::ops::Range;

/// Length of the text that a client begins a connection with (RFC 9113 §3.4), bytes.
pub const PREFACE: u8 = 24;

/// Length of a frame's head, bytes.
pub const HEAD: usize = 9;

/// Type of a frame: bytes of a body.
pub const DATA: u8 = 0;
/// Type of a frame: the beginning of a stream, or trailers.
pub const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
/// Type of a frame: the sudden end of a stream.
pub const RST_STREAM: u8 = 3;
/// Type of a frame: what a peer can do and wants.
pub const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
/// Type of a frame: more of a header block.
pub const CONTINUATION: u8 = 9;

/// Flag of DATA and HEADERS.
pub const END_STREAM: u8 = 0x1;
/// Flag of SETTINGS.
pub(crate) const ACK: u8 = 0x1;
/// Flag of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 0x4;
/// Flag of DATA and HEADERS: some of the payload is padding.
pub const PADDED: u8 = 0x8;
/// Flag of HEADERS: a priority is in front of the fields.
pub const PRIORITIZED: u8 = 0x20;

/// Parameter of SETTINGS: the initial window of a stream, bytes.
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
/// Parameter of SETTINGS: the largest frame, bytes.
pub(crate) const MAX_FRAME_SIZE: u16 = 5;

/// Largest window a peer may ask for, bytes (RFC 9113 §6.9.1).
pub(crate) const LARGEST_WINDOW: i64 = (1 << 31) - 1;

/// A frame's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Length of the payload, bytes; 24 bits.
    pub length: u32,
    /// What it is.
    pub kind: u8,
    /// Flags; which there are depends on `kind`.
    pub flags: u8,
    /// Stream number, 31 bits; 0 for the connection.
    pub stream: u32,
}

impl Head {
    fn parse(bytes: [u8; HEAD]) -> Self {
        let [a, b, c, kind, flags, s @ ..] = bytes;
        Self { length: u32::from_be_bytes([0, a, b, c]), kind, flags, stream: u32::from_be_bytes(s) & (u32::MAX >> 1) }
    }

    /// The head as it is sent.
    #[must_use]
    pub fn bytes(self) -> [u8; HEAD] {
        let [_, a, b, c] = self.length.to_be_bytes();
        let [s, t, u, v] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s, t, u, v]
    }

    /// Whether a flag is set.
    #[must_use]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// A complete WINDOW_UPDATE for `stream`.
    pub(crate) fn window_update(stream: u32, increment: u32) -> [u8; HEAD + 4] {
        let mut frame = [0; HEAD + 4];
        frame[..HEAD].copy_from_slice(&Self { length: 4, kind: WINDOW_UPDATE, flags: 0, stream }.bytes());
        frame[HEAD..].copy_from_slice(&increment.to_be_bytes());
        frame
    }

    /// A complete GOAWAY.
    #[must_use]
    pub fn goaway(last_stream: u32, code: u32) -> [u8; HEAD + 8] {
        let mut frame = [0; HEAD + 8];
        frame[..HEAD].copy_from_slice(&Self { length: 8, kind: GOAWAY, flags: 0, stream: 0 }.bytes());
        frame[HEAD..HEAD + 4].copy_from_slice(&last_stream.to_be_bytes());
        frame[HEAD + 4..].copy_from_slice(&code.to_be_bytes());
        frame
    }
}

/// The 32 bits at offset `at`; 0 beyond the end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Splits a byte stream into frames, however the stream is cut into reads.
#[derive(Debug)]
pub struct Splitter {
    /// Bytes before the first frame that have not come yet.
    preface: u8,
    head: [u8; HEAD],
    /// Bytes of `head` that have come.
    have: u8,
    /// Payload of the current frame that has not come yet, bytes.
    left: u32,
}

/// A piece found by [`Splitter::next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// A piece of the connection preface (RFC 9113 §3.4).
    Preface(Range<usize>),
    /// The head of a frame. If its length is 0, the frame is complete.
    Head(Head),
    /// A piece of the current frame's payload, and whether the frame is complete with it.
    Payload(Range<usize>, bool),
}

impl Splitter {
    /// `preface` is the number of bytes before the first frame.
    #[must_use]
    pub fn new(preface: u8) -> Self {
        Self { preface, head: [0; HEAD], have: 0, left: 0 }
    }

    /// Whether nothing of a frame is missing.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.preface == 0 && self.have == 0 && self.left == 0
    }

    /// Bytes of the current frame that have not come yet.
    pub(crate) fn left(&self) -> usize {
        self.left as usize
    }

    /// The next piece of `bytes`, starting at `at`, which is moved behind the piece. `None` at the end.
    pub fn next(&mut self, bytes: &[u8], at: &mut usize) -> Option<Piece> {
        let start = *at;
        let rest = bytes.len() - start;
        if rest == 0 {
            return None;
        }
        if self.preface > 0 {
            let length = rest.min(usize::from(self.preface));
            self.preface -= length as u8;
            *at += length;
            return Some(Piece::Preface(start..*at));
        }
        if self.left > 0 {
            let length = rest.min(self.left as usize);
            self.left -= length as u32;
            *at += length;
            return Some(Piece::Payload(start..*at, self.left == 0));
        }
        let have = usize::from(self.have);
        let length = rest.min(HEAD - have);
        self.head[have..have + length].copy_from_slice(&bytes[start..start + length]);
        *at += length;
        if have + length < HEAD {
            self.have += length as u8;
            return None;
        }
        self.have = 0;
        let head = Head::parse(self.head);
        self.left = head.length;
        Some(Piece::Head(head))
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
