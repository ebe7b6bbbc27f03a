//! Reads what the library writes to the transport, and tells what each frame means for the streams.

use super::Role;
use crate::frame::{
    CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, Head, PREFACE, Piece, RST_STREAM, Splitter, word,
};

/// A part of what the library wrote.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// A frame begins.
    Begins(Head),
    /// The library has reset a stream, with this code.
    Resets { stream: u32, code: u32 },
    /// The library closes the connection, and does nothing for the peer's streams after `last`.
    Leaves { last: u32, code: u32 },
    /// A frame is complete.
    Whole(Head),
}

pub(super) struct Passing {
    splitter: Splitter,
    current: Head,
    /// The first words of the current frame's payload, if they were not reported yet.
    payload: Option<(u32, u32)>,
    is_whole: bool,
    /// Whether a header block is incomplete (RFC 9113 §6.10).
    in_headers: bool,
}

impl Passing {
    pub(super) fn new(role: Role) -> Self {
        let preface = if role == Role::Client { PREFACE } else { 0 };
        Self {
            splitter: Splitter::new(preface),
            current: Head { length: 0, kind: DATA, flags: 0, stream: 0 },
            payload: None,
            is_whole: false,
            in_headers: false,
        }
    }

    /// Whether other frames may be sent here: no frame and no header block is incomplete.
    pub(super) fn may_interrupt(&self) -> bool {
        self.splitter.is_between_frames() && !self.in_headers
    }

    /// The meaning of the next piece of `bytes`, starting at `at`, which is moved behind the piece. `None` at the end.
    pub(super) fn next(&mut self, bytes: &[u8], at: &mut usize) -> Option<Passed> {
        loop {
            if let Some((first, second)) = self.payload.take() {
                return Some(match self.current.kind {
                    RST_STREAM => Passed::Resets { stream: self.current.stream, code: first },
                    _ => Passed::Leaves { last: first & (u32::MAX >> 1), code: second },
                });
            }
            if std::mem::take(&mut self.is_whole) {
                let head = self.current;
                if matches!(head.kind, HEADERS | CONTINUATION) {
                    self.in_headers = !head.has(END_HEADERS);
                }
                return Some(Passed::Whole(head));
            }
            match self.splitter.next(bytes, at)? {
                Piece::Preface(_) => {}
                Piece::Head(head) => {
                    (self.current, self.is_whole) = (head, head.length == 0);
                    return Some(Passed::Begins(head));
                }
                Piece::Payload(range, last) => {
                    self.is_whole = last;
                    // The library writes each of these frames in one piece.
                    let tells = match self.current.kind {
                        RST_STREAM => range.len() == 4,
                        GOAWAY => range.len() >= 8,
                        _ => false,
                    };
                    self.payload = tells.then(|| (word(bytes, range.start), word(bytes, range.start + 4)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::END_STREAM;

    fn said(passing: &mut Passing, bytes: &[u8]) -> Vec<Passed> {
        let mut at = 0;
        std::iter::from_fn(|| passing.next(bytes, &mut at)).collect()
    }

    #[test]
    fn frames_are_told_as_they_begin_and_end() {
        let headers = Head { length: 3, kind: HEADERS, flags: 0, stream: 1 };
        let rest = Head { length: 2, kind: CONTINUATION, flags: END_HEADERS, stream: 1 };
        let end = Head { length: 0, kind: DATA, flags: END_STREAM, stream: 1 };
        let mut bytes = vec![b'p'; 24];
        bytes.extend(headers.bytes());
        bytes.extend([0; 3]);
        let mut passing = Passing::new(Role::Client);
        assert_eq!(said(&mut passing, &bytes), [Passed::Begins(headers), Passed::Whole(headers)]);
        assert!(!passing.may_interrupt(), "inside a header block");
        assert_eq!(said(&mut passing, &rest.bytes()), [Passed::Begins(rest)]);
        assert_eq!(said(&mut passing, &[0; 2]), [Passed::Whole(rest)]);
        assert!(passing.may_interrupt());
        assert_eq!(said(&mut passing, &end.bytes()), [Passed::Begins(end), Passed::Whole(end)]);
    }

    #[test]
    fn what_ends_a_stream_or_all_of_them_is_told_before_the_frame_is_whole() {
        let reset = Head { length: 4, kind: RST_STREAM, flags: 0, stream: 5 };
        let mut bytes = reset.bytes().to_vec();
        bytes.extend(8u32.to_be_bytes());
        bytes.extend(Head::goaway(7, 11));
        let leave = Head { length: 8, kind: GOAWAY, flags: 0, stream: 0 };
        let expected = [
            Passed::Begins(reset),
            Passed::Resets { stream: 5, code: 8 },
            Passed::Whole(reset),
            Passed::Begins(leave),
            Passed::Leaves { last: 7, code: 11 },
            Passed::Whole(leave),
        ];
        assert_eq!(said(&mut Passing::new(Role::Server), &bytes), expected);
    }
}
