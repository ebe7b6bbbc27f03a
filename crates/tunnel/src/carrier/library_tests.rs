//! What the carrier hides from the library, and what streams must learn from the library.

use h2::Reason;

use super::*;

const PING: u8 = 6;
/// HPACK of `:status: 503` with `content-length: 5` (RFC 7541: literals with names of the static
/// table).
const REFUSED: &[u8] = b"\x08\x03503\x0f\x0d\x015";

#[tokio::test(start_paused = true)]
async fn streams_are_told_at_once_that_the_library_ends_the_connection() {
    let mut remote = Remote::new(Settings::default());
    let mut stream = remote.open().await;
    let began = Instant::now();
    // The error belongs to no stream. The peer does not close, whatever it is sent.
    remote.raw.send(PING, 0, 1, &[0; 8]).await;
    let error = stream.chunk().await.unwrap_err();
    assert!(matches!(error, Error::GoAway { code: Reason::PROTOCOL_ERROR, by_peer: false }));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn refusals_with_a_body_are_no_errors() {
    let errors = 3;
    let mut remote = Remote::new(Settings { max_error_reset_streams: errors, ..Settings::default() });
    for _ in 0..2 * errors {
        let (id, asked) = remote.ask(&[]).await;
        let answer = [frame(HEADERS, END_HEADERS, id, REFUSED), frame(DATA, END_STREAM, id, b"sorry")].concat();
        remote.raw.io.write_all(&answer).await.unwrap();
        assert!(matches!(asked.await.unwrap(), Err(OpenError::Refused { .. })));
    }
    // On the same connection.
    remote.open().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_with_the_answer_is_seen() {
    let mut remote = Remote::new(Settings::default());
    let (id, asked) = remote.ask(&[]).await;
    let answer = [frame(HEADERS, END_HEADERS, id, OK), frame(DATA, END_STREAM, id, b"all")].concat();
    remote.raw.io.write_all(&answer).await.unwrap();
    let mut stream = asked.await.unwrap().unwrap();
    assert_eq!(timeout(HANGS, read_all(&mut stream)).await.unwrap().unwrap(), b"all");
}

#[tokio::test(start_paused = true)]
async fn credit_adds_up_for_a_peer_that_reads_nothing() {
    let mut bench = Bench::client(&[1], 128).await;
    let lane = bench.handle.attach(1);
    bench.handle.0.lock().streams.get_mut(&1).unwrap().receiving.answer();
    // Little is left of the window, so that each byte that is consumed is worth a frame.
    let rest = bench.handle.0.lock().incoming.stream_window - 400;
    assert!(bench.handle.0.lock().streams.get_mut(&1).unwrap().credit.take(rest));
    for _ in 0..400 {
        bench.raw.send(DATA, 0, 1, b"x").await;
        // The runtime lets a task do so much at once, and no more.
        tokio::task::yield_now().await;
        bench.turn();
        let Poll::Ready(Ok(Some(chunk))) = lane.poll_chunk(&cx()) else { panic!("a byte has come") };
        lane.release(chunk.len());
    }
    let stuck = bench.handle.0.lock().outgoing.stuck_frames();
    assert!(stuck < 4, "{stuck}");
    // In the end it is announced, except for a rest that is not worth a frame yet.
    let mut told = 0;
    while told < 200 {
        let next = timeout(HANGS, bench.raw.frame()).await.expect("something is left").unwrap();
        if (next.0.kind, next.0.stream) == (WINDOW_UPDATE, 1) {
            told += word(&next.1, 0);
        }
        bench.turn();
    }
}
