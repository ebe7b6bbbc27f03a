use std::time::Duration;

use leno_tunnel::frame::RST_STREAM;

use super::*;

impl Frames {
    /// After the beginning of the connection.
    fn begun(most: u32) -> (Self, Arc<Requests>) {
        let requests = Arc::<Requests>::default();
        let mut frames = Self::bearing(most, requests.clone(), Arc::default());
        assert_eq!(frames.look(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Look::All);
        (frames, requests)
    }

    /// All of `bytes`, however slowly.
    fn bears(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            match self.look(bytes) {
                Look::All => return true,
                Look::Flood => return false,
                Look::Turn(some) => {
                    self.rest();
                    bytes = &bytes[some..];
                }
            }
        }
    }
}

fn frame(kind: u8, flags: u8, length: u32) -> Vec<u8> {
    on_stream(1, kind, flags, length)
}

fn on_stream(stream: u32, kind: u8, flags: u8, length: u32) -> Vec<u8> {
    let mut frame = Head { length, kind, flags, stream }.bytes().to_vec();
    frame.resize(frame.len() + length as usize, 0);
    frame
}

/// How many of these frames are borne, of a thousand, where a hundred without use are.
fn borne(kind: u8, flags: u8, length: u32) -> usize {
    let (mut frames, _) = Frames::begun(100);
    (0..1000).take_while(|_| frames.bears(&frame(kind, flags, length))).count()
}

#[test]
fn what_brings_nothing_is_borne_for_a_while() {
    for (kind, flags, length, expected) in [
        (6, 0, 8, 99),
        (4, 0, 6, 99),
        (8, 0, 4, 99),
        (2, 0, 5, 99),
        (0x7e, 0, 0, 99),
        (RST_STREAM, 0, 4, 99),
        (HEADERS, END_HEADERS, 20, 1000),
        (DATA, 0, 8, 1000),
        (DATA, 0, 0, 1000),
    ] {
        assert_eq!(borne(kind, flags, length), expected, "{kind} {length}");
    }
}

/// How many requests are borne, of 500, if `end` follows each.
fn requests_borne(end: impl Fn(&Requests)) -> usize {
    let (mut frames, requests) = Frames::begun(100);
    let one = |number: &u32| {
        frames.rest();
        let borne = frames.bears(&on_stream(2 * number + 1, HEADERS, END_HEADERS, 20));
        end(&requests);
        borne
    };
    (0..500).take_while(one).count()
}

#[test]
fn requests_that_come_to_nothing_count() {
    assert_eq!(requests_borne(|requests| _ = requests.looked_at()), 500);
    assert_eq!(requests_borne(|_| ()), 13, "the library refuses them");
    let given_up = |requests: &Requests| {
        requests.looked_at();
        requests.given_up();
    };
    assert_eq!(requests_borne(given_up), 13);
}

#[test]
fn heads_are_counted_when_they_are_complete() {
    let (mut frames, _) = Frames::begun(100);
    let parts = [
        (on_stream(1, HEADERS, END_HEADERS, 20), 1),
        (on_stream(1, DATA, 0, 20), 1),
        // Trailers.
        (on_stream(1, HEADERS, END_HEADERS | END_STREAM, 20), 1),
        (on_stream(3, HEADERS, END_STREAM, 20), 1),
        (on_stream(3, CONTINUATION, 0, 20), 1),
        (on_stream(3, CONTINUATION, END_HEADERS, 20), 2),
        (on_stream(5, HEADERS, END_HEADERS, 20)[..28].to_vec(), 2),
        (vec![0], 3),
        (on_stream(7, HEADERS, END_HEADERS, 0), 4),
    ];
    for (bytes, complete) in parts {
        assert_eq!(frames.look(&bytes), Look::All);
        assert_eq!(frames.heads.complete, complete);
    }
}

/// A head with so many fields, each an entry of the table.
fn crumbs(stream: u32, flags: u8, fields: u32) -> Vec<u8> {
    let mut frame = on_stream(stream, HEADERS, flags | END_HEADERS, fields);
    frame[9..].fill(0xbe);
    frame
}

