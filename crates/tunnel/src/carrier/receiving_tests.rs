//! Received bytes that must not reach programs, and the windows that peers must respect.

use http::StatusCode;

use super::demux::{FRAMES, OF_OTHERS};
use super::*;
use crate::frame::{CONTINUATION, PADDED, PING, PRIORITY, PUSH_PROMISE};

const FLOW_CONTROL_ERROR: u32 = 3;
const PROTOCOL_ERROR: u32 = 1;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test(start_paused = true)]
async fn a_client_is_held_to_a_streams_window() {
    let mut service = Service::start(small(), &[]).await;
    let (mut stream, mut other) = (service.open(1).await, service.open(3).await);
    for _ in 0..STREAM / FRAME {
        service.raw.send(DATA, 0, 1, &[1; FRAME]).await;
    }
    assert!(timeout(HANGS, service.raw.until(GOAWAY)).await.is_err(), "the window is not exceeded yet");
    service.raw.send(DATA, 0, 1, &[1]).await;
    service.ends_with(FLOW_CONTROL_ERROR).await;
    let mut got = 0;
    while let Ok(chunk) = stream.chunk().await {
        got += chunk.unwrap().len();
    }
    assert_eq!(got, STREAM);
    assert!(matches!(other.chunk().await, Err(Error::Protocol(_))));
}

