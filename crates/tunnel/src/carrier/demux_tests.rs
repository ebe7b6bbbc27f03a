//! The demultiplexer finds the same pieces, however the bytes are cut.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::frame::{CONTINUATION, END_HEADERS, PING};

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Head { length: payload.len() as u32, kind, flags, stream }.bytes().to_vec();
    frame.extend_from_slice(payload);
    frame
}

/// The part of an arrival that does not depend on how the bytes are cut.
#[derive(Debug, PartialEq)]
enum Said {
    Control(Head, Vec<u8>, bool),
    Misplaced(Head),
    Data { stream: u32, length: u32, payload: Vec<u8>, padding: u32, ends: bool, brings: bool },
    Ignored(u32),
    Broken(Violation),
}

impl Said {
    fn data(stream: u32, length: u32, padding: u32, payload: Vec<u8>, End { ends, brings }: End) -> Self {
        Self::Data { stream, length, payload, padding, ends, brings }
    }
}

/// The arrivals of these reads, up to the first broken rule. Stream 1 accepts DATA.
fn said<'a>(demux: &mut Demux, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Said> {
    let mut said = Vec::new();
    let (mut payload, mut padded, length) = (Vec::new(), 0, Cell::new(0));
    let mut control = None;
    for bytes in pieces {
        let mut at = 0;
        let take = |id, bytes| {
            length.set(bytes);
            if id == 1 { Taken::Yes } else { Taken::Misplaced }
        };
        while let Some(arrival) = demux.next(bytes, &mut at, take) {
            match arrival {
                Arrival::Preface(_) => panic!("a client has none"),
                Arrival::Control(head) => control = Some((head, Vec::new())),
                Arrival::ControlPayload(range) => control.as_mut().unwrap().1.extend_from_slice(&bytes[range]),
                Arrival::ControlEnds { head, ends_block } => {
                    let (begun, payload) = control.take().unwrap();
                    assert_eq!(begun, head);
                    said.push(Said::Control(head, payload, ends_block));
                }
                Arrival::Misplaced(head) => said.push(Said::Misplaced(head)),
                Arrival::Payload { stream, range, padding, end } => {
                    payload.extend_from_slice(&bytes[range]);
                    padded += padding;
                    if let Some(end) = end {
                        let payload = std::mem::take(&mut payload);
                        said.push(Said::data(stream, length.get(), std::mem::take(&mut padded), payload, end));
                    }
                }
                Arrival::Empty { stream, end } => said.push(Said::data(stream, 0, 0, Vec::new(), end)),
                Arrival::Ignored(bytes) => said.push(Said::Ignored(bytes)),
                Arrival::Broken(violation) => {
                    said.push(Said::Broken(violation));
                    return said;
                }
            }
        }
        assert_eq!(at, bytes.len(), "something is left");
    }
    said
}

fn client() -> Demux {
    Demux::new(Role::Client, &Settings::default())
}

#[test]
fn each_frame_is_told_with_what_is_in_it() {
    let bytes = [
        frame(HEADERS, 0, 1, b"he"),
        frame(CONTINUATION, END_HEADERS, 1, b"ad"),
        frame(DATA, 0, 1, b"hello"),
        frame(DATA, PADDED, 1, &[2, b'x', 0, 0]),
        frame(0x7e, 0, 0, b"unknown"),
        frame(DATA, 0, 3, b"nobody's"),
        frame(DATA, END_STREAM, 1, &[]),
        frame(PING, 0, 0, &[7; 8]),
    ];
    let head = |kind, flags, length, stream| Head { length, kind, flags, stream };
    let data = |payload: &[u8], length, padding, ends| Said::Data {
        stream: 1,
        length,
        payload: payload.to_vec(),
        padding,
        ends,
        brings: !payload.is_empty(),
    };
    let expected = [
        Said::Control(head(HEADERS, 0, 2, 1), b"he".to_vec(), false),
        Said::Control(head(CONTINUATION, END_HEADERS, 2, 1), b"ad".to_vec(), true),
        data(b"hello", 5, 0, false),
        data(b"x", 4, 3, false),
        Said::Ignored(7),
        Said::Misplaced(head(DATA, 0, 8, 3)),
        Said::Ignored(8),
        data(b"", 0, 0, true),
        Said::Control(head(PING, 0, 8, 0), vec![7; 8], false),
    ];
    assert_eq!(said(&mut client(), [&*bytes.concat()]), expected);
}

#[test]
fn a_turn_ends_between_frames_and_the_next_goes_on_there() {
    let mut demux = client();
    demux.turn_begins();
    let bytes = frame(DATA, 0, 1, b"x").repeat(FRAMES as usize + 10);
    let (mut at, mut taken) = (0, 0);
    let mut take = |demux: &mut Demux| {
        while let Some(arrival) = demux.next(&bytes, &mut at, |_, _| Taken::Yes) {
            taken += u32::from(matches!(arrival, Arrival::Payload { end: Some(_), .. }));
        }
        taken
    };
    // The last frame's payload belongs to the next turn.
    assert_eq!(take(&mut demux), FRAMES - 1);
    assert!(demux.had_its_turn());
    demux.turn_begins();
    assert_eq!(take(&mut demux), FRAMES + 10);
    assert!(!demux.had_its_turn() && demux.is_between_frames());
}

/// Frames of all sorts, some of which break rules.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![6 => Just(DATA), 2 => Just(HEADERS), 1 => Just(CONTINUATION), 2 => 2..12u8];
    (kind, any::<u8>(), 0..5u32, prop::collection::vec(any::<u8>(), 0..20))
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags & 0xd, stream, &payload))
}

proptest! {
    #[test]
    fn how_bytes_are_cut_makes_no_difference(
        frames in prop::collection::vec(any_frame(), 1..20),
        cuts in prop::collection::vec(1..30usize, 1..100),
    ) {
        let bytes = frames.concat();
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        pieces.push(rest);
        prop_assert_eq!(said(&mut client(), [&bytes[..]]), said(&mut client(), pieces));
    }
}
