#![allow(clippy::unwrap_used, reason = "test code")]

use std::convert::Infallible;

use http_body_util::StreamBody;

use super::*;

fn parts(parts: &[&'static [u8]]) -> Vec<Frame<Bytes>> {
    parts.iter().map(|part| Frame::data(Bytes::from_static(part))).collect()
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("x-sum".parse().unwrap(), "1".parse().unwrap())])
}

fn body(frames: Vec<Frame<Bytes>>) -> ClientBody<impl Body<Data = Bytes, Error = Infallible> + Unpin> {
    ClientBody::new(StreamBody::new(futures_util::stream::iter(frames.into_iter().map(Ok))))
}

/// Whatever is left, as it is passed on.
async fn rest<B: Body<Data = Bytes, Error = Infallible> + Unpin>(
    body: &mut ClientBody<B>,
) -> (Vec<Bytes>, Option<HeaderMap>) {
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(Ok(frame)) = std::future::poll_fn(|cx| body.poll_frame(cx)).await {
        match frame.into_data() {
            Ok(part) => data.push(part),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    assert!(body.is_end_stream());
    (data, trailers)
}

#[tokio::test]
async fn what_is_held_is_passed_on_with_all_that_follows() {
    for (most, partial, held, whole) in [
        (100, false, "abcdef", true),
        (6, false, "abcdef", true),
        (5, false, "abcdef", false),
        (3, false, "abcd", false),
        (3, true, "abcd", false),
        (4, true, "abcd", false),
        (100, true, "abcdef", true),
    ] {
        let mut frames = parts(&[b"ab", b"cd", b"ef"]);
        frames.push(Frame::trailers(trailers()));
        let (mut body, room) = (body(frames), room(0));
        body.hold(most, partial, &room).await.unwrap();
        assert_eq!((body.held(), body.has_come()), (held.as_bytes(), whole), "{most} {partial}");
        // Somebody else wants to see as much, and then the rest.
        body.hold(most, partial, &room).await.unwrap();
        assert_eq!(body.held(), held.as_bytes());
        assert!(!body.is_end_stream());
        assert_eq!(body.size_hint().exact(), None, "a length would leave no place for trailers");
        let (data, last) = rest(&mut body).await;
        assert_eq!((data[0].as_ref(), data.concat().as_slice()), (held.as_bytes(), &b"abcdef"[..]));
        assert_eq!(last, Some(trailers()));
    }
}

#[tokio::test]
async fn what_is_not_held_costs_nothing_and_passes_as_it_comes() {
    let mut body = body(parts(&[b"ab", b"cd"]));
    assert!(body.held().is_empty() && !body.is_end_stream());
    assert_eq!(rest(&mut body).await, (vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cd")], None));
}

#[tokio::test]
async fn a_length_that_the_client_has_said_stays() {
    let mut body = ClientBody::new(http_body_util::Full::new(Bytes::from_static(b"abc")));
    assert_eq!(body.size_hint().exact(), Some(3));
    body.hold(100, false, &room(0)).await.unwrap();
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
    assert_eq!(rest(&mut body).await.0, [Bytes::from_static(b"abc")]);
}

#[tokio::test]
async fn all_that_is_held_has_one_room_which_is_free_when_nobody_has_it() {
    const PART: &[u8] = &[7; 3 << 10];
    // Of 256 KiB an eighth: 32 KiB, and 16 KiB with the copies.
    let room = room(256 << 10);
    assert_eq!(room.available_permits(), 32);
    let mut first = body(parts(&[PART, PART, PART]));
    first.hold(9 << 10, false, &room).await.unwrap();
    assert!(room.available_permits() <= 14, "{}", room.available_permits());
    let mut second = body(parts(&[PART, PART, PART]));
    assert!(matches!(second.hold(9 << 10, false, &room).await, Err(Unheld::NoRoom)));
    drop(second);
    let (data, _) = rest(&mut first).await;
    let copy = data[0].slice(..1);
    drop((first, data));
    assert!(room.available_permits() <= 14, "somebody still has some of it");
    drop(copy);
    assert_eq!(room.available_permits(), 32);
    assert_eq!(super::room(0).available_permits(), 128 << 10);
}
