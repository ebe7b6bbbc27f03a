//! What a waypoint finds out from bytes without an HTTP library: which protocol a connection speaks, where its requests
//! begin and whether one may be read in two ways, whether an HTTP/2 client floods, how many gRPC messages a body has, and which
//! trace a request belongs to.
#![no_main]

// The files themselves: the crate they belong to is a whole proxy.
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/transport/detect_protocol.rs"]
mod detect_protocol;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/transport/h2_flood.rs"]
mod h2_flood;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/transport/h1_smuggling.rs"]
mod h1_smuggling;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/transport/header_count.rs"]
mod header_count;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/body/grpc_messages.rs"]
mod grpc_messages;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/transport/h2_budget.rs"]
mod h2_budget;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/transport/concurrent_streams.rs"]
mod concurrent_streams;
#[allow(dead_code)]
#[path = "../../crates/waypoint/src/request/trace_context.rs"]
mod trace_context;

use std::sync::Arc;

use detect_protocol::{Spoken, spoken};
use h2_flood::{Frames, Look};
use h1_smuggling::{Ambiguity, Framing};
use header_count::Fields;
use grpc_messages::Messages;
use concurrent_streams::{FirstSettings, Streams};

/// What is found in these pieces, and in which request.
fn look<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (u64, Option<Ambiguity>) {
    let mut framing = Framing::default();
    let found = pieces.fold(None, |found, piece| found.or(framing.look(piece).err()));
    (framing.requests(), found)
}

/// A request that any library reads, by a few numbers; with both lengths if `twice`.
fn request(kind: u8, body: &[u8], twice: bool) -> Vec<u8> {
    let mut bytes = b"POST /x HTTP/1.1\r\nHost: a\r\n".to_vec();
    if twice && kind & 2 != 0 {
        bytes.extend(b"Transfer-Encoding: chunked\r\n");
    }
    if twice || kind & 1 == 0 {
        bytes.extend(format!("content-LENGTH: {}\r\n", body.len()).bytes());
    }
    if twice && kind & 2 == 0 || !twice && kind & 1 != 0 {
        bytes.extend(b"transfer-encoding:chunked\r\n");
    }
    bytes.extend(b"\r\n");
    if kind & 1 == 0 {
        bytes.extend(body);
        return bytes;
    }
    for chunk in body.chunks(usize::from(kind).max(1)) {
        bytes.extend(format!("{:X};a\r\n", chunk.len()).bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\nx: y\r\n\r\n");
    bytes
}

libfuzzer_sys::fuzz_target!(|input: (&[u8], u8, Vec<(u8, Vec<u8>)>, Option<u8>)| {
    let (bytes, size, requests, twice) = input;
    let size = usize::from(size).max(1);

    // Whoever speaks goes on to speak the same.
    let all = spoken(bytes);
    for end in 0..bytes.len().min(64) {
        let part = spoken(&bytes[..end]);
        assert!(part == Spoken::Unclear || part == all, "{part:?} became {all:?}");
    }

    // However it is cut, what is ambiguous stays so. In pieces, more may be: a line too long to be kept.
    let (number, whole) = look(std::iter::once(bytes));
    let (cut_number, cut) = look(bytes.chunks(size));
    match (whole, cut) {
        (None, None) => assert_eq!(number, cut_number),
        (Some(_), None) => panic!("{whole:?} is overlooked in pieces of {size}"),
        (_, Some(cut)) => assert!(cut_number <= number && (whole == Some(cut) || cut == Ambiguity::Unreadable)),
    }

    // Requests that are sound are found, and the one that says two lengths.
    let twice = twice.map(|twice| usize::from(twice) % (requests.len() + 1));
    let mut sent = Vec::new();
    for (index, (kind, body)) in requests.iter().enumerate() {
        sent.extend(request(*kind, body, twice == Some(index)));
    }
    let expected = match twice.filter(|twice| *twice < requests.len()) {
        Some(twice) => (twice as u64 + 1, Some(Ambiguity::TwoLengths)),
        None => (requests.len() as u64, None),
    };
    assert_eq!(look(sent.chunks(size)), expected);

    let mut frames = Frames::new(Arc::default(), Arc::default());
    for mut piece in bytes.chunks(size) {
        while let Look::Turn(some) = frames.look(piece) {
            assert!((1..=piece.len()).contains(&some), "a turn without end");
            frames.rest();
            piece = &piece[some..];
        }
    }

    let most = |size: usize| {
        let streams = Arc::new(Streams::new(100));
        let mut first = FirstSettings::new(streams.clone());
        (bytes.chunks(size).any(|piece| first.look(piece)), streams.most())
    };
    assert_eq!(most(bytes.len().max(1)), most(size));

    let (mut whole, mut cut) = (Fields::default(), Fields::default());
    let in_pieces = bytes.chunks(size).map(|piece| cut.begun(piece)).sum::<u32>();
    assert_eq!((whole.begun(bytes), whole), (in_pieces, cut));

    let mut messages = Messages::default();
    let in_pieces = bytes.chunks(size).map(|piece| messages.begun(piece)).sum::<u64>();
    assert_eq!(Messages::default().begun(bytes), in_pieces);

    let mut headers = http::HeaderMap::new();
    if let Ok(value) = http::HeaderValue::from_bytes(bytes) {
        headers.insert("traceparent", value);
    }
    let trace = trace_context::follow(&mut headers, Some(1.0));
    let again = trace_context::follow(&mut headers, None);
    assert_eq!((again.id, again.told), (trace.id, false));
});
