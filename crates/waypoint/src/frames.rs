//! Whether a client floods its HTTP/2 connection with frames that bring nothing.
//!
//! The HTTP library bounds what such frames cost in memory, and ends a connection for some of them. PINGs, SETTINGS,
//! WINDOW_UPDATEs, PRIORITYs and kinds that it does not know it answers or skips without end.

use leno_tunnel::calm::Calm;
use leno_tunnel::frame::{CONTINUATION, DATA, HEADERS, PADDED, PREFACE, Piece, RST_STREAM, Splitter};

/// How many frames without use a client may send within ten seconds, besides those that it earns.
const BORNE: u32 = 100_000;

/// A request that is given up has cost a route, a policy's judgement and perhaps a request to an endpoint.
const GIVEN_UP: u32 = 8;

/// Fewer bytes than this, written at once, may be nothing but answers to frames without use.
const ANSWER: usize = 64;

/// Follows what a client sends.
#[derive(Debug)]
pub(crate) struct Frames {
    splitter: Splitter,
    calm: Calm,
}

impl Default for Frames {
    fn default() -> Self {
        Self::bearing(BORNE)
    }
}

impl Frames {
    fn bearing(frames: u32) -> Self {
        Self { splitter: Splitter::new(PREFACE), calm: Calm::bearing(frames) }
    }

    /// Looks at the next bytes that have come. Returns false if the client floods.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> bool {
        let mut at = 0;
        while let Some(piece) = self.splitter.next(bytes, &mut at) {
            let Piece::Head(head) = piece else { continue };
            let calm = match head.kind {
                // How much of it is padding is not looked at.
                DATA => self.calm.received(if head.has(PADDED) { 0 } else { head.length }),
                // How many requests there may be at once, and how large their heads are, has limits of its own.
                HEADERS | CONTINUATION => true,
                RST_STREAM => self.calm.spend(GIVEN_UP),
                _ => self.calm.spend(1),
            };
            if !calm {
                return false;
            }
        }
        true
    }

    /// This many bytes were sent to the client: it may answer.
    pub(crate) fn sent(&mut self, bytes: usize) {
        if bytes > ANSWER {
            self.calm.sent(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use leno_tunnel::frame::Head;

    use super::*;

    fn frame(kind: u8, flags: u8, length: u32) -> Vec<u8> {
        let mut frame = Head { length, kind, flags, stream: 1 }.bytes().to_vec();
        frame.resize(frame.len() + length as usize, 0);
        frame
    }

    /// How many of these frames are borne, of a thousand, where a hundred without use are.
    fn borne(kind: u8, flags: u8, length: u32) -> usize {
        let mut frames = Frames::bearing(100);
        assert!(frames.look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        (0..1000).take_while(|_| frames.look(&frame(kind, flags, length))).count()
    }

    #[test]
    fn what_brings_nothing_is_borne_for_a_while() {
        for (kind, flags, length, expected) in [
            (6, 0, 8, 99),
            (4, 0, 6, 99),
            (8, 0, 4, 99),
            (2, 0, 5, 99),
            (0x7e, 0, 0, 99),
            (RST_STREAM, 0, 4, 12),
            (HEADERS, 4, 20, 1000),
            (DATA, 0, 8, 1000),
            (DATA, 0, 0, 1000),
        ] {
            assert_eq!(borne(kind, flags, length), expected, "{kind} {length}");
        }
    }

    #[test]
    fn who_is_sent_something_may_answer() {
        let mut frames = Frames::bearing(100);
        assert!(frames.look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        for _ in 0..1000 {
            frames.sent(1 << 10);
            assert!(frames.look(&[frame(8, 0, 4), frame(8, 0, 4)].concat()));
        }
        let answered = (0..1000).take_while(|_| {
            frames.sent(17);
            frames.look(&frame(6, 0, 8))
        });
        // The last two of the loop are spent already.
        assert_eq!(answered.count(), 97, "a PING's answer earns nothing");
    }
}
