//! Sending: within the peer's windows, in order, and all streams in turn.

use h2::Reason;

use super::*;
use crate::frame::{CONTINUATION, INITIAL_WINDOW_SIZE};

const FLOW_CONTROL_ERROR: u32 = 3;
const PROTOCOL_ERROR: u32 = 1;

/// The next DATA: its stream and length.
async fn data(raw: &mut Raw) -> Option<(u32, usize)> {
    match timeout(HANGS, raw.until(DATA)).await {
        Ok((head, payload)) => Some((head.stream, payload.len())),
        Err(_) => None,
    }
}

fn reserve(lane: &Lane, want: usize) -> Option<usize> {
    match lane.poll_reserve(&cx(), want) {
        Poll::Ready(room) => Some(room.unwrap()),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_may_become_less_than_nothing() {
    let mut service = Service::start(small(), &setting(INITIAL_WINDOW_SIZE, 100)).await;
    let mut stream = service.open(1).await;
    let block: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    let expected = block.clone();
    let sending = tokio::spawn(async move {
        stream.write_all(&block).await.unwrap();
        stream.shutdown().await.unwrap();
        stream
    });
    let raw = &mut service.raw;
    assert_eq!(data(raw).await, Some((1, 100)));
    assert_eq!(data(raw).await, None);
    raw.send(SETTINGS, 0, 0, &setting(INITIAL_WINDOW_SIZE, 10)).await;
    raw.window_update(1, 90).await;
    assert_eq!(data(raw).await, None);
    raw.window_update(1, 5).await;
    assert_eq!(data(raw).await, Some((1, 5)));
    raw.send(SETTINGS, 0, 0, &setting(INITIAL_WINDOW_SIZE, 0)).await;
    raw.send(SETTINGS, 0, 0, &setting(INITIAL_WINDOW_SIZE, 30)).await;
    assert_eq!(data(raw).await, Some((1, 20)));
    raw.send(SETTINGS, 0, 0, &[setting(INITIAL_WINDOW_SIZE, 7), setting(INITIAL_WINDOW_SIZE, 90)].concat()).await;
    assert_eq!(data(raw).await, Some((1, 60)));
    raw.window_update(1, 10_000).await;
    let (rest, ended) = raw.all_data(1).await;
    assert!(ended && rest == expected[185..], "{} {ended}", rest.len());
    drop(sending.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_opens_the_connections_window_too_far_is_told_so() {
    let largest = (1 << 31) - 1;
    for by_settings in [false, true] {
        let mut service = Service::start(small(), &[]).await;
        let mut stream = service.open(1).await;
        if by_settings {
            // By a setting, for all streams at once (RFC 9113 §6.9.2).
            service.raw.window_update(1, 1).await;
            service.raw.send(SETTINGS, 0, 0, &setting(INITIAL_WINDOW_SIZE, largest)).await;
        } else {
            service.raw.window_update(0, largest).await;
        }
        service.ends_with(FLOW_CONTROL_ERROR).await;
        assert!(stream.chunk().await.is_err());
        assert!(stream.write_all(b"x").await.is_err());
    }
    // Exactly the largest window is allowed.
    let mut service = Service::start(small(), &[]).await;
    let stream = service.open(1).await;
    service.raw.window_update(0, largest - 65_535).await;
    service.raw.window_update(1, largest - 65_535).await;
    assert!(timeout(HANGS, service.raw.until(GOAWAY)).await.is_err());
    drop(stream);
}

/// RFC 9113 §6.9.1: the other streams go on.
#[tokio::test(start_paused = true)]
async fn a_streams_window_that_is_opened_too_far_ends_the_stream_alone() {
    let largest = (1 << 31) - 1;
    // In one step, in small steps, and starting from an empty window.
    for (initial, increments) in
        [(65_535, &[largest][..]), (65_535, &[1 << 30, 1 << 30]), (0, &[1 << 30, (1 << 30) - 1, 1]), (largest, &[1])]
    {
        let mut service = Service::start(small(), &setting(INITIAL_WINDOW_SIZE, initial)).await;
        let (mut stream, mut other) = (service.open(1).await, service.open(3).await);
        for increment in increments {
            service.raw.window_update(1, *increment).await;
        }
        let reset = service.raw.until(RST_STREAM).await;
        assert_eq!((reset.0.stream, word(&reset.1, 0)), (1, FLOW_CONTROL_ERROR), "{initial} {increments:?}");
        let error = stream.chunk().await.unwrap_err();
        assert!(matches!(error, Error::Reset { code: Reason::FLOW_CONTROL_ERROR, by_peer: false }), "{error:?}");
        assert!(stream.write_all(b"x").await.is_err());
        service.raw.send(DATA, END_STREAM, 3, b"still here").await;
        assert_eq!(read_all(&mut other).await.unwrap(), b"still here");
        service.raw.window_update(3, 100).await;
        other.write_all(b"and back").await.unwrap();
        other.shutdown().await.unwrap();
        assert_eq!(service.raw.all_data(3).await, (b"and back".to_vec(), true));
    }
}

/// A peer that makes this side reset its streams can cause more work than its stream limit allows (CVE-2025-8671).
#[tokio::test(start_paused = true)]
async fn a_peer_that_has_stream_after_stream_reset_is_cut() {
    let errors = 5;
    let settings = Settings { max_error_reset_streams: errors as usize, ..small() };
    let mut service = Service::start(settings, &[]).await;
    for index in 0..=errors {
        service.raw.send(HEADERS, END_HEADERS, 2 * index + 1, CONNECT).await;
        service.raw.window_update(2 * index + 1, (1 << 31) - 1).await;
    }
    service.ends_with(11).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_too_ends_only_the_stream_whose_window_is_opened_too_far() {
    let mut remote = Remote::new(small());
    let (mut stream, mut other) = (remote.open().await, remote.open().await);
    for _ in 0..2 {
        remote.raw.window_update(1, 1 << 30).await;
    }
    let reset = remote.raw.until(RST_STREAM).await;
    assert_eq!((reset.0.stream, word(&reset.1, 0)), (1, FLOW_CONTROL_ERROR));
    assert!(matches!(stream.chunk().await, Err(Error::Reset { code: Reason::FLOW_CONTROL_ERROR, by_peer: false })));
    remote.raw.send(DATA, END_STREAM, 3, b"still here").await;
    assert_eq!(read_all(&mut other).await.unwrap(), b"still here");
}

#[tokio::test(start_paused = true)]
async fn a_window_opened_by_nothing_is_an_error() {
    let mut service = Service::start(small(), &[]).await;
    let mut stream = service.open(1).await;
    service.raw.window_update(1, 0).await;
    let (head, payload) = loop {
        let found = service.raw.frame().await.unwrap();
        if matches!(found.0.kind, RST_STREAM | GOAWAY) {
            break found;
        }
    };
    assert_eq!(word(&payload, if head.kind == GOAWAY { 4 } else { 0 }), PROTOCOL_ERROR);
    assert!(stream.chunk().await.is_err());
    let mut service = Service::start(small(), &[]).await;
    service.raw.window_update(0, 0).await;
    service.ends_with(PROTOCOL_ERROR).await;
    // For a stream that nobody has opened.
    let mut service = Service::start(small(), &[]).await;
    service.raw.window_update(9, 5).await;
    service.ends_with(PROTOCOL_ERROR).await;
}

#[tokio::test(start_paused = true)]
async fn first_bytes_follow_their_request_and_the_end_follows_them() {
    let mut bench = Bench::client(&[], 1 << 20).await;
    bench.raw.send(SETTINGS, 0, 0, &setting(INITIAL_WINDOW_SIZE, 3)).await;
    bench.turn();
    let lane = bench.handle.attach(1);
    lane.send_soon(Bytes::from_static(b"hello world"));
    bench.turn();
    assert!(timeout(HANGS, bench.raw.frame()).await.is_err(), "something leaves before the request");
    bench.library.write_all(&frame(HEADERS, END_HEADERS, 1, CONNECT)).await.unwrap();
    bench.turn();
    assert_eq!(bench.raw.frame().await.unwrap().0.kind, HEADERS);
    assert_eq!(bench.raw.until(DATA).await.1, b"hel");
    assert!(lane.poll_sent(&cx()).is_pending());
    assert_eq!(reserve(&lane, 10), None);
    for (more, bytes) in [(2, &b"lo"[..]), (100, b" world")] {
        bench.raw.window_update(1, more).await;
        bench.turn();
        assert_eq!(bench.raw.until(DATA).await.1, bytes);
    }
    assert!(matches!(lane.poll_sent(&cx()), Poll::Ready(Ok(()))));
    assert_eq!(reserve(&lane, 1000), Some(94));
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_first_bytes_that_have_no_room() {
    let mut remote = Remote::new(small());
    let mut stream = remote.open_with(&setting(INITIAL_WINDOW_SIZE, 3)).await;
    stream.lane.send_soon(Bytes::from_static(b"hello world"));
    let shutdown = tokio::spawn(async move { stream.shutdown().await.map(|()| stream) });
    assert_eq!(data(&mut remote.raw).await, Some((1, 3)));
    assert_eq!(data(&mut remote.raw).await, None);
    remote.raw.window_update(1, 100).await;
    assert_eq!(remote.raw.all_data(1).await, (b"lo world".to_vec(), true));
    drop(shutdown.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn many_streams_share_a_small_window_fairly() {
    const STREAMS: usize = 20;
    let mut remote = Remote::new(small());
    let mut sending = tokio::task::JoinSet::new();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(remote.open().await);
    }
    for mut stream in streams {
        sending.spawn(async move {
            // More bytes than the connection's first window.
            for _ in 0..60 {
                stream.write_all(&[1; 1000]).await.unwrap();
            }
            stream.shutdown().await.unwrap();
            stream
        });
    }
    let mut got: HashMap<u32, usize> = HashMap::new();
    let mut ended = 0;
    let mut since = 0;
    while ended < STREAMS {
        match timeout(Duration::from_millis(100), remote.raw.frame()).await {
            Ok(frame) => {
                let (head, payload) = frame.unwrap();
                if head.kind == DATA {
                    *got.entry(head.stream).or_default() += payload.len();
                    ended += usize::from(head.has(END_STREAM));
                    since += payload.len();
                }
            }
            Err(_) => {
                assert!(since > 0, "nobody goes on: {got:?}");
                since = 0;
                // Room for a few of the streams.
                remote.raw.window_update(0, 5000).await;
            }
        }
        // A stream that got several rounds less than another one starves. The first window went to the streams that came
        // first.
        let open = got.values().filter(|got| **got < 60_000);
        let (least, all) = (open.clone().min().copied().unwrap_or(0), open.count());
        let total: usize = got.values().sum();
        if total > 65_535 + 100_000 && all > 1 {
            assert!(least > 0 && got.len() == STREAMS, "{got:?}");
        }
    }
    assert!(got.values().all(|got| *got == 60_000), "{got:?}");
    drop(sending.join_all().await);
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_takes_little_serves_all_in_turn() {
    let mut bench = Bench::client(&[1, 3, 5], 64).await;
    let lanes = [1, 3, 5].map(|id| bench.handle.attach(id));
    let room = reserve(&lanes[0], 1000).unwrap();
    lanes[0].send(buffer(&[0; 1000]), room).unwrap();
    // The transport is full. All streams wait, in the order in which they came.
    for lane in [&lanes[1], &lanes[2], &lanes[0]] {
        assert_eq!(reserve(lane, 1000), None);
    }
    let mut order = Vec::new();
    while order.len() < 3 {
        for _ in 0..40 {
            bench.turn();
            let mut part = [0; 32];
            if timeout(HANGS, bench.raw.io.read_exact(&mut part)).await.is_err() {
                break;
            }
        }
        bench.turn();
        for lane in &lanes {
            if let Some(room) = reserve(lane, 1000) {
                lane.send(buffer(&[0; 1000]), room).unwrap();
                order.push(lane.id());
                break;
            }
        }
    }
    assert_eq!(order, [3, 5, 1]);
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// However the first stream in the queue gives up, the next one goes on.
#[tokio::test(start_paused = true)]
async fn who_gives_up_lets_the_next_go_on() {
    for way in 0..5 {
        let mut bench = Bench::client(&[1, 3, 5], 1 << 20).await;
        let [full, first, second] = [1, 3, 5].map(|id| bench.handle.attach(id));
        let mut first = Some(first);
        let room = reserve(&full, 65_535).unwrap();
        full.send(buffer(&[1; 65_535]), room).unwrap();
        assert_eq!(reserve(first.as_ref().unwrap(), 10), None);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(second.poll_reserve(&Context::from_waker(&waker), 10).is_pending());
        bench.raw.window_update(0, 100).await;
        bench.turn();
        assert_eq!((woken.0.load(Relaxed), reserve(&second, 10)), (0, None), "it is not its turn");
        assert!(second.poll_reserve(&Context::from_waker(&waker), 10).is_pending());
        match way {
            0 => first.as_ref().unwrap().unreserve(),
            1 => first = None,
            2 => {
                bench.raw.send(RST_STREAM, 0, 3, &8u32.to_be_bytes()).await;
                bench.turn();
            }
            3 => bench.library.write_all(&frame(RST_STREAM, 0, 3, &8u32.to_be_bytes())).await.unwrap(),
            // Its half ends.
            _ => bench.library.write_all(&frame(DATA, END_STREAM, 3, &[])).await.unwrap(),
        }
        assert_eq!((woken.0.load(Relaxed), reserve(&second, 10)), (1, Some(10)), "way {way}");
        drop(first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_waits_in_one_place_however_often_it_is_told_of_room() {
    let mut bench = Bench::client(&[1, 3], 1 << 20).await;
    let (first, second) = (bench.handle.attach(1), bench.handle.attach(3));
    let room = reserve(&first, 65_535).unwrap();
    first.send(buffer(&[1; 65_535]), room).unwrap();
    second.send_soon(Bytes::from_static(b"waits"));
    for _ in 0..1000 {
        bench.raw.window_update(3, 1).await;
    }
    bench.turn();
    assert!(bench.handle.0.lock().outgoing.mux.backlogged().len() <= 1);
}

/// Two streams may reserve more at the same time than the connection has room for.
#[tokio::test(start_paused = true)]
async fn what_was_promised_twice_is_not_sent_beyond_the_window() {
    let mut bench = Bench::client(&[1, 3], 1 << 20).await;
    let lanes = [bench.handle.attach(1), bench.handle.attach(3)];
    let all = vec![7; 50_000];
    let rooms = lanes.each_ref().map(|lane| reserve(lane, all.len()).unwrap_or(0));
    for (lane, room) in lanes.iter().zip(rooms).filter(|(_, room)| *room > 0) {
        lane.send(buffer(&all), room).unwrap();
    }
    bench.turn();
    let mut sent = 0;
    while let Some((_, length)) = data(&mut bench.raw).await {
        sent += length;
    }
    assert!(sent <= 65_535, "{sent} bytes");
    // What was reserved still arrives when there is room.
    bench.raw.window_update(0, 100_000).await;
    bench.turn();
    while let Some((_, length)) = data(&mut bench.raw).await {
        sent += length;
    }
    assert_eq!(sent, rooms.iter().sum::<usize>());
}

/// Nothing may come between a header block's parts (RFC 9113 §6.10).
#[tokio::test(start_paused = true)]
async fn a_header_block_in_parts_is_not_interrupted() {
    let mut bench = Bench::client(&[1], 1 << 20).await;
    let (lane, soon) = (bench.handle.attach(1), bench.handle.attach(3));
    let room = reserve(&lane, 5).unwrap();
    soon.send_soon(Bytes::from_static(b"soon"));
    bench.library.write_all(&frame(HEADERS, 0, 3, &CONNECT[..5])).await.unwrap();
    lane.send(buffer(b"hello"), room).unwrap();
    lane.carrier().0.lock().write(&Head::window_update(1, 5));
    assert_eq!(reserve(&lane, 5), None);
    bench.turn();
    bench.library.write_all(&frame(CONTINUATION, END_HEADERS, 3, &CONNECT[5..])).await.unwrap();
    bench.turn();
    assert_eq!(reserve(&lane, 5), Some(5));
    let mut kinds = Vec::new();
    for _ in 0..6 {
        kinds.push(bench.raw.frame().await.unwrap().0.kind);
    }
    assert_eq!(kinds[..2], [HEADERS, CONTINUATION]);
    kinds.sort_unstable();
    assert_eq!(kinds, [DATA, DATA, HEADERS, WINDOW_UPDATE, WINDOW_UPDATE, CONTINUATION]);
}
