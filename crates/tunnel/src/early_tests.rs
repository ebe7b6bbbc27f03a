use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::client::LIVELY;
use crate::test_support::{Farm, request, say};
use crate::{Error, OpenError, Pool, Settings, TunnelStream};

type TestPool = Pool<&'static str, &'static str>;
type Asked = (Request<h2::RecvStream>, SendResponse<Bytes>);

/// A program, and this proxy's end of its connection.
async fn program() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (program, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (program.unwrap(), accepted.unwrap().0)
}

/// A peer whose every answer is the test's to give. Dropping what is returned closes its connection.
fn peer() -> (DuplexStream, mpsc::UnboundedReceiver<Asked>) {
    let (near, far) = duplex(64 << 10);
    let (tell, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(far).await.unwrap();
        let gone = tell.clone();
        loop {
            tokio::select! {
                request = connection.accept() => match request {
                    Some(Ok(request)) => { let _ = tell.send(request); }
                    _ => return,
                },
                () = gone.closed() => return,
            }
        }
    });
    (near, asked)
}

async fn open(
    pool: &TestPool,
    transport: DuplexStream,
    first: &mut FirstBytes<'_>,
) -> Result<TunnelStream, OpenError<&'static str>> {
    let mut transport = Some(transport);
    let dial = || std::future::ready(transport.take().ok_or("there was one connection"));
    pool.open_with(&"peer", dial, request(), Some(first)).await.map(|(stream, _)| stream)
}

fn answer(respond: &mut SendResponse<Bytes>, status: StatusCode) -> SendStream<Bytes> {
    respond.send_response(Response::builder().status(status).body(()).unwrap(), status != StatusCode::OK).unwrap()
}

async fn received(from: &mut Request<h2::RecvStream>) -> Bytes {
    let bytes = from.body_mut().data().await.unwrap().unwrap();
    from.body_mut().flow_control().release_capacity(bytes.len()).unwrap();
    bytes
}

#[tokio::test]
async fn the_first_bytes_do_not_wait_for_the_answer() {
    let (mut program, captured) = program().await;
    let (transport, mut asked) = peer();
    program.write_all(b"hello").await.unwrap();
    let mut first = FirstBytes::of(&captured);
    let answering = async {
        let (mut request, mut respond) = asked.recv().await.unwrap();
        assert_eq!(received(&mut request).await, "hello");
        let mut send = answer(&mut respond, StatusCode::OK);
        send.send_data("welcome".into(), true).unwrap();
        (request, respond)
    };
    let pool = Pool::new(Settings::default());
    let (stream, _answered) = tokio::join!(open(&pool, transport, &mut first), answering);
    assert_eq!(stream.unwrap().chunk().await.unwrap().unwrap(), "welcome");
    assert_eq!((first.taken(), first.in_doubt()), (5, false));
}

#[tokio::test]
async fn who_is_asked_next_gets_what_another_refused() {
    let (mut program, captured) = program().await;
    program.write_all(b"hello").await.unwrap();
    let mut first = FirstBytes::of(&captured);
    let refusals: [fn(&mut SendResponse<Bytes>); 2] = [
        |respond| drop(answer(respond, StatusCode::SERVICE_UNAVAILABLE)),
        |respond| respond.send_reset(Reason::INTERNAL_ERROR),
    ];
    for (index, refuse) in refusals.into_iter().enumerate() {
        let (transport, mut asked) = peer();
        let answering = async {
            let (mut request, mut respond) = asked.recv().await.unwrap();
            assert_eq!(received(&mut request).await, "hello");
            refuse(&mut respond);
            (request, respond)
        };
        let pool = Pool::new(Settings::default());
        let (stream, _answered) = tokio::join!(open(&pool, transport, &mut first), answering);
        assert!(stream.is_err());
        assert_eq!(first.in_doubt(), index == 1, "only a refusal says that nothing was done");
    }
}

#[tokio::test]
async fn a_request_that_was_not_looked_at_is_made_again_with_its_bytes() {
    let (mut program, captured) = program().await;
    program.write_all(b"hello").await.unwrap();
    let mut first = FirstBytes::of(&captured);
    let (transport, mut asked) = peer();
    let answering = async {
        let (mut request, mut respond) = asked.recv().await.unwrap();
        assert_eq!(received(&mut request).await, "hello");
        respond.send_reset(Reason::REFUSED_STREAM);
        let (mut request, mut respond) = asked.recv().await.unwrap();
        assert_eq!(received(&mut request).await, "hello");
        let send = answer(&mut respond, StatusCode::OK);
        (request, respond, send)
    };
    let pool = Pool::new(Settings::default());
    let (stream, _answered) = tokio::join!(open(&pool, transport, &mut first), answering);
    assert!(stream.is_ok() && !first.in_doubt());
}

