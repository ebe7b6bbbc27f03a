//! Which clients are disconnected.

use std::net::Ipv4Addr;

use super::*;

const END_HEADERS: u8 = 4;
const PING: u8 = 6;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Head { length: payload.len() as u32, kind, flags, stream: 1 }.bytes().to_vec();
    frame.extend(payload);
    frame
}

/// How many such frames a client may send before it is disconnected; `most` at most. `answer` is what the server sends
/// after each.
fn borne(each: &[u8], answer: &[u8], most: usize) -> usize {
    let mut calming = Calming::new(tokio::io::empty(), (Ipv4Addr::LOCALHOST, 1).into());
    calming.came(&[0; PREFACE as usize]);
    for n in 0..most {
        calming.came(each);
        if calming.leaving.is_some() {
            return n;
        }
        calming.went(std::iter::once(answer), answer.len());
    }
    most
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_are_earned_by_what_they_acknowledge() {
    const MANY: usize = 1_000_000;
    let (acknowledgement, resources) = (frame(DATA, 0, b"an acknowledgement"), frame(DATA, 0, b"resources"));
    assert_eq!(borne(&acknowledgement, &resources, MANY), MANY);
    assert!(borne(&acknowledgement, &[], MANY) < MANY, "of nothing");
}

#[tokio::test(start_paused = true)]
async fn a_clients_own_bytes_earn_it_nothing() {
    let pings = [frame(DATA, 0, &[0; 600]), frame(PING, 0, &[0; 8]), frame(PING, 0, &[0; 8])].concat();
    assert!(borne(&pings, &[], 100_000) <= MOST as usize / 2);
}

#[tokio::test(start_paused = true)]
async fn requests_earn_by_being_answered() {
    let request = frame(HEADERS, END_HEADERS, b"a request");
    let (answer, refusal) = (frame(HEADERS, END_HEADERS, b"yes"), frame(HEADERS, END_HEADERS | END_STREAM, b"no"));
    assert!(borne(&request, &refusal, 100_000) <= MOST as usize);
    assert_eq!(borne(&request, &answer, 100_000), 100_000);
}
