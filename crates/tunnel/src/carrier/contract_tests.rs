//! Behaviour of the HTTP/2 library that the carrier relies on and that the library does not document. The library is
//! tested alone, without a carrier. If one of these tests fails after an update, its message says what breaks in the
//! carrier. Cargo.toml pins the version that was read and tested.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use h2::Reason;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex as Lock;
use tokio::io::AsyncWrite;

use super::*;

const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const LARGEST_WINDOW: u32 = u32::MAX >> 1;

type Asked = (Request<h2::RecvStream>, SendResponse<Bytes>);

/// The library as a server, with this crate's settings, for a client that sends arbitrary frames.
struct Alone {
    raw: Raw,
    requests: mpsc::UnboundedReceiver<Asked>,
    drain: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), h2::Error>>,
}

impl Alone {
    async fn start(client: &[u8]) -> Self {
        let (near, far) = duplex(1 << 20);
        let (seen, requests) = mpsc::unbounded_channel();
        let (drain, mut drained) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut connection = small().server().handshake(far).await?;
            let mut draining = false;
            loop {
                tokio::select! {
                    _ = &mut drained, if !draining => {
                        draining = true;
                        connection.graceful_shutdown();
                    }
                    next = connection.accept() => match next {
                        Some(Ok(asked)) => drop(seen.send(asked)),
                        Some(Err(error)) => return Err(error),
                        None => return Ok(()),
                    },
                }
            }
        });
        let mut raw = Raw::new(near);
        raw.io.write_all(PREFACE).await.unwrap();
        raw.send(SETTINGS, 0, 0, client).await;
        raw.send(SETTINGS, ACK, 0, &[]).await;
        Self { raw, requests, drain: Some(drain), task }
    }

    async fn asked(&mut self, id: u32) -> Asked {
        self.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
        timeout(HANGS, self.requests.recv()).await.expect("the request is handed out").unwrap()
    }

    /// All frames until nothing more comes.
    async fn rest(&mut self) -> Vec<(Head, Vec<u8>)> {
        rest(&mut self.raw).await
    }
}

async fn rest(raw: &mut Raw) -> Vec<(Head, Vec<u8>)> {
    let mut all = Vec::new();
    while let Ok(Some(frame)) = timeout(HANGS, raw.frame()).await {
        all.push(frame);
    }
    all
}

fn accepted() -> Response<()> {
    Response::new(())
}

/// The library as a client, for a server that sends arbitrary frames.
async fn client() -> (Raw, SendRequest<Bytes>) {
    let (near, far) = duplex(1 << 20);
    let (send, connection) = small().client().handshake::<_, Bytes>(near).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let mut raw = Raw::new(far);
    raw.io.read_exact(&mut [0; 24]).await.unwrap();
    raw.send(SETTINGS, 0, 0, &[]).await;
    raw.send(SETTINGS, ACK, 0, &[]).await;
    (raw, send)
}

fn connect() -> Request<()> {
    Request::builder().method(Method::CONNECT).uri("x:1").body(()).unwrap()
}