#[tokio::test]
async fn bytes_that_a_lost_peer_may_have_passed_on_are_not_sent_twice() {
    let farm = Farm::new(Settings::default());
    let (mut program, captured) = program().await;
    for says_something in [false, true] {
        let pool = TestPool::new(Settings::default());
        let (transport, mut asked) = peer();
        // A connection that is kept: the loss of a fresh one is nobody's to mend.
        let mut transport = Some(transport);
        let opening = pool.open_with(&"peer", || std::future::ready(Ok(transport.take().unwrap())), request(), None);
        let answering = async {
            let (_, mut respond) = asked.recv().await.unwrap();
            answer(&mut respond, StatusCode::OK)
        };
        let (kept, _answered) = tokio::join!(opening, answering);
        kept.unwrap();
        let mut first = FirstBytes::of(&captured);
        if says_something {
            program.write_all(b"hello").await.unwrap();
        }
        let dying = async {
            let (mut request, respond) = asked.recv().await.unwrap();
            if says_something {
                assert_eq!(received(&mut request).await, "hello");
            }
            // Before the request: that one's end would be told in a frame of its own.
            drop(asked);
            (request, respond)
        };
        let opening = pool.open_with(&"peer", || std::future::ready(Ok(farm.dial())), request(), Some(&mut first));
        let (opened, _unanswered) = tokio::join!(opening, dying);
        match opened {
            Ok((mut stream, _)) => {
                assert!(!says_something && !first.in_doubt());
                say(&mut stream, "hello").await;
            }
            Err(error) => {
                assert!(says_something && first.in_doubt());
                assert!(matches!(error, OpenError::Tunnel(Error::Lost(_))), "{error}");
            }
        }
    }
    assert_eq!(farm.dials(), 1);
}

#[tokio::test]
async fn a_peer_that_was_silent_has_to_answer_first() {
    let (mut program, captured) = program().await;
    let (refusing, mut refused) = peer();
    program.write_all(b"hello").await.unwrap();
    let mut first = FirstBytes::of(&captured);
    let refusal = async {
        let (mut request, mut respond) = refused.recv().await.unwrap();
        assert_eq!(received(&mut request).await, "hello");
        answer(&mut respond, StatusCode::SERVICE_UNAVAILABLE);
        (request, respond)
    };
    let other = TestPool::new(Settings::default());
    let (opened, _answered) = tokio::join!(open(&other, refusing, &mut first), refusal);
    assert!(opened.is_err());

    let (transport, mut asked) = peer();
    let pool = TestPool::new(Settings::default());
    let mut transport = Some(transport);
    let opening = pool.open_with(&"peer", || std::future::ready(Ok(transport.take().unwrap())), request(), None);
    let answering = async {
        let (request, mut respond) = asked.recv().await.unwrap();
        (request, answer(&mut respond, StatusCode::OK))
    };
    let (_kept, _answered) = tokio::join!(opening, answering);
    tokio::time::pause();
    let (untouched, captured_too) = program_that_says("more").await;
    let mut early = FirstBytes::of(&captured_too);
    for first in [&mut first, &mut early] {
        tokio::time::advance(2 * LIVELY).await;
        let opening = pool.open_with(
            &"peer",
            || std::future::ready(Err::<DuplexStream, _>("there is one")),
            request(),
            Some(first),
        );
        let answering = async {
            let (mut request, mut respond) = asked.recv().await.unwrap();
            tokio::select! {
                biased;
                bytes = received(&mut request) => panic!("{bytes:?} came before the answer"),
                () = settle() => {}
            }
            let send = answer(&mut respond, StatusCode::OK);
            (request, send)
        };
        let (opened, (mut request, _send)) = tokio::join!(opening, answering);
        let _stream = opened.unwrap().0;
        if first.taken() > 0 {
            assert_eq!(received(&mut request).await, "hello");
        }
    }
    assert_eq!(early.taken(), 0, "left to the relay");
    drop(untouched);
}

async fn program_that_says(what: &str) -> (TcpStream, TcpStream) {
    let (mut program, captured) = program().await;
    program.write_all(what.as_bytes()).await.unwrap();
    captured.readable().await.unwrap();
    (program, captured)
}

/// Lets every other task run until it waits.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_program_that_ends_at_once_sends_nothing_early() {
    let (mut program, captured) = program().await;
    program.shutdown().await.unwrap();
    let farm = Farm::new(Settings::default());
    let mut first = FirstBytes::of(&captured);
    let pool = Pool::new(Settings::default());
    let mut stream = open(&pool, farm.dial(), &mut first).await.unwrap();
    assert_eq!((first.taken(), first.in_doubt()), (0, false));
    say(&mut stream, "its end is still to be passed on").await;
}

#[tokio::test]
async fn what_was_refused_takes_no_room_of_the_connection() {
    let settings = Settings { connection_window: 64 << 10, ..Settings::default() };
    let farm = Farm::new(settings.clone());
    let pool = TestPool::new(Settings::default());
    let mut count = 0;
    let mut transport = Some(farm.dial_to(move |inbound| {
        count += 1;
        if count <= 100 {
            inbound.refuse(StatusCode::UNAUTHORIZED, HeaderMap::new());
        } else {
            tokio::spawn(crate::test_support::echo(inbound));
        }
    }));
    let mut dial = || std::future::ready(transport.take().ok_or("there was one connection"));
    for _ in 0..100 {
        let (_program, captured) = program_that_says(&"x".repeat(4096)).await;
        let mut first = FirstBytes::of(&captured);
        let refused = pool.open_with(&"peer", &mut dial, request(), Some(&mut first)).await;
        assert!(matches!(refused, Err(OpenError::Refused { .. })), "{refused:?}");
    }
    let (mut stream, _) = pool.open_with(&"peer", &mut dial, request(), None).await.unwrap();
    let sent = vec![1; 256 << 10];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let mut got = vec![0; sent.len()];
    let (wrote, read) = tokio::join!(write.write_all(&sent), read.read_exact(&mut got));
    assert!(wrote.is_ok() && read.is_ok() && got == sent);
}
