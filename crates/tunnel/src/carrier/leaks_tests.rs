//! Streams that fail leave nothing behind, and the windows are restored.

use http::StatusCode;

use super::*;
use crate::window::BEFORE;

const MAX_CONCURRENT_STREAMS: u16 = 3;
const CANCEL: [u8; 4] = 8u32.to_be_bytes();

/// How often something is done: often enough to use up the connection's window if it were not given back.
const TIMES: u32 = 4 * (CONNECTION as u32 / BEFORE);

#[tokio::test(start_paused = true)]
async fn a_request_that_the_program_does_not_take() {
    let mut service = Service::start(small(), &[]).await;
    let witness = service.open(1).await;
    let carrier = witness.lane.carrier();
    for stream in 1..=TIMES {
        let id = 2 * stream + 1;
        service.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
        service.raw.data_within(&[0], id, 0, &[1; BEFORE as usize]).await;
        let inbound = service.requests.recv().await.unwrap();
        match stream % 3 {
            0 => drop(inbound),
            1 => inbound.refuse(StatusCode::BAD_REQUEST, HeaderMap::new()),
            _ => {
                inbound.refuse(StatusCode::BAD_REQUEST, HeaderMap::new());
                service.raw.send(DATA, END_STREAM, id, &[]).await;
            }
        }
    }
    drop(witness);
    nothing_kept(&carrier).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost() {
    let mut service = Service::start(small(), &[]).await;
    let (first, mut second) = (service.open(1).await, service.open(3).await);
    let carrier = first.lane.carrier();
    service.raw.send(DATA, 0, 3, b"last words").await;
    service.raw.send(HEADERS, END_HEADERS, 5, CONNECT).await;
    let unanswered = service.requests.recv().await.unwrap();
    drop(service.raw);
    service.server.await.unwrap();
    assert_eq!(second.chunk().await.unwrap().unwrap(), "last words");
    assert!(matches!(second.chunk().await, Err(Error::Lost(_))));
    drop((first, second, unanswered));
    assert_eq!(kept(&carrier), (0, 0, CONNECTION as u32));
}

#[tokio::test(start_paused = true)]
async fn clients_requests_that_come_to_nothing() {
    let mut remote = Remote::new(small());
    let witness = remote.open_with(&setting(MAX_CONCURRENT_STREAMS, 2)).await;
    let carrier = witness.lane.carrier();
    // Given up by the client before the answer.
    let (id, asked) = remote.ask(&[]).await;
    asked.abort();
    assert_eq!(remote.raw.until(RST_STREAM).await.0.stream, id);
    // Refused, with bytes that nobody reads.
    let (id, asked) = remote.ask(&[]).await;
    // `:status: 400`.
    remote.raw.send(HEADERS, END_HEADERS, id, &[0x8c]).await;
    remote.raw.send(DATA, END_STREAM, id, &[0; FRAME]).await;
    assert!(matches!(asked.await.unwrap(), Err(OpenError::Refused { .. })));
    // Reset before the answer, and after it.
    let (id, asked) = remote.ask(&[]).await;
    remote.raw.send(RST_STREAM, 0, id, &CANCEL).await;
    assert!(matches!(asked.await.unwrap(), Err(OpenError::Tunnel(Error::Reset { by_peer: true, .. }))));
    let mut stream = remote.open().await;
    let id = stream.lane.id();
    remote.raw.send(DATA, 0, id, &[0; FRAME]).await;
    remote.raw.send(RST_STREAM, 0, id, &CANCEL).await;
    let mut got = 0;
    let end = loop {
        match stream.chunk().await {
            Ok(chunk) => got += chunk.unwrap().len(),
            Err(error) => break error,
        }
    };
    assert!(got == FRAME && matches!(end, Error::Reset { by_peer: true, .. }), "{got} {end}");
    drop(stream);
    // Given up by the client, with bytes that nobody has taken.
    let mut stream = remote.open().await;
    let id = stream.lane.id();
    remote.raw.send(DATA, 0, id, &[0; FRAME]).await;
    stream.chunk().await.unwrap().unwrap();
    drop(stream);
    assert_eq!(remote.raw.until(RST_STREAM).await.0.stream, id);
    drop(witness);
    nothing_kept(&carrier).await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_never_left() {
    let mut bench = Bench::client(&[1], 1 << 20).await;
    let open = bench.handle.attach(1);
    let (waiting, late) = (bench.handle.attach(3), bench.handle.attach(5));
    waiting.send_soon(Bytes::from_static(b"never"));
    drop(waiting);
    assert_eq!(kept(&bench.handle).0, 2);
    // Its request leaves in spite of that, and what ends it.
    drop(late);
    bench.library.write_all(&frame(HEADERS, END_HEADERS, 5, CONNECT)).await.unwrap();
    bench.library.write_all(&frame(RST_STREAM, 0, 5, &CANCEL)).await.unwrap();
    drop(open);
    bench.library.write_all(&frame(RST_STREAM, 0, 1, &CANCEL)).await.unwrap();
    assert_eq!(kept(&bench.handle), (0, 0, CONNECTION as u32));
}

#[tokio::test(start_paused = true)]
async fn streams_that_a_leaving_server_did_not_look_at() {
    let mut remote = Remote::new(small());
    let mut first = remote.open().await;
    let (id, asked) = remote.ask(&[]).await;
    let carrier = first.lane.carrier();
    assert_eq!((id, kept(&carrier).0), (3, 2));
    remote.raw.send(GOAWAY, 0, 0, &[1u32.to_be_bytes(), 0u32.to_be_bytes()].concat()).await;
    // The pool tries a new connection, on which nobody answers.
    assert!(asked.await.unwrap().is_err());
    assert_eq!(kept(&carrier).0, 1);
    remote.raw.send(DATA, END_STREAM, 1, b"to the end").await;
    assert_eq!(read_all(&mut first).await.unwrap(), b"to the end");
    drop(first);
    nothing_kept(&carrier).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_with_bytes_that_is_given_up_at_once() {
    let mut service = Service::start(small(), &[]).await;
    let witness = service.open(1).await;
    let carrier = witness.lane.carrier();
    for stream in 1..=TIMES {
        let id = 2 * stream + 1;
        while *service.raw.window(0) < i64::from(BEFORE) {
            assert!(timeout(HANGS, service.raw.frame()).await.is_ok(), "what nobody took is not given back");
        }
        *service.raw.window(0) -= i64::from(BEFORE);
        let request = frame(HEADERS, END_HEADERS, id, CONNECT);
        let all = [request, frame(DATA, 0, id, &[1; BEFORE as usize]), frame(RST_STREAM, 0, id, &CANCEL)].concat();
        service.raw.io.write_all(&all).await.unwrap();
        if let Ok(Some(inbound)) = timeout(Duration::from_millis(10), service.requests.recv()).await {
            drop(inbound);
        }
    }
    drop(witness);
    nothing_kept(&carrier).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_library_refuses() {
    let mut service = Service::start(Settings { max_concurrent_streams: 1, ..small() }, &[]).await;
    let witness = service.open(1).await;
    let carrier = witness.lane.carrier();
    for stream in 1..=TIMES {
        let id = 2 * stream + 1;
        while *service.raw.window(0) < i64::from(BEFORE) {
            assert!(timeout(HANGS, service.raw.frame()).await.is_ok(), "what nobody took is not given back");
        }
        *service.raw.window(0) -= i64::from(BEFORE);
        let all = [frame(HEADERS, END_HEADERS, id, CONNECT), frame(DATA, 0, id, &[1; BEFORE as usize])].concat();
        service.raw.io.write_all(&all).await.unwrap();
        assert_eq!(service.raw.until(RST_STREAM).await.0.stream, id);
    }
    drop(witness);
    nothing_kept(&carrier).await;
}

/// A program that reads slowly gets all of a stream that was complete when its connection ended.
#[tokio::test]
async fn what_was_complete_is_delivered_after_the_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, program) =
        tokio::join!(tokio::net::TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (socket, mut program) = (Arc::new(near.unwrap()), program.unwrap().0);
    // The program has stopped reading.
    let mut before = 0;
    socket.writable().await.unwrap();
    while let Ok(written) = socket.try_write(&[0; FRAME]) {
        before += written;
    }
    let mut bench = Bench::client(&[1], 1 << 20).await;
    let (lane, meter) = (bench.handle.attach(1), Arc::new(crate::Counters::default()));
    lane.deliver_to(&socket, meter.clone());
    bench.raw.send(HEADERS, END_HEADERS, 1, OK).await;
    bench.raw.send(DATA, END_STREAM, 1, &[7; FRAME]).await;
    bench.turn();
    bench.library.write_all(&frame(DATA, END_STREAM, 1, &[])).await.unwrap();
    bench.handle.close(&Error::Lost(Arc::new(io::ErrorKind::BrokenPipe.into())));
    assert!(lane.poll_deliver(&mut cx(), &socket, &*meter).is_pending(), "the rest is not waited for");
    let reading = tokio::spawn(async move {
        let mut all = vec![0; before + FRAME];
        program.read_exact(&mut all).await.map(|_| all)
    });
    let end = std::future::poll_fn(|cx| lane.poll_deliver(cx, &socket, &*meter)).await;
    assert!(matches!(end, Delivery::Ended));
    assert!(reading.await.unwrap().unwrap()[before..].iter().all(|byte| *byte == 7));
}

/// The library does not answer requests after the last stream that its GOAWAY announced.
#[tokio::test(start_paused = true)]
async fn a_request_that_comes_too_late() {
    const PING: u8 = 6;
    let mut service = Service::start(small(), &[]).await;
    let mut witness = service.open(1).await;
    let carrier = witness.lane.carrier();
    service.drain.send(Instant::now() + Duration::from_secs(60)).unwrap();
    loop {
        let (head, payload) = service.raw.frame().await.unwrap();
        match head.kind {
            PING => service.raw.send(PING, ACK, 0, &payload).await,
            GOAWAY if word(&payload, 0) == 1 => break,
            _ => {}
        }
    }
    for stream in 1..=TIMES {
        let id = 2 * stream + 1;
        service.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
        let sent = timeout(HANGS, service.raw.data_within(&[0], id, 0, &[1; BEFORE as usize])).await;
        assert!(sent.is_ok(), "what nobody will take is not given back");
    }
    service.raw.data_within(&[0, 1], 1, END_STREAM, b"still served").await;
    assert_eq!(read_all(&mut witness).await.unwrap(), b"still served");
    assert_eq!(kept(&carrier), (1, 0, CONNECTION as u32));
    witness.shutdown().await.unwrap();
    drop(witness);
    assert!(service.server.await.unwrap().end.is_ok());
    assert_eq!(kept(&carrier).0, 0);
}

/// A client's stream may be over before the thread that requested it has attached to it.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_over_before_it_was_attached_says_so() {
    let mut bench = Bench::client(&[1], 1 << 20).await;
    bench.raw.send(HEADERS, END_HEADERS, 1, OK).await;
    bench.raw.send(RST_STREAM, 0, 1, &CANCEL).await;
    bench.turn();
    let lane = bench.handle.attach(1);
    assert!(matches!(lane.poll_chunk(&cx()), Poll::Ready(Err(Error::Reset { .. }))));
    drop(lane);
    // A stream whose request was not sent yet is not over.
    let later = bench.handle.attach(3);
    assert!(later.poll_chunk(&cx()).is_pending());
    drop(later);
    assert_eq!(kept(&bench.handle).0, 0);
}