/// A client that has not received the settings yet assumes a stream window of 65 535 bytes (RFC 9113 §6.9.2).
#[tokio::test(start_paused = true)]
async fn a_client_that_has_not_heard_of_the_settings_may_send_what_it_assumes() {
    for has_heard in [false, true] {
        let settings = Settings { connection_window: 1 << 20, ..small() };
        let mut service =
            if has_heard { Service::start(settings, &[]).await } else { Service::unheard(settings, &[]).await };
        // In one write, so that no window is announced in between.
        let mut early = frame(HEADERS, END_HEADERS, 1, CONNECT);
        early.extend(frame(DATA, 0, 1, &[1; FRAME - 1]).repeat(4));
        service.raw.io.write_all(&early).await.unwrap();
        if has_heard {
            service.ends_with(FLOW_CONTROL_ERROR).await;
            continue;
        }
        let mut stream = service.requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap();
        // It acknowledges the settings, and its window is smaller by as much.
        *service.raw.window(1) -= 4 * (FRAME as i64 - 1);
        for _ in 0..100 {
            stream.read_exact(&mut [0; FRAME - 1]).await.unwrap();
            service.raw.data_within(&[0, 1], 1, 0, &[1; FRAME - 1]).await;
        }
        assert!(timeout(HANGS, service.raw.until(GOAWAY)).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_held_to_the_connections_window() {
    let mut service = Service::start(small(), &[]).await;
    let mut streams = Vec::new();
    for id in [1, 3, 5] {
        streams.push(service.open(id).await);
    }
    for id in [1, 3] {
        for _ in 0..STREAM / FRAME {
            service.raw.send(DATA, 0, id, &[1; FRAME]).await;
        }
    }
    assert!(timeout(HANGS, service.raw.until(GOAWAY)).await.is_err(), "the window is not exceeded yet");
    service.raw.send(DATA, 0, 5, &[1]).await;
    service.ends_with(FLOW_CONTROL_ERROR).await;
    assert!(matches!(streams[2].chunk().await, Err(Error::Protocol(_))));
}

#[tokio::test(start_paused = true)]
async fn a_server_is_held_to_its_windows() {
    for of_connection in [false, true] {
        let mut remote = Remote::new(small());
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(remote.open().await);
        }
        let full: &[u32] = if of_connection { &[1, 3] } else { &[1] };
        for id in full {
            for _ in 0..STREAM / FRAME {
                remote.raw.send(DATA, 0, *id, &[1; FRAME]).await;
            }
        }
        assert!(timeout(HANGS, remote.raw.until(GOAWAY)).await.is_err(), "no window is exceeded yet");
        remote.raw.send(DATA, 0, if of_connection { 5 } else { 1 }, &[1]).await;
        assert_eq!(remote.raw.goaway().await, FLOW_CONTROL_ERROR);
        assert!(matches!(streams[2].chunk().await, Err(Error::Protocol(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn padding_reaches_nobody_and_is_given_back() {
    let mut service = Service::start(small(), &[]).await;
    let mut stream = service.open(1).await;
    // One byte of payload; nobody reads it before all has come.
    let frame = [&[255, 7][..], &[0; 255][..]].concat();
    let frames = 4 * CONNECTION / frame.len();
    for _ in 0..frames {
        service.raw.data_within(&[0, 1], 1, PADDED, &frame).await;
    }
    // Nothing but padding.
    service.raw.data_within(&[0, 1], 1, PADDED, &[2, 0, 0]).await;
    service.raw.data_within(&[0, 1], 1, PADDED | END_STREAM, &[1, 9, 0]).await;
    let got = read_all(&mut stream).await.unwrap();
    assert_eq!(got.len(), frames + 1);
    assert!(got.iter().take(frames).all(|byte| *byte == 7) && got[frames] == 9);
    let carrier = stream.lane.carrier();
    assert_eq!(kept(&carrier), (1, 0, CONNECTION as u32));
    drop(stream);
    nothing_kept(&carrier).await;
}

#[tokio::test(start_paused = true)]
async fn padding_longer_than_its_frame_is_an_error() {
    for payload in [&[][..], &[1], &[3, 1, 2], &[255, 0, 0, 0]] {
        let mut service = Service::start(small(), &[]).await;
        let mut stream = service.open(1).await;
        service.raw.send(DATA, PADDED, 1, payload).await;
        service.ends_with(PROTOCOL_ERROR).await;
        assert!(matches!(stream.chunk().await, Err(Error::Protocol(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_too_large_is_refused_by_its_head() {
    for (kind, stream) in [(DATA, 1), (HEADERS, 3), (SETTINGS, 0)] {
        let mut service = Service::start(small(), &[]).await;
        let mut open = service.open(1).await;
        let head = Head { length: FRAME as u32 + 1, kind, flags: END_HEADERS, stream }.bytes();
        service.raw.io.write_all(&head).await.unwrap();
        service.ends_with(FRAME_SIZE_ERROR).await;
        assert!(open.chunk().await.is_err());
    }
    let mut remote = Remote::new(small());
    let mut open = remote.open().await;
    let head = Head { length: FRAME as u32 + 1, kind: DATA, flags: 0, stream: 1 }.bytes();
    remote.raw.io.write_all(&head).await.unwrap();
    assert_eq!(remote.raw.goaway().await, FRAME_SIZE_ERROR);
    assert!(open.chunk().await.is_err());
}

/// The head of a frame of 512 KiB.
fn long(kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    Head { length: 512 << 10, kind, flags, stream }.bytes().to_vec()
}

/// Frames of a length that HTTP/2 allows for frames, but not for their type; and the error.
fn long_frames() -> Vec<(&'static str, Vec<u8>, u32)> {
    // The header list is at most 64 KiB.
    let parts = [frame(HEADERS, 0, 3, &[0; 60 << 10]), long(CONTINUATION, 0, 3)].concat();
    let settings = Head { length: 33 * 6, kind: SETTINGS, flags: 0, stream: 0 }.bytes().to_vec();
    let farewell = [&0u32.to_be_bytes()[..], &0u32.to_be_bytes(), &[b'?'; 8 << 10]].concat();
    vec![
        ("HEADERS", long(HEADERS, END_HEADERS, 3), ENHANCE_YOUR_CALM),
        ("CONTINUATION", parts, ENHANCE_YOUR_CALM),
        ("CONTINUATION of nothing", long(CONTINUATION, 0, 3), PROTOCOL_ERROR),
        ("SETTINGS", settings, ENHANCE_YOUR_CALM),
        ("half of a setting", long(SETTINGS, 0, 0), FRAME_SIZE_ERROR),
        ("an acknowledgement", frame(SETTINGS, ACK, 0, &[0; 6]), FRAME_SIZE_ERROR),
        ("PING", long(PING, 0, 0), FRAME_SIZE_ERROR),
        ("PRIORITY", long(PRIORITY, 0, 1), FRAME_SIZE_ERROR),
        ("RST_STREAM", long(RST_STREAM, 0, 1), FRAME_SIZE_ERROR),
        ("WINDOW_UPDATE", long(WINDOW_UPDATE, 0, 1), FRAME_SIZE_ERROR),
        ("GOAWAY", frame(GOAWAY, 0, 0, &farewell), ENHANCE_YOUR_CALM),
        ("PUSH_PROMISE", long(PUSH_PROMISE, END_HEADERS, 1), PROTOCOL_ERROR),
        ("DATA of a stream that nobody opened", long(DATA, 0, 9), PROTOCOL_ERROR),
    ]
}

/// They are refused before their body comes. Otherwise it would be kept until it is complete, a mebibyte per connection.
#[tokio::test(start_paused = true)]
async fn a_frame_that_must_not_be_so_long_is_refused_before_its_body_has_come() {
    let settings = || Settings { max_frame_size: 1 << 20, ..small() };
    for (what, bytes, code) in long_frames() {
        let mut service = Service::start(settings(), &[]).await;
        let mut stream = service.open(1).await;
        service.raw.io.write_all(&bytes).await.unwrap();
        assert!(
            timeout(HANGS, stream.chunk()).await.unwrap_or_else(|_| panic!("{what} is gathered")).is_err(),
            "{what}"
        );
        service.ends_with(code).await;

        let mut remote = Remote::new(settings());
        let mut stream = remote.open().await;
        remote.raw.io.write_all(&bytes).await.unwrap();
        assert!(
            timeout(HANGS, stream.chunk()).await.unwrap_or_else(|_| panic!("{what} is gathered")).is_err(),
            "{what}"
        );
        assert_eq!(remote.raw.goaway().await, code, "{what}");
    }
}

/// RFC 9113 §5.5: it must be ignored. Nothing of it is kept.
#[tokio::test]
async fn a_frame_of_a_kind_that_nobody_knows_takes_no_memory() {
    const LONG: usize = 1 << 20;
    let mut bench = Bench::new(Role::Server, &Settings::default(), 2 << 20);
    bench.raw.io.write_all(PREFACE).await.unwrap();
    bench.raw.send(HEADERS, END_HEADERS, 1, CONNECT).await;
    bench.turn();
    let lane = bench.handle.attach(1);
    let unknown = frame(0x7e, 0, 0, &vec![7; LONG]);
    let (most, last) = unknown.split_at(LONG);
    let mut for_library = 0;
    bench.raw.io.write_all(most).await.unwrap();
    for _ in 0..100 {
        for_library += turn_for_library(&mut bench);
        assert!(bench.handle.0.lock().incoming.inbox.memory() < 4 << 10, "what nobody wants is kept");
    }
    bench.raw.io.write_all(last).await.unwrap();
    bench.raw.send(DATA, 0, 1, b"hello").await;
    for_library += turn_for_library(&mut bench);
    assert_eq!(for_library, 0, "the library gets what it does not know");
    assert!(matches!(lane.poll_chunk(&cx()), Poll::Ready(Ok(Some(chunk))) if chunk == "hello"));
}

/// A header list counts more (RFC 9113 §6.5.2) than its block is long. So a request whose list is a little too large still
/// reaches the library, which refuses that request alone.
#[tokio::test(start_paused = true)]
async fn a_header_list_that_is_a_little_too_long_costs_only_its_request() {
    let mut service = Service::start(Settings { server_header_list: 4 << 10, ..small() }, &[]).await;
    let mut stream = service.open(1).await;
    // Fields of 40 bytes, each counted for 72 and written in 43: 5 KiB, in 3.
    let fields = [&[0x00, 20][..], &[b'n'; 20], &[20], &[b'v'; 20]].concat().repeat(70);
    let block = [CONNECT, &fields].concat();
    assert!(block.len() < 4 << 10);
    service.raw.send(HEADERS, END_HEADERS, 3, &block).await;
    assert_eq!(service.raw.until(HEADERS).await.0.stream, 3);
    assert!(service.requests.try_recv().is_err());
    service.raw.send(DATA, END_STREAM, 1, b"still here").await;
    assert_eq!(read_all(&mut stream).await.unwrap(), b"still here");
}

/// Frames that may not stand inside stream 3's header block, on either side of a connection.
fn intruders() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("DATA", frame(DATA, 0, 1, b"smuggled")),
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("the end of a stream", frame(DATA, END_STREAM, 1, &[])),
        ("a stream's WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes())),
        ("its own WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 3, &1u32.to_be_bytes())),
        ("the connection's WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("RST_STREAM", frame(RST_STREAM, 0, 1, &8u32.to_be_bytes())),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PING", frame(6, 0, 0, &[0; 8])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 1])),
        ("HEADERS", frame(HEADERS, END_HEADERS, 5, CONNECT)),
        ("its own HEADERS", frame(HEADERS, END_HEADERS, 3, CONNECT)),
        ("CONTINUATION of another", frame(CONTINUATION, END_HEADERS, 1, &[])),
        ("a kind that nobody knows", frame(0x7e, 0, 0, b"?")),
        ("GOAWAY", frame(GOAWAY, 0, 0, &[0; 8])),
    ]
}

/// RFC 9113 §6.2 and §6.10.
#[tokio::test(start_paused = true)]
async fn any_frame_inside_a_clients_header_block_is_an_error_of_the_connection() {
    for (what, intruder) in intruders() {
        let mut service = Service::start(small(), &[]).await;
        let mut stream = service.open(1).await;
        service.raw.send(HEADERS, 0, 3, &CONNECT[..5]).await;
        service.raw.io.write_all(&intruder).await.unwrap();
        service.raw.send(CONTINUATION, END_HEADERS, 3, &CONNECT[5..]).await;
        assert!(stream.chunk().await.is_err(), "{what}");
        assert!(service.requests.try_recv().is_err(), "{what}");
        service.ends_with(PROTOCOL_ERROR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn any_frame_inside_a_servers_header_block_is_an_error_of_the_connection() {
    for (what, intruder) in intruders() {
        let mut remote = Remote::new(small());
        let mut stream = remote.open().await;
        let (_, asked) = remote.ask(&[]).await;
        remote.raw.send(HEADERS, 0, 3, &[]).await;
        remote.raw.io.write_all(&intruder).await.unwrap();
        remote.raw.send(CONTINUATION, END_HEADERS, 3, OK).await;
        assert_eq!(remote.raw.goaway().await, PROTOCOL_ERROR, "{what}");
        assert!(stream.chunk().await.is_err(), "{what}");
        assert!(asked.await.unwrap().is_err(), "{what}");
    }
}

/// The library is told of a stream's end between two frames, and not inside a header block.
#[tokio::test(start_paused = true)]
async fn an_end_that_comes_due_inside_a_header_block_is_told_after_it() {
    let mut remote = Remote::new(small());
    let mut witness = remote.open().await;
    let (first, asked) = remote.ask(&[]).await;
    let (second, asked_too) = remote.ask(&[]).await;
    // The library learns of the first one's end when its request has become a tunnel; the header block
    // of the second has begun by then.
    let block = [
        frame(HEADERS, END_HEADERS, first, OK),
        frame(DATA, END_STREAM, first, b"all"),
        frame(HEADERS, 0, second, &[]),
    ];
    remote.raw.io.write_all(&block.concat()).await.unwrap();
    let mut stream = asked.await.unwrap().unwrap();
    remote.raw.send(CONTINUATION, END_HEADERS, second, OK).await;
    assert_eq!(timeout(HANGS, read_all(&mut stream)).await.unwrap().unwrap(), b"all");
    let mut other = asked_too.await.unwrap().unwrap();
    for (id, stream) in [(second, &mut other), (1, &mut witness)] {
        remote.raw.send(DATA, END_STREAM, id, b"still here").await;
        assert_eq!(timeout(HANGS, read_all(stream)).await.unwrap().unwrap(), b"still here");
    }
}

/// RFC 9113 §5.1.2.
#[tokio::test(start_paused = true)]
async fn a_stream_over_the_announced_number_is_refused_and_the_others_go_on() {
    let mut service = Service::start(Settings { max_concurrent_streams: 2, ..small() }, &[]).await;
    let (mut first, _second) = (service.open(1).await, service.open(3).await);
    for id in [5, 7] {
        service.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
        let (head, payload) = service.raw.until(RST_STREAM).await;
        assert_eq!((head.stream, word(&payload, 0)), (id, REFUSED_STREAM));
        assert!(service.requests.try_recv().is_err());
    }
    service.raw.send(DATA, END_STREAM, 1, b"still here").await;
    assert_eq!(read_all(&mut first).await.unwrap(), b"still here");
    first.shutdown().await.unwrap();
    drop(first);
    assert!(service.raw.all_data(1).await.1);
    // The refused stream's place is free again.
    service.open(9).await;
}

#[tokio::test(start_paused = true)]
async fn a_header_block_in_parts_is_one() {
    let mut service = Service::start(small(), &[]).await;
    service.raw.send(HEADERS, 0, 1, &CONNECT[..5]).await;
    service.raw.send(CONTINUATION, 0, 1, &CONNECT[5..7]).await;
    service.raw.send(CONTINUATION, END_HEADERS, 1, &CONNECT[7..]).await;
    service.raw.send(DATA, END_STREAM, 1, b"hello").await;
    let mut stream = service.requests.recv().await.unwrap().accept(HeaderMap::new()).unwrap();
    assert_eq!(read_all(&mut stream).await.unwrap(), b"hello");
}

#[tokio::test(start_paused = true)]
async fn data_of_streams_that_nobody_opened_is_an_error() {
    for stream in [0, 2, 3, 1001] {
        let mut service = Service::start(small(), &[]).await;
        let mut open = service.open(1).await;
        service.raw.send(DATA, 0, stream, b"x").await;
        service.ends_with(PROTOCOL_ERROR).await;
        assert!(open.chunk().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn data_of_streams_that_are_gone_is_thrown_away_and_given_back() {
    let mut service = Service::start(small(), &[]).await;
    let mut witness = service.open(1).await;
    // Streams reset by the peer, reset by this side, and ended by both.
    drop(service.open(3).await);
    assert_eq!(service.raw.until(RST_STREAM).await.0.stream, 3);
    let mut reset = service.open(5).await;
    service.raw.send(RST_STREAM, 0, 5, &8u32.to_be_bytes()).await;
    assert!(matches!(reset.chunk().await, Err(Error::Reset { by_peer: true, .. })));
    let mut ended = service.open(7).await;
    service.raw.send(DATA, END_STREAM, 7, b"x").await;
    assert_eq!(read_all(&mut ended).await.unwrap(), b"x");
    ended.shutdown().await.unwrap();
    drop(ended);
    assert!(service.raw.all_data(7).await.1);
    for id in [3, 5, 7] {
        for _ in 0..4 * CONNECTION / FRAME {
            // The stream's window is no longer updated.
            if id == 5 && service.raw.windows.get(&5).is_some_and(|window| *window < FRAME as i64) {
                break;
            }
            service.raw.data_within(if id == 5 { &[0, 5] } else { &[0] }, id, 0, &[1; FRAME]).await;
        }
    }
    service.raw.data_within(&[0, 1], 1, END_STREAM, b"still here").await;
    assert_eq!(read_all(&mut witness).await.unwrap(), b"still here");
    let carrier = witness.lane.carrier();
    drop((witness, reset));
    nothing_kept(&carrier).await;
}

#[tokio::test(start_paused = true)]
async fn data_after_the_end_is_an_error_and_not_received() {
    let mut service = Service::start(small(), &[]).await;
    let mut stream = service.open(1).await;
    service.raw.send(DATA, END_STREAM, 1, b"all").await;
    service.raw.send(DATA, 0, 1, b"more").await;
    assert_eq!(service.raw.goaway().await, PROTOCOL_ERROR);
    let mut got = BytesMut::new();
    while let Ok(Some(chunk)) = stream.chunk().await {
        got.extend_from_slice(&chunk);
    }
    assert_eq!(&got[..], b"all");
}

/// Otherwise a reader that has stopped would keep whole read buffers, which mostly hold other streams' bytes.
#[tokio::test(start_paused = true)]
async fn one_who_stopped_reading_keeps_only_its_own() {
    let mut bench = Bench::new(Role::Server, &Settings::default(), 4 << 20);
    let mut bytes = PREFACE.to_vec();
    for id in [1, 3] {
        bytes.extend(frame(HEADERS, END_HEADERS, id, CONNECT));
    }
    bench.raw.io.write_all(&bytes).await.unwrap();
    bench.turn();
    let (stopped, reader) = (bench.handle.attach(1), bench.handle.attach(3));
    // After the answer, a stream has its whole window.
    for id in [1, 3] {
        bench.library.write_all(&frame(HEADERS, END_HEADERS, id, OK)).await.unwrap();
    }
    let mut held = 0;
    let mut kept_by_stopped: Vec<Bytes> = Vec::new();
    for _ in 0..40 {
        // Most of a read is the reader's, a little the other's.
        for (id, length) in [(3, 200 << 10), (1, 2 << 10)] {
            bench.raw.send(DATA, 0, id, &vec![id as u8; length]).await;
        }
        // A turn may leave the rest to the next one.
        bench.turn();
        bench.turn();
        while let Poll::Ready(Ok(Some(chunk))) = reader.poll_chunk(&cx()) {
            reader.release(chunk.len());
        }
        held += 2 << 10;
        assert_eq!(stopped.held().0, held);
        // Or the runtime makes the pipe look empty, so that other tasks get their turn.
        tokio::task::yield_now().await;
    }
    while let Poll::Ready(Ok(Some(chunk))) = stopped.poll_chunk(&cx()) {
        kept_by_stopped.push(chunk);
    }
    // What a chunk alone keeps alive can be had back as a vector of its own: a part of a larger
    // buffer can't.
    let lengths: usize = kept_by_stopped.iter().map(Bytes::len).sum();
    assert_eq!(lengths, held);
    for chunk in kept_by_stopped {
        assert!(chunk.try_into_mut().is_ok(), "a chunk keeps somebody else's buffer");
    }
}

/// A server that sends a stream's bytes before its answer breaks HTTP/2 (RFC 9113 §8.1).
#[tokio::test(start_paused = true)]
async fn data_before_the_answer_is_an_error() {
    let mut remote = Remote::new(small());
    let (id, asked) = remote.ask(&[]).await;
    remote.raw.send(DATA, 0, id, b"early").await;
    remote.raw.send(HEADERS, END_HEADERS, id, b"\x88").await;
    let stream = asked.await.unwrap();
    assert!(stream.is_err(), "{stream:?}");
}

#[tokio::test]
async fn a_frame_of_the_largest_read_comes_in_one_piece() {
    const LARGE: usize = 256 << 10;
    let mut bench = Bench::new(Role::Server, &Settings::default(), 8 << 20);
    bench.raw.io.write_all(PREFACE).await.unwrap();
    for id in [1, 3] {
        bench.raw.send(HEADERS, END_HEADERS, id, CONNECT).await;
    }
    bench.turn();
    let lanes = [1, 3].map(|id| bench.handle.attach(id));
    for id in [1, 3] {
        bench.library.write_all(&frame(HEADERS, END_HEADERS, id, OK)).await.unwrap();
    }
    for _ in 0..8 {
        for id in [1, 3] {
            bench.raw.send(DATA, 0, id, &[id as u8; LARGE]).await;
        }
    }
    for _ in 0..100 {
        bench.turn();
    }
    for lane in lanes {
        let mut pieces = Vec::new();
        while let Poll::Ready(Ok(Some(piece))) = lane.poll_chunk(&cx()) {
            pieces.push(piece.len());
        }
        assert_eq!(pieces.iter().sum::<usize>(), 8 * LARGE);
        // Reads start small and grow.
        assert!(pieces.ends_with(&[LARGE; 6]), "{pieces:?}");
    }
}

/// Bytes of a turn that the library gets.
fn turn_for_library(bench: &mut Bench) -> usize {
    assert!(bench.handle.begin_turn(&mut cx()).is_ok());
    let (mut bytes, mut total) = ([0; 4096], 0);
    loop {
        let mut room = ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut bench.library).poll_read(&mut cx(), &mut room);
        if read.is_pending() || room.filled().is_empty() {
            break;
        }
        total += room.filled().len();
    }
    bench.handle.end_turn(&mut cx()).unwrap();
    total
}

/// The thread's other tasks wait for no more frames than that.
#[tokio::test]
async fn a_turn_takes_so_many_frames_and_the_next_ones_the_rest() {
    const FLOOD: usize = 5_000;
    let mut bench = Bench::new(Role::Server, &Settings::default(), 1 << 20);
    bench.raw.io.write_all(PREFACE).await.unwrap();
    bench.raw.send(HEADERS, END_HEADERS, 1, CONNECT).await;
    bench.turn();
    let lane = bench.handle.attach(1);
    let ping = frame(6, 0, 0, &[7; 8]);
    bench.raw.io.write_all(&ping.repeat(FLOOD)).await.unwrap();
    let mut turns = Vec::new();
    while turns.iter().sum::<usize>() < FLOOD * ping.len() {
        turns.push(turn_for_library(&mut bench));
        assert!(turns.len() < FLOOD, "{turns:?}");
    }
    let most = (FRAMES / OF_OTHERS) as usize * ping.len();
    assert!(turns.iter().all(|bytes| *bytes <= most), "{turns:?}");

    bench.raw.io.write_all(&frame(DATA, 0, 1, b"x").repeat(FLOOD)).await.unwrap();
    let (mut received, mut most) = (0, 0);
    for _ in 0..FLOOD {
        bench.turn();
        let mut of_turn = 0;
        while let Poll::Ready(Ok(Some(chunk))) = lane.poll_chunk(&cx()) {
            lane.release(chunk.len());
            of_turn += chunk.len();
        }
        (received, most) = (received + of_turn, most.max(of_turn));
        if received == FLOOD {
            break;
        }
    }
    assert_eq!(received, FLOOD);
    assert!(most <= FRAMES as usize, "{most} frames in a turn");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_floods_is_told_to_calm_down() {
    let nothing: [(&str, Vec<u8>); 4] = [
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("DATA of padding", frame(DATA, PADDED, 1, &[0])),
        ("a kind that nobody knows", frame(0x7e, 0, 0, &[])),
    ];
    for (what, nothing) in nothing {
        let mut service = Service::start(small(), &[]).await;
        let mut stream = service.open(1).await;
        let flood = nothing.repeat(1_000);
        // A hundred thousand in no time; whoever has closed reads on for a while.
        for _ in 0..101 {
            service.raw.io.write_all(&flood).await.unwrap();
        }
        assert!(stream.chunk().await.is_err(), "{what}");
        service.ends_with(ENHANCE_YOUR_CALM).await;
    }
}

/// Sends `flood` again and again to a server that is close to its limit. Returns whether the server ends the connection
/// with ENHANCE_YOUR_CALM.
async fn is_a_flood(flood: impl Fn(u32) -> Vec<u8>) -> bool {
    let mut service = Service::start(small(), &[]).await;
    let stream = service.open(1).await;
    stream.lane.carrier().0.lock().incoming.calm.nearly_spent();
    for n in 0..1_000 {
        service.raw.io.write_all(&flood(n)).await.unwrap();
        while let Ok(request) = service.requests.try_recv() {
            request.refuse(StatusCode::FORBIDDEN, HeaderMap::new());
        }
        tokio::task::yield_now().await;
    }
    let told = async {
        loop {
            let (head, payload) = service.raw.frame().await.expect("closed without a word");
            if head.kind == GOAWAY {
                break word(&payload, 4);
            }
        }
    };
    let told = timeout(HANGS, told).await;
    assert!(told.is_err() || told == Ok(ENHANCE_YOUR_CALM), "{told:?}");
    told.is_ok()
}

/// Frames earn by the bytes for programs, not by their number.
#[tokio::test(start_paused = true)]
async fn frames_that_bring_next_to_nothing_earn_nothing() {
    assert!(is_a_flood(|_| frame(DATA, 0, 1, b"x")).await, "DATA of one byte");
    assert!(is_a_flood(|n| frame(HEADERS, END_HEADERS, 2 * n + 3, CONNECT)).await, "requests that are refused");
    assert!(!is_a_flood(|_| frame(DATA, 0, 1, b"12345678")).await, "small messages");
}

/// A server may send any number of interim answers.
#[tokio::test(start_paused = true)]
async fn a_server_that_floods_with_interim_answers_is_told_to_calm_down() {
    let mut remote = Remote::new(small());
    let witness = remote.open().await;
    let (id, asked) = remote.ask(&[]).await;
    witness.lane.carrier().0.lock().incoming.calm.nearly_spent();
    // `:status: 103`.
    for _ in 0..100 {
        remote.raw.send(HEADERS, END_HEADERS, id, b"\x08\x03103").await;
    }
    assert_eq!(remote.raw.goaway().await, ENHANCE_YOUR_CALM);
    assert!(asked.await.unwrap().is_err());
}

/// An exchange of single bytes, as when a person types, earns as much as it costs.
#[tokio::test(start_paused = true)]
async fn who_is_answered_may_say_a_byte_at_a_time() {
    let mut service = Service::start(small(), &[]).await;
    let mut stream = service.open(1).await;
    stream.lane.carrier().0.lock().incoming.calm.nearly_spent();
    for n in 0..2_000 {
        service.raw.data_within(&[0, 1], 1, 0, &[n as u8]).await;
        let chunk = stream.chunk().await.unwrap().unwrap();
        stream.release(chunk.len());
        stream.write_all(&chunk).await.unwrap();
        let (head, payload) = service.raw.until(DATA).await;
        assert_eq!((head.stream, &payload[..]), (1, &[n as u8][..]));
        service.raw.window_update(0, 1).await;
    }
}

/// Requests that are reset in the turn in which they come, by their peer or because the peer breaks a rule with them. They
/// must not be handed out. There are fewer of them at once than the library's own limit.
#[tokio::test(start_paused = true)]
async fn requests_that_are_reset_before_anybody_looks_at_them_are_handed_to_nobody() {
    const AT_ONCE: u32 = 20;
    let reset = |id| frame(RST_STREAM, 0, id, &8u32.to_be_bytes());
    let too_far = |id| frame(WINDOW_UPDATE, 0, id, &(u32::MAX >> 1).to_be_bytes());
    for (what, ends) in [("given up", &reset as &dyn Fn(u32) -> Vec<u8>), ("broken", &too_far)] {
        let mut service = Service::start(small(), &[]).await;
        let mut stream = service.open(1).await;
        let mut flood = Vec::new();
        for id in (3..).step_by(2).take(AT_ONCE as usize) {
            flood.extend(frame(HEADERS, END_HEADERS, id, CONNECT));
            flood.extend(ends(id));
        }
        service.raw.io.write_all(&flood).await.unwrap();
        // They have been processed when the frame after them was.
        service.raw.send(DATA, END_STREAM, 1, b"still here").await;
        assert_eq!(read_all(&mut stream).await.unwrap(), b"still here");
        service.raw.send(HEADERS, END_HEADERS, 101, CONNECT).await;
        let mut seen = Vec::new();
        while seen.last() != Some(&101) {
            seen.push(
                service.requests.recv().await.unwrap().accept(HeaderMap::new()).map_or(0, |stream| stream.lane.id()),
            );
        }
        assert_eq!(seen, [101], "{what}");
    }
}
