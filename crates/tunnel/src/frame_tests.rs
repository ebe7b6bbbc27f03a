use proptest::prelude::*;

use super::*;

/// A frame's head and payload, and whether its end was reported.
type Found = (Head, Vec<u8>, bool);

/// What `splitter` finds in `bytes` when they come in reads of the given lengths: the preface, and
/// each frame's head and payload.
fn split(mut splitter: Splitter, bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<Found>) {
    let (mut preface, mut frames) = (Vec::new(), Vec::<Found>::new());
    let mut rest = bytes;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let (read, after) = rest.split_at(rest.len().min(*cuts.next().unwrap_or(&usize::MAX)));
        rest = after;
        let mut at = 0;
        while let Some(piece) = splitter.next(read, &mut at) {
            match piece {
                Piece::Preface(range) => preface.extend_from_slice(&read[range]),
                Piece::Head(head) => frames.push((head, Vec::new(), head.length == 0)),
                Piece::Payload(range, last) => {
                    let (_, payload, over) = frames.last_mut().unwrap();
                    payload.extend_from_slice(&read[range]);
                    *over = last;
                }
            }
        }
        assert_eq!(at, read.len());
    }
    (preface, frames)
}

prop_compose! {
    fn frame()(payload in prop::collection::vec(any::<u8>(), 0..40), kind in 0u8..12, flags: u8, stream in 0u32..1 << 31)
        -> (Head, Vec<u8>)
    {
        (Head { length: payload.len() as u32, kind, flags, stream }, payload)
    }
}

proptest! {
    #[test]
    fn frames_are_found_however_they_are_cut(
        frames in prop::collection::vec(frame(), 0..8),
        preface in prop::collection::vec(any::<u8>(), 0..24),
        cuts in prop::collection::vec(1usize..30, 1..10),
    ) {
        let mut bytes = preface.clone();
        for (head, payload) in &frames {
            bytes.extend_from_slice(&head.bytes());
            bytes.extend_from_slice(payload);
        }
        let found = split(Splitter::new(preface.len() as u8), &bytes, &cuts);
        let whole = frames.into_iter().map(|(head, payload)| (head, payload, true)).collect::<Vec<_>>();
        prop_assert_eq!(found, (preface, whole));
    }

    #[test]
    fn any_bytes_can_be_taken_apart(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 1usize..30) {
        let (preface, frames) = split(Splitter::new(24), &bytes, &[cut]);
        prop_assert!(preface.len() <= 24);
        let (whole, _) = split(Splitter::new(24), &bytes, &[usize::MAX]);
        prop_assert_eq!(preface, whole);
        prop_assert!(frames.iter().all(|(head, payload, over)| *over == (payload.len() == head.length as usize)));
    }
}

#[test]
fn the_reserved_bit_of_a_stream_means_nothing() {
    let mut at = 0;
    let bytes = [0, 0, 0, DATA, END_STREAM, 0x80, 0, 0, 5];
    let head = Head { length: 0, kind: DATA, flags: END_STREAM, stream: 5 };
    assert_eq!(Splitter::new(0).next(&bytes, &mut at), Some(Piece::Head(head)));
}

#[test]
fn own_frames_are_as_the_standard_has_them() {
    assert_eq!(Head::window_update(3, 0x0102_0304), [0, 0, 4, 8, 0, 0, 0, 0, 3, 1, 2, 3, 4]);
    assert_eq!(Head::goaway(7, 3), [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 3]);
    assert_eq!(word(&[0, 0, 1, 2, 3], 1), 0x0001_0203);
    assert_eq!(word(&[0, 0, 1], 0), 0);
}
