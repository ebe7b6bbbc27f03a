use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use proptest::prelude::*;

use super::*;

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// The messages decoded from chunks that arrive one by one, with a pause before each.
async fn understood(chunks: Vec<Vec<u8>>, most: usize) -> Result<Vec<Vec<u8>>, Status> {
    let mut chunks = chunks.into_iter();
    let mut pause = false;
    let body = stream::poll_fn(move |cx| {
        pause = !pause;
        if pause {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(chunks.next().map(|chunk| Ok::<_, Infallible>(Frame::data(Bytes::from(chunk)))))
    });
    let mut messages = Messages::new(StreamBody::new(body), most, Turns::default());
    let mut found = Vec::new();
    loop {
        // The call is dropped and made again, as in a `select!` with other events.
        let next = tokio::select! {
            biased;
            next = messages.next() => next?,
            () = std::future::ready(()) => continue,
        };
        match next {
            Some(message) => found.push(message.to_vec()),
            None => return Ok(found),
        }
    }
}

proptest! {
    /// However the bytes are cut, the messages are the same.
    #[test]
    fn messages_in_any_chunks(
        wanted in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
        cuts in prop::collection::vec(1..30usize, 1..20),
    ) {
        let bytes: Vec<u8> = wanted.iter().flat_map(|message| framed(message)).collect();
        let (mut chunks, mut rest, mut cuts) = (Vec::new(), &bytes[..], cuts.into_iter().cycle());
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            chunks.push(chunk.to_vec());
            rest = after;
        }
        prop_assert_eq!(runtime().block_on(understood(chunks, 40)).unwrap(), wanted);
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let refused = |bytes: &[u8]| runtime().block_on(understood(vec![bytes.to_vec()], 100)).unwrap_err().code();
    assert_eq!(refused(b"\x01\0\0\0\x01x"), Code::Unimplemented, "compressed");
    assert_eq!(refused(b"\0\0\0\0\x65"), Code::OutOfRange, "too long");
    assert_eq!(refused(b"\0\xff\xff\xff\xff"), Code::OutOfRange);
    assert_eq!(refused(b"\0\0\0\0\x05four"), Code::Internal, "cut off");
    assert_eq!(refused(b"\0\0"), Code::Internal);
    let mut headers = HeaderMap::new();
    check(&headers).unwrap();
    headers.insert("grpc-encoding", HeaderValue::from_static("identity"));
    check(&headers).unwrap();
    headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
    assert_eq!(check(&headers).unwrap_err().code(), Code::Unimplemented);
}

/// A conversation with few answers, and the bytes that are sent.
#[tokio::test]
async fn what_is_put_is_sent_and_then_how_it_ended() {
    for (outcome, code) in [(Ok(()), "0"), (Err(Status::unavailable("gone")), "14")] {
        let outbox = Outbox::default();
        let answers = outbox.clone();
        let conversation = async move {
            for nonce in 0..3 {
                outbox.put(Answer::new(&"type".into(), nonce, 0, super::super::answer::Body::Nothing));
                outbox.sent().await;
                tokio::task::yield_now().await;
            }
            outcome
        };
        let collected = Spoken::new(conversation, answers).collect().await.unwrap();
        let trailers = collected.trailers().unwrap().clone();
        assert_eq!(trailers.get("grpc-status").unwrap(), code);
        let bytes = collected.to_bytes();
        let nonces: Vec<u8> = bytes.chunks(5 + 6 + 3).map(|message| message[13]).collect();
        assert_eq!(nonces, b"012");
    }
}

/// Long messages are received a few at a time, short ones beside them. A slow sender delays the others only for a while.
#[tokio::test(start_paused = true)]
async fn long_messages_take_turns() {
    let turns = Turns::default();
    let long = framed(&[7; 2 * LONG]);
    let speaker = |bytes: Vec<u8>| {
        let (sender, mut chunks) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        sender.send(bytes).unwrap();
        let body = stream::poll_fn(move |cx| {
            chunks.poll_recv(cx).map(|chunk| Some(Ok::<_, Infallible>(Frame::data(Bytes::from(chunk?)))))
        });
        (sender, Messages::new(StreamBody::new(body), 4 * LONG, turns.clone()))
    };
    // These senders have begun a message and send nothing more.
    let (begin, rest) = long.split_at(1000);
    let mut dawdlers: Vec<_> = (0..LONG_AT_ONCE).map(|_| speaker(begin.to_vec())).collect();
    for (_, messages) in &mut dawdlers {
        let next = tokio::time::timeout(Duration::from_millis(1), messages.next()).await;
        assert!(next.is_err(), "it has not said all");
    }
    assert_eq!(turns.free.available_permits(), 0);
    let (_sender, mut short) = speaker(framed(b"short"));
    assert_eq!(short.next().await.unwrap().unwrap(), "short");
    let (honest, mut messages) = speaker(begin.to_vec());
    honest.send(rest.to_vec()).unwrap();
    let began = tokio::time::Instant::now();
    let beside = tokio::spawn(async move {
        futures_util::future::join_all(dawdlers.iter_mut().map(|(_, messages)| messages.next())).await.len()
    });
    assert_eq!(messages.next().await.unwrap().unwrap().len(), 2 * LONG);
    assert!(began.elapsed() > LONG_TAKES / 2 && began.elapsed() <= LONG_TAKES, "{:?}", began.elapsed());
    beside.abort();
    assert!(beside.await.is_err());
    assert_eq!(turns.free.available_permits(), LONG_AT_ONCE, "a turn ends with the message, or the stream");
}
