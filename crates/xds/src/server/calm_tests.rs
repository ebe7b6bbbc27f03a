//! Which clients are disconnected.

use std::future::poll_fn;
use std::net::Ipv4Addr;

use tokio::io::AsyncWriteExt;

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

/// Bytes that the library gets in each turn, of a client that has sent so many of a frame. A turn ends when the connection's
/// task lets others have theirs.
async fn turns(each: &[u8], count: usize) -> Vec<usize> {
    let (mut client, server) = tokio::io::duplex(8 << 20);
    client.write_all(&[0; PREFACE as usize]).await.unwrap();
    client.write_all(&each.repeat(count)).await.unwrap();
    let mut calming = Calming::new(server, (Ipv4Addr::LOCALHOST, 1).into());
    let (mut turns, mut left) = (Vec::new(), PREFACE as usize + count * each.len());
    while left > 0 {
        let mut turn = 0;
        poll_fn(|cx| {
            let (mut room, before) = ([0; 64 << 10], turn);
            let mut read = ReadBuf::new(&mut room);
            while turn - before < left && Pin::new(&mut calming).poll_read(cx, &mut read).map(Result::unwrap).is_ready()
            {
                turn += read.filled().len();
                read.clear();
            }
            Poll::Ready(())
        })
        .await;
        left -= turn;
        turns.push(turn);
        tokio::task::yield_now().await;
    }
    turns
}

#[tokio::test(start_paused = true)]
async fn a_flood_takes_short_turns_whatever_it_sends() {
    const COUNT: usize = 5000;
    for each in [
        frame(PING, 0, &[0; 8]),
        frame(0x7e, 0, &[]),
        frame(DATA, 0, &[0]),
        frame(CONTINUATION, 0, &[]),
        frame(DATA, 0, &[0; 1000]),
    ] {
        let turns = turns(&each, COUNT).await;
        // Each turn ends with the read by which it has cost enough.
        let cost = |bytes: usize| bytes + bytes / each.len() * (FRAME - HEAD);
        let longest = *turns.iter().max().unwrap();
        assert!(cost(longest.saturating_sub(READ)) <= TURN, "{longest} bytes of frames of {}", each.len());
        assert!(turns.len() >= cost(COUNT * each.len()) / (TURN + cost(READ)), "{} turns", turns.len());
    }
}
