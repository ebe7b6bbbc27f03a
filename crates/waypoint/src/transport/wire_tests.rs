//! What a client that floods takes of its thread in a turn, before all others have theirs.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use leno_testkit::frames::{Frames, GET, POST, kind};
use leno_tunnel::frame::{HEADERS, PREFACE, Piece, Splitter};
use parking_lot::Mutex;

use super::*;
use crate::test_support::{Tunnel, tunnel};
use crate::transport::timer::{Here, Timer};

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../tests/attacks/kinds.rs"]
mod kinds;

/// Frames of a turn, as [`crate::transport::h2_flood`] bounds them.
const FRAMES_MOST: u32 = 80;

/// Requests of a turn. Each costs as much as eight frames.
const REQUESTS_MOST: u32 = FRAMES_MOST / 8;

/// Bytes of each flood: what a tunnel's window has room for at once, and many turns' worth of most.
const FLOOD: usize = 60 << 10;

/// What the HTTP library gets to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Taken {
    frames: u32,
    requests: u32,
    bytes: usize,
}

/// Counts what is read from a wire.
struct Counted {
    wire: Wire,
    splitter: Splitter,
    taken: Arc<Mutex<Taken>>,
}

impl Read for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let mut bytes = vec![0; buf.remaining()];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut this.wire).poll_read(cx, read.unfilled()))?;
        let (mut taken, mut at) = (this.taken.lock(), 0);
        taken.bytes += read.filled().len();
        while let Some(piece) = this.splitter.next(read.filled(), &mut at) {
            if let Piece::Head(head) = piece {
                taken.frames += 1;
                taken.requests += u32::from(head.kind == HEADERS);
            }
        }
        buf.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

/// Answers requests until the connection ends. What is read is counted in `taken`.
async fn serve(here: TunnelStream, requests: Arc<Requests>, taken: Arc<Mutex<Taken>>) {
    let wire = Wire::tunnel(here).http2(requests.clone(), Arc::default());
    let looking = requests.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        looking.looked_at();
        async move {
            let _ = request.into_body().collect().await;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
        }
    });
    let wire = Counted { wire, splitter: Splitter::new(PREFACE), taken };
    let mut builder = http2::Builder::new(Here);
    builder.timer(Timer).max_pending_accept_reset_streams(128);
    let mut connection = pin!(builder.serve_connection(wire, service));
    let _ = poll_fn(|cx| {
        requests.next_turn();
        connection.as_mut().poll(cx)
    })
    .await;
}

/// What a flood takes between two turns of a neighbour, which has one whenever all others had theirs.
async fn turns(flood: kinds::Flood) -> Vec<Taken> {
    let Tunnel { peer, here, _pool } = tunnel().await;
    let mut attacker = Frames::start(peer).await.unwrap();
    attacker.queue_request(1, POST, 0);
    for number in 0.. {
        if attacker.queued() >= FLOOD {
            break;
        }
        flood(&mut attacker, number);
    }
    let all = attacker.queued();
    attacker.flush().await.unwrap();

    let taken = Arc::<Mutex<Taken>>::default();
    let serving = tokio::spawn(serve(here, Arc::default(), taken.clone()));
    let neighbour = tokio::spawn(async move {
        let (mut turns, mut bytes) = (Vec::new(), 0);
        poll_fn(|cx| {
            let turn = std::mem::take(&mut *taken.lock());
            bytes += turn.bytes;
            if turn.bytes > 0 {
                turns.push(turn);
            }
            if bytes >= all || serving.is_finished() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        turns
    });
    neighbour.await.unwrap()
}

#[tokio::test]
async fn a_flood_takes_short_turns_whatever_it_sends() {
    for (what, flood) in kinds::FLOODS {
        let turns = turns(flood).await;
        let most = |of: fn(&Taken) -> u32| turns.iter().map(of).max().unwrap();
        let (frames, requests) = (most(|turn| turn.frames), most(|turn| turn.requests));
        println!("{what}: {} turns of at most {frames} frames, {requests} heads", turns.len());
        assert!(frames <= FRAMES_MOST && requests <= REQUESTS_MOST, "{what}: {turns:?}");
    }
}

#[tokio::test]
async fn who_asks_for_much_at_once_is_in_no_doubt() {
    const MANY: u32 = 200;
    let Tunnel { peer, here, _pool } = tunnel().await;
    let requests = Arc::<Requests>::default();
    tokio::spawn(serve(here, requests.clone(), Arc::default()));
    let mut client = Frames::start(peer).await.unwrap();
    for number in 0..MANY {
        client.queue_request(2 * number + 1, GET, 1);
    }
    client.flush().await.unwrap();
    let mut answers = 0;
    while answers < MANY {
        let frame = client.next().await.expect("the connection goes on");
        answers += u32::from(frame.kind == kind::HEADERS);
    }
    // Another look at what came of them.
    client.queue_request(2 * MANY + 1, GET, 1);
    client.flush().await.unwrap();
    while client.next().await.unwrap().stream != 2 * MANY + 1 {}
    assert!(!requests.is_doubtful(), "every request was looked at, and none was given up");
}
