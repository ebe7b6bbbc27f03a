//! Peers that send more than a thread can take in, without end: how much of it a turn takes, whatever it is. Between two
//! turns of a connection's task, the thread's other tasks have theirs. No clock is needed for that.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::ready;

use tokio::io::AsyncWrite;
use tokio::task::coop::poll_proceed;

use super::super::demux::{FRAMES, OF_OTHERS, OF_REQUESTS};
use super::*;

/// Turns that are looked at. What a flood is at liberty to send in ten seconds is more.
const TURNS: usize = 400;

/// Bytes that no turns take so many of, all together.
const MOST: usize = 256 << 20;

/// Units of a task's budget, of 128 for a turn, that a read costs.
const SHARES: usize = 16;

/// The peer's stream that leads to a program, which reads all.
const TUNNEL: u32 = 1;

const PING: u8 = 6;
const PRIORITY: u8 = 2;
const CONTINUATION: u8 = 9;

/// The code by which a peer is told that it floods.
const CALM: u32 = 11;

/// The frames of a flood, by number; and what they count as together.
type Flood = (&'static str, fn(u32) -> Vec<u8>, u32);

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

fn request(number: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 2 * number + 3, CONNECT)
}

const FLOODS: [Flood; 14] = [
    ("PING", |_| frame(PING, 0, 0, &[0; 8]), OF_OTHERS),
    ("PING's answers", |_| frame(PING, ACK, 0, &[0; 8]), OF_OTHERS),
    ("SETTINGS", |n| frame(SETTINGS, 0, 0, &[0, 4, 0, 1, (n >> 8) as u8, n as u8]), OF_OTHERS),
    ("a stream's WINDOW_UPDATE", |_| window_update(TUNNEL, 1), OF_OTHERS),
    ("the connection's WINDOW_UPDATE", |_| window_update(0, 1), OF_OTHERS),
    ("empty DATA", |_| frame(DATA, 0, TUNNEL, &[]), 1),
    ("DATA of one byte", |_| frame(DATA, 0, TUNNEL, b"x"), 1),
    ("DATA of padding", |_| frame(DATA, 0x8, TUNNEL, &[0]), 1),
    ("PRIORITY", |n| frame(PRIORITY, 0, 2 * n + 3, &[0, 0, 0, 0, 1]), OF_OTHERS),
    ("a kind that nobody knows", |_| frame(0x7e, 0, 0, &[]), OF_OTHERS),
    ("RST_STREAM", |_| frame(RST_STREAM, 0, TUNNEL, &[0, 0, 0, 8]), OF_REQUESTS),
    (
        "requests given up (CVE-2023-44487)",
        |n| [request(n), frame(RST_STREAM, 0, 2 * n + 3, &[0, 0, 0, 8])].concat(),
        2 * OF_REQUESTS,
    ),
    (
        "requests to be reset (CVE-2025-8671)",
        |n| [request(n), window_update(2 * n + 3, u32::MAX >> 1)].concat(),
        OF_REQUESTS + OF_OTHERS,
    ),
    (
        "headers without end (CVE-2024-27316)",
        |n| frame(if n == 0 { HEADERS } else { CONTINUATION }, 0, 3, &[0, 1, b'a', 1, b'b']),
        OF_OTHERS,
    ),
];

/// A transport that always has more of a flood, and takes all that is written.
struct Endless {
    flood: fn(u32) -> Vec<u8>,
    number: u32,
    rest: Vec<u8>,
    /// Bytes that were read.
    taken: Arc<AtomicUsize>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Endless {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // As TLS makes its task pay for what it opens.
        for _ in 0..SHARES {
            ready!(poll_proceed(cx)).made_progress();
        }
        let this = &mut *self;
        while this.rest.len() < buf.remaining() {
            this.rest.extend((this.flood)(this.number));
            this.number += 1;
        }
        let length = buf.remaining();
        buf.put_slice(&this.rest[..length]);
        this.rest.drain(..length);
        let before = this.taken.fetch_add(length, Relaxed);
        assert!(before < MOST, "a turn without end");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.written.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Transport for Endless {}

/// The code of the GOAWAY among the frames that were written, if there is one.
fn told(written: &[u8]) -> Option<u32> {
    let (mut splitter, mut at, mut goaway) = (Splitter::new(0), 0, false);
    while let Some(piece) = splitter.next(written, &mut at) {
        match piece {
            Piece::Head(head) => goaway = head.kind == GOAWAY,
            Piece::Payload(range, _) if goaway => return Some(word(&written[range], 4)),
            _ => {}
        }
    }
    None
}

/// What a server does with a request: the tunnel's program reads all, and the others' answer does not come.
fn attend(mut request: InboundConnect, number: usize) {
    tokio::spawn(async move {
        if number > 0 {
            request.cancelled().await;
        } else if let Ok(mut stream) = request.accept(HeaderMap::new()) {
            while let Ok(Some(_)) = stream.chunk().await {}
        }
    });
}

#[tokio::test(start_paused = true)]
async fn of_no_flood_a_turn_takes_more_than_its_share() {
    for (what, flood, weight) in FLOODS {
        let (taken, written) = <(Arc<AtomicUsize>, Arc<Mutex<Vec<u8>>>)>::default();
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, END_HEADERS, TUNNEL, CONNECT)].concat();
        let io = Endless { flood, number: 0, rest: begin, taken: taken.clone(), written: written.clone() };
        let mut requests = 0..;
        let settings = Settings::default();
        let take = |request| attend(request, requests.next().unwrap_or_default());
        let mut served = pin!(serve(io, &settings, std::future::pending(), take));

        let mut turns = 0;
        let end = poll_fn(|cx| {
            turns += 1;
            let pending = served.as_mut().poll(cx).is_pending();
            // Who was told to calm down is read on for a while, and nothing is handled any more.
            let told = told(&written.lock());
            if told.is_some() || turns == TURNS {
                return Poll::Ready(told);
            }
            assert!(pending, "{what}: ended without a word");
            // The task has woken itself: nobody else does, for all that it waits for is there.
            Poll::Pending
        });
        let told = timeout(HANGS, end).await.unwrap_or_else(|_| panic!("{what}: asleep after {turns} turns"));

        // What was read last is handled in the turns to come.
        let handled = taken.load(Relaxed).saturating_sub(2 * LARGEST_READ) / flood(1).len();
        let most = turns * FRAMES as usize / weight as usize + turns;
        println!("{what}: {handled} of {most} in {turns} turns, {told:?}");
        assert!(handled <= most, "{what}: {handled} in {turns} turns");
        assert!(told.is_none_or(|code| code == CALM), "{what}: {told:?}");
    }
}