#[test]
fn a_head_with_very_many_fields_is_paid_for() {
    let (mut frames, requests) = Frames::begun(BORNE);
    assert_eq!(frames.look(&crumbs(1, 0, 200)), Look::All);
    assert_eq!((frames.owed, frames.heads.fields), (0, 200));
    requests.looked_at();
    frames.rest();
    let prioritized = [&crumbs(3, PRIORITIZED, 105), &crumbs(3, END_STREAM, 200)[..]].concat();
    assert_eq!((frames.look(&prioritized), frames.heads.fields), (Look::Turn(114 + 209), 200));
    assert_eq!(frames.owed, 0);
    requests.looked_at();
    frames.rest();
    assert_eq!(frames.look(&crumbs(5, 0, 4000)), Look::Turn(4009));
    assert_eq!(frames.owed, 4000 - FIELDS_MOST);
    requests.looked_at();
    frames.rest();
    assert!(frames.bears(&crumbs(5, END_STREAM, 4000)), "trailers");
    assert!(frames.owed > 4000);
    assert!(!frames.may_go_on());
}

#[test]
fn what_brings_nothing_is_taken_slowly() {
    let (mut frames, _) = Frames::begun(BORNE);
    let mut taken = |kind| (0..10_000).take_while(|_| frames.may_go_on() && frames.bears(&frame(kind, 0, 8))).count();
    assert!((1000..2000).contains(&taken(6)));
    assert!(taken(HEADERS) < 100, "nothing is read");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(taken(DATA), 10_000, "messages are taken as they come");
}

#[test]
fn other_connections_have_their_turn() {
    let (mut frames, _) = Frames::begun(BORNE);
    let many = frame(DATA, 0, 8).repeat(100);
    assert_eq!(frames.look(&many), Look::Turn(64 * 17));
    frames.rest();
    assert_eq!(frames.look(&many[64 * 17..]), Look::All);
    frames.rest();
    for _ in 0..10 {
        assert_eq!(frames.look(&many[..60 * 17]), Look::All);
        frames.rest();
    }
}

#[test]
fn a_turn_ends_after_the_frame_that_resets_a_request() {
    let (mut frames, requests) = Frames::begun(BORNE);
    let given_up = |n: u32| [on_stream(n, HEADERS, END_HEADERS, 20), on_stream(n, RST_STREAM, 0, 4)].concat();
    let many: Vec<u8> = (0..1000).flat_map(|n| given_up(2 * n + 1)).collect();
    let (mut at, mut turns) = (0, 0);
    while let Look::Turn(some) = frames.look(&many[at..]) {
        assert_eq!(some % given_up(1).len(), 0, "in turn {turns}");
        (at, turns) = (at + some, turns + 1);
        for _ in 0..some / given_up(1).len() {
            requests.looked_at();
            requests.given_up();
        }
        frames.rest();
        while !frames.may_go_on() {
            std::thread::sleep(super::super::h2_budget::PAUSE);
        }
    }
    assert!(turns > 100, "{turns}");
}

#[test]
fn who_is_sent_something_may_answer() {
    let (mut frames, _) = Frames::begun(100);
    for _ in 0..1000 {
        frames.sent(1 << 10, 1 << 10);
        assert!(frames.bears(&[frame(8, 0, 4), frame(8, 0, 4)].concat()));
    }
    let answered = (0..1000).take_while(|_| {
        frames.sent(17, 17);
        frames.bears(&frame(6, 0, 8))
    });
    // The last two of the loop are spent already.
    assert_eq!(answered.count(), 97, "a PING's answer earns nothing");
}

#[test]
fn a_client_is_told_that_it_floods() {
    let (mut frames, _) = Frames::begun(100);
    assert!(frames.bears(&on_stream(5, HEADERS, END_HEADERS, 20)));
    assert_eq!(frames.farewell(), None);
    assert!(!frames.bears(&frame(6, 0, 8).repeat(100)));
    assert_eq!(frames.farewell(), Some(*b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x05\0\0\0\x0b"));
    frames.sent(10, 17);
    assert_eq!(frames.farewell(), None, "it would be taken for the rest of a frame");
    frames.sent(7, 7);
    assert!(frames.farewell().is_some());
}
