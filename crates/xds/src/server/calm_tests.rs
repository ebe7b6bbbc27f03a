//! Which clients are sent away.

use std::net::Ipv4Addr;

use super::*;

const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 1]);
    frame.extend(payload);
    frame
}

/// How many of such frames are borne of a client, `most` at most. `answer` is what it is told after each.
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
async fn frames_earn_by_the_bytes_in_them() {
    const MANY: usize = 1_000_000;
    assert!(borne(&frame(DATA, 0, b"x"), &[], MANY) < MANY, "bytes one by one");
    assert_eq!(borne(&frame(DATA, 0, b"an acknowledgement"), &[], MANY), MANY);
}

#[tokio::test(start_paused = true)]
async fn requests_earn_by_being_answered() {
    let request = frame(HEADERS, END_HEADERS, b"a request");
    let (answer, refusal) = (frame(HEADERS, END_HEADERS, b"yes"), frame(HEADERS, END_HEADERS | END_STREAM, b"no"));
    assert!(borne(&request, &refusal, 100_000) <= MOST as usize);
    assert_eq!(borne(&request, &answer, 100_000), 100_000);
}