fn announces_as_the_carrier_counts(frames: &[(Head, Vec<u8>)]) {
    let (head, payload) = &frames[0];
    assert_eq!(head.kind, SETTINGS, "the settings come first (RFC 9113 §3.4)");
    let settings: Vec<_> = payload.chunks(6).map(|s| (u16::from_be_bytes([s[0], s[1]]), word(s, 2))).collect();
    let updates = frames.iter().filter(|(head, _)| head.kind == WINDOW_UPDATE);
    let updates: Vec<_> = updates.map(|(head, payload)| (head.stream, word(payload, 0))).collect();
    assert_eq!(
        updates,
        [(0, CONNECTION as u32 - 65_535)],
        "`Incoming::new` counts on one announcement of `connection_window`, and the carrier makes all others: with \
         none, peers stall after 64 KiB; with more, they are cut for what they were allowed (FLOW_CONTROL_ERROR)"
    );
    let at = frames.iter().position(|(head, _)| head.kind == WINDOW_UPDATE).unwrap();
    assert!(
        frames[..at].iter().all(|(head, _)| head.stream == 0),
        "the window is announced before anything of a stream: the carrier's own updates build on it"
    );
    for (name, value) in [(4, small().first_stream_window()), (5, FRAME as u32)] {
        assert!(
            settings.contains(&(name, value)),
            "setting {name} is not {value} but {settings:?}: `Incoming` holds peers to `Settings`, not to what was said"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_announces_the_connections_window_once_and_first() {
    let mut alone = Alone::start(&[]).await;
    let mut held = Vec::new();
    for id in [1, 3, 5] {
        let (request, mut respond) = alone.asked(id).await;
        let send = respond.send_response(accepted(), false).unwrap();
        alone.raw.send(DATA, END_STREAM, id, &[]).await;
        held.push((request, send));
    }
    let frames = alone.rest().await;
    drop(held);
    announces_as_the_carrier_counts(&frames.into_iter().chain(alone.rest().await).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_client_announces_the_connections_window_once_and_first() {
    let (mut raw, mut send) = client().await;
    let (mut held, mut frames) = (Vec::new(), Vec::new());
    for id in [1, 3, 5] {
        held.push(send.send_request(connect(), false).unwrap());
        frames.extend(rest(&mut raw).await);
        raw.send(HEADERS, END_HEADERS, id, OK).await;
        raw.send(DATA, END_STREAM, id, &[]).await;
        frames.extend(rest(&mut raw).await);
    }
    drop(held);
    frames.extend(rest(&mut raw).await);
    announces_as_the_carrier_counts(&frames);
}

const ENDS: &str = "the carrier tells the library of each stream's end by an empty DATA frame with END_STREAM (`tell_end`): \
                    were those counted as empty frames are, each connection would die after so many streams";

#[tokio::test(start_paused = true)]
async fn a_server_takes_empty_ends_without_number() {
    let mut alone = Alone::start(&[]).await;
    for index in 0..3_000 {
        let id = 2 * index + 1;
        let (request, mut respond) = alone.asked(id).await;
        let mut send = respond.send_response(accepted(), false).unwrap();
        alone.raw.send(DATA, END_STREAM, id, &[]).await;
        let mut body = request.into_body();
        let ended = timeout(HANGS, body.data()).await.unwrap_or_else(|_| panic!("stream {id} does not end: {ENDS}"));
        assert!(ended.is_none_or(|data| data.is_ok_and(|data| data.is_empty())), "stream {id}: {ENDS}");
        send.send_data(Bytes::new(), true).unwrap();
    }
    for (head, payload) in alone.rest().await {
        assert!(!matches!(head.kind, GOAWAY | RST_STREAM), "{head:?} {payload:?}: {ENDS}");
    }
    assert!(!alone.task.is_finished(), "{ENDS}");
}

#[tokio::test(start_paused = true)]
async fn a_client_takes_empty_ends_without_number() {
    let (mut raw, send) = client().await;
    for index in 0..3_000 {
        let id = 2 * index + 1;
        let mut ready = send.clone().ready().await.unwrap_or_else(|error| panic!("stream {id}: {error}: {ENDS}"));
        let (answer, mut stream) = ready.send_request(connect(), false).unwrap();
        raw.until(HEADERS).await;
        raw.send(HEADERS, END_HEADERS, id, OK).await;
        raw.send(DATA, END_STREAM, id, &[]).await;
        let mut body = answer.await.unwrap_or_else(|error| panic!("stream {id}: {error}: {ENDS}")).into_body();
        let ended = timeout(HANGS, body.data()).await.unwrap_or_else(|_| panic!("stream {id} does not end: {ENDS}"));
        assert!(ended.is_none_or(|data| data.is_ok_and(|data| data.is_empty())), "stream {id}: {ENDS}");
        stream.send_data(Bytes::new(), true).unwrap();
        raw.until(DATA).await;
    }
}

/// The peer's window is 0, as far as the library knows: it sees no WINDOW_UPDATE.
#[tokio::test(start_paused = true)]
async fn an_end_of_ours_is_one_empty_frame_behind_the_headers_whatever_the_windows() {
    let mut alone = Alone::start(&setting(4, 0)).await;
    let (_request, mut respond) = alone.asked(1).await;
    let mut send = respond.send_response(accepted(), false).unwrap();
    send.send_data(Bytes::new(), true).unwrap();
    let frames = alone.rest().await;
    let found: Vec<_> = frames.iter().map(|(head, _)| *head).filter(|head| head.stream == 1).collect();
    let head = |kind, flags, length| Head { length, kind, flags, stream: 1 };
    assert!(
        found.len() == 2
            && found[1] == head(DATA, END_STREAM, 0)
            && (found[0].kind, found[0].flags) == (HEADERS, END_HEADERS),
        "{found:?}: `library_frame_passed` takes this frame for the end of what the stream sends; where it waits for a \
         window that the library never sees opened, no program learns that its peer has closed"
    );
}

#[tokio::test(start_paused = true)]
async fn frames_of_a_stream_leave_in_the_order_in_which_they_were_given() {
    let mut alone = Alone::start(&[]).await;
    let (_, mut respond) = alone.asked(1).await;
    let mut send = respond.send_response(accepted(), false).unwrap();
    assert_eq!(alone.raw.until(HEADERS).await.0.stream, 1);
    send.send_reset(Reason::CANCEL);
    let last = alone.raw.until(RST_STREAM).await;
    assert_eq!((last.0.stream, word(&last.1, 0)), (1, 8));
    assert!(
        alone.rest().await.iter().all(|(head, _)| head.stream != 1),
        "something of a stream follows its reset: the carrier has forgotten the stream then"
    );
}

/// Several tasks open streams at the same time.
#[tokio::test(start_paused = true)]
async fn requests_leave_in_the_order_of_their_numbers_which_are_known_before() {
    let (mut raw, send) = client().await;
    // Settings are in: the library sends no more than one request before.
    rest(&mut raw).await;
    let mut held = Vec::new();
    for index in 0..20u32 {
        let (answer, stream) = send.clone().send_request(connect(), false).unwrap();
        assert_eq!(u32::from(stream.stream_id()), 2 * index + 1, "`Permit::connect` attaches a lane by this number");
        held.push((answer, stream));
    }
    for index in 0..20 {
        let id = raw.until(HEADERS).await.0.stream;
        assert_eq!(
            id,
            2 * index + 1,
            "`begin` and `last_begun` take numbers to rise: an earlier stream would be refused"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_stands_inside_a_header_block() {
    let mut alone = Alone::start(&[]).await;
    let (_request, mut respond) = alone.asked(1).await;
    let mut answer = accepted();
    for index in 0..8 {
        let name = http::HeaderName::try_from(format!("x-{index}")).unwrap();
        answer.headers_mut().insert(name, "~".repeat(8 << 10).try_into().unwrap());
    }
    for n in 0..50 {
        alone.raw.send(PING, 0, 0, &[n; 8]).await;
    }
    let _send = respond.send_response(answer, false).unwrap();
    for n in 50..100 {
        alone.raw.send(PING, 0, 0, &[n; 8]).await;
    }
    let frames = alone.rest().await;
    let at = frames.iter().position(|(head, _)| head.kind == HEADERS).unwrap();
    let rest = &frames[at + 1..];
    let blocks = rest.iter().take_while(|(head, _)| head.kind == CONTINUATION).count();
    assert!(blocks > 1 && rest[blocks - 1].0.has(END_HEADERS), "the answer was to be long: {blocks}");
    assert!(
        rest[blocks..].iter().all(|(head, _)| head.kind != CONTINUATION),
        "the library sends other frames inside a header block: the carrier holds its own back, and expects no others"
    );
}

const OVERFLOW: &str = "`window_opens` has the library reset a stream whose window the peer opened too far, by two \
                        WINDOW_UPDATEs of the largest size: the library sees no others and no DATA, so that it counts \
                        between 0 and the largest before";

#[tokio::test(start_paused = true)]
async fn two_of_the_largest_window_updates_reset_their_stream_alone() {
    for initial in [0, 1, 65_535, LARGEST_WINDOW] {
        for answered in [false, true] {
            let mut alone = Alone::start(&setting(4, initial)).await;
            let (_other, mut other) = alone.asked(1).await;
            let (_request, mut respond) = alone.asked(3).await;
            let _send = answered.then(|| respond.send_response(accepted(), false).unwrap());
            if answered {
                alone.raw.until(HEADERS).await;
            }
            for _ in 0..2 {
                alone.raw.window_update(3, LARGEST_WINDOW).await;
            }
            let resets: Vec<_> = alone.rest().await.into_iter().filter(|(head, _)| head.kind == RST_STREAM).collect();
            assert_eq!(resets.len(), 1, "{initial} {answered} {resets:?}: {OVERFLOW}");
            assert_eq!((resets[0].0.stream, word(&resets[0].1, 0)), (3, 3), "{initial} {answered}: {OVERFLOW}");
            let _other = other.send_response(accepted(), false).unwrap();
            assert_eq!(alone.raw.until(HEADERS).await.0.stream, 1, "{OVERFLOW}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_too_resets_only_the_stream_of_two_largest_window_updates() {
    let (mut raw, mut send) = client().await;
    let (first, _one) = send.send_request(connect(), false).unwrap();
    raw.until(HEADERS).await;
    let (second, _two) = send.send_request(connect(), false).unwrap();
    raw.until(HEADERS).await;
    for _ in 0..2 {
        raw.window_update(3, LARGEST_WINDOW).await;
    }
    let reset = raw.until(RST_STREAM).await;
    assert_eq!((reset.0.stream, word(&reset.1, 0)), (3, 3), "{OVERFLOW}");
    assert!(second.await.is_err(), "{OVERFLOW}");
    raw.send(HEADERS, END_HEADERS, 1, OK).await;
    assert_eq!(first.await.unwrap().status(), StatusCode::OK, "{OVERFLOW}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_leaves_says_which_streams_it_serves_and_ignores_the_others() {
    let mut alone = Alone::start(&[]).await;
    let _first = alone.asked(1).await;
    alone.drain.take().unwrap().send(()).unwrap();
    let (_, payload) = alone.raw.until(GOAWAY).await;
    assert_eq!(
        word(&payload, 0),
        LARGEST_WINDOW,
        "the first word of a drain takes in all streams that are on their way"
    );
    let (_, ping) = alone.raw.until(PING).await;
    alone.raw.send(PING, ACK, 0, &ping).await;
    let (_, payload) = alone.raw.until(GOAWAY).await;
    assert_eq!(word(&payload, 0), 1, "`nothing_served_after` takes this number to be final");
    alone.raw.send(HEADERS, END_HEADERS, 3, CONNECT).await;
    alone.raw.send(DATA, END_STREAM, 3, &[]).await;
    let late = alone.rest().await;
    assert!(
        alone.requests.try_recv().is_err() && late.iter().all(|(head, _)| head.stream != 3),
        "{late:?}: `nothing_served_after` forgets later streams, and their bytes"
    );
}

/// A transport that checks who calls it.
struct Watched {
    io: DuplexStream,
    calls: Arc<AtomicUsize>,
    read: Arc<AtomicUsize>,
    /// Who polls the library now. Nobody else may call the transport.
    task: Arc<Lock<Option<Waker>>>,
    /// Whether it takes nothing.
    full: Arc<AtomicBool>,
}

impl Watched {
    fn called(&self, cx: &Context<'_>) {
        self.calls.fetch_add(1, Relaxed);
        let task = self.task.lock().clone().expect(
            "the transport is called while nobody polls the connection: the carrier would be entered with the \
             library's lock held by a task of a stream, and its turn would not know",
        );
        assert!(
            cx.waker().will_wake(&task),
            "the library gives the transport a waker of its own. The carrier wakes it with its lock held (`wake_library`): \
             if it runs the library's code, that may wait for a thread that holds the library's lock and waits for \
             the carrier's"
        );
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.called(cx);
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        self.read.fetch_add(buf.filled().len() - before, Relaxed);
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.called(cx);
        if self.full.load(Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.called(cx);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.called(cx);
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A server of the library that is polled only by the test.
struct ByHand {
    connection: h2::server::Connection<Watched, Bytes>,
    raw: Raw,
    calls: Arc<AtomicUsize>,
    read: Arc<AtomicUsize>,
    task: Arc<Lock<Option<Waker>>>,
    full: Arc<AtomicBool>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl ByHand {
    async fn start() -> Self {
        let (near, far) = duplex(4 << 20);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let (calls, read, full) = (Arc::default(), Arc::default(), Arc::default());
        let task = Arc::new(Lock::new(Some(waker.clone())));
        let (counted, seen, stops) = (Arc::clone(&calls), Arc::clone(&read), Arc::clone(&full));
        let io = Watched { io: far, calls: counted, read: seen, task: task.clone(), full: stops };
        let mut raw = Raw::new(near);
        raw.io.write_all(PREFACE).await.unwrap();
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw.send(SETTINGS, ACK, 0, &[]).await;
        let mut handshake = Box::pin(small().server().handshake(io));
        let connection = match handshake.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(connection) => connection.unwrap(),
            Poll::Pending => panic!("all of the handshake is there"),
        };
        task.lock().take();
        Self { connection, raw, calls, read, task, full, woken }
    }

    fn poll(&mut self) -> Option<Asked> {
        let waker = Waker::from(self.woken.clone());
        *self.task.lock() = Some(waker.clone());
        let polled = self.connection.poll_accept(&mut Context::from_waker(&waker));
        self.task.lock().take();
        match polled {
            Poll::Ready(Some(asked)) => Some(asked.unwrap()),
            Poll::Ready(None) => panic!("the connection is over"),
            Poll::Pending => None,
        }
    }

    async fn asked(&mut self, id: u32) -> Asked {
        self.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
        self.poll().expect("the request is handed out")
    }
}

/// Checked by [`Watched`], also within the connection's own poll.
#[tokio::test(start_paused = true)]
async fn whoever_holds_a_stream_never_calls_the_transport() {
    let mut by_hand = ByHand::start().await;
    type Act = fn(Asked);
    let acts: [(&str, Act); 6] = [
        ("answers", |(request, mut respond)| drop((respond.send_response(accepted(), false).unwrap(), request))),
        ("ends", |(_, mut respond)| {
            respond.send_response(accepted(), false).unwrap().send_data(Bytes::new(), true).unwrap();
        }),
        ("refuses", |(_, mut respond)| drop(respond.send_response(accepted(), true).unwrap())),
        ("resets", |(_, mut respond)| respond.send_reset(Reason::CANCEL)),
        ("looks for a reset", |(_, mut respond)| assert!(respond.poll_reset(&mut cx()).is_pending())),
        ("lets go", drop),
    ];
    for (index, (what, act)) in acts.into_iter().enumerate() {
        let asked = by_hand.asked(2 * index as u32 + 1).await;
        assert!(by_hand.poll().is_none());
        let (calls, woken) = (by_hand.calls.load(Relaxed), by_hand.woken.0.load(Relaxed));
        act(asked);
        assert_eq!(by_hand.calls.load(Relaxed), calls, "who {what} calls the transport");
        assert!(
            by_hand.woken.0.load(Relaxed) > woken,
            "who {what} does not wake the connection's task: `Asked` polls the library only when it was woken"
        );
        assert!(by_hand.poll().is_none());
        assert!(by_hand.calls.load(Relaxed) > calls, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_answered_is_not_read() {
    let mut by_hand = ByHand::start().await;
    by_hand.full.store(true, Relaxed);
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(50_000);
    by_hand.raw.io.write_all(&pings).await.unwrap();
    let before = by_hand.read.load(Relaxed);
    for _ in 0..100 {
        assert!(by_hand.poll().is_none());
        // The runtime lets a task do so much at once, and no more.
        tokio::task::yield_now().await;
    }
    let taken = by_hand.read.load(Relaxed) - before;
    assert!(
        taken < 64 << 10,
        "{taken} bytes of {}: `FOR_LIBRARY` bounds what a peer that reads no answers can make us hold only if the library \
         leaves there what it can't answer",
        pings.len()
    );
}
