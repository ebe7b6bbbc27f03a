use std::time::Duration;

use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, Request, Response, StatusCode};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::connection::LIVELY;
use crate::test_support::{Farm, request, say, settle};
use crate::{Error, OpenError, Pool, Settings, TunnelStream};

type TestPool = Pool<&'static str, &'static str>;
type Asked = (Request<h2::RecvStream>, SendResponse<Bytes>);

/// A program, and the proxy's end of its connection.
async fn program() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (program, accepted) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (program.unwrap(), accepted.unwrap().0)
}

async fn program_that_says(what: &str) -> (TcpStream, TcpStream) {
    let (mut program, captured) = program().await;
    program.write_all(what.as_bytes()).await.unwrap();
    captured.readable().await.unwrap();
    (program, captured)
}

/// A peer that accepts the first request. The test gives all other answers. Dropping what is returned closes its
/// connection.
fn peer() -> (DuplexStream, mpsc::UnboundedReceiver<Asked>) {
    let (near, far) = duplex(64 << 10);
    let (tell, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(far).await.unwrap();
        let (_first, mut respond) = connection.accept().await.unwrap().unwrap();
        let _accepted = answer(&mut respond, StatusCode::OK);
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

/// A pool with a connection that has carried a stream, and that stream.
async fn pool(transport: DuplexStream) -> (TestPool, TunnelStream) {
    let pool = TestPool::new(Settings::default());
    let mut transport = Some(transport);
    let dial = || std::future::ready(transport.take().ok_or("there was one connection"));
    let stream = pool.open(&"peer", dial, request()).await.unwrap().0;
    (pool, stream)
}

async fn open(pool: &TestPool, first: &mut FirstBytes<'_>) -> Result<TunnelStream, OpenError<&'static str>> {
    let dial = || std::future::ready(Err::<DuplexStream, _>("there is a connection"));
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

/// The next request, with which "hello" came before it was answered.
async fn says_hello(asked: &mut mpsc::UnboundedReceiver<Asked>) -> Asked {
    let (mut request, respond) = asked.recv().await.unwrap();
    assert_eq!(received(&mut request).await, "hello");
    (request, respond)
}

async fn refuses_hello(asked: &mut mpsc::UnboundedReceiver<Asked>) -> Asked {
    let (request, mut respond) = says_hello(asked).await;
    answer(&mut respond, StatusCode::SERVICE_UNAVAILABLE);
    (request, respond)
}

/// A pool with a connection whose peer has refused "hello", and a guard that keeps the connection open.
async fn refused(first: &mut FirstBytes<'_>) -> (TestPool, impl Sized + use<>) {
    let (transport, mut asked) = peer();
    let (pool, kept) = pool(transport).await;
    assert!(tokio::join!(open(&pool, first), refuses_hello(&mut asked)).0.is_err());
    (pool, (kept, asked))
}

#[tokio::test]
async fn the_first_bytes_do_not_wait_for_the_answer() {
    let (mut program, captured) = program().await;
    let (transport, mut asked) = peer();
    program.write_all(b"hello").await.unwrap();
    let mut first = FirstBytes::of(&captured);
    let answering = async {
        let (request, mut respond) = says_hello(&mut asked).await;
        let mut send = answer(&mut respond, StatusCode::OK);
        send.send_data("welcome".into(), true).unwrap();
        (request, respond)
    };
    let (pool, _kept) = pool(transport).await;
    let (stream, _answered) = tokio::join!(open(&pool, &mut first), answering);
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
            let (request, mut respond) = says_hello(&mut asked).await;
            refuse(&mut respond);
            (request, respond)
        };
        let (pool, _kept) = pool(transport).await;
        let (stream, _answered) = tokio::join!(open(&pool, &mut first), answering);
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
        let (_request, mut respond) = says_hello(&mut asked).await;
        respond.send_reset(Reason::REFUSED_STREAM);
        let (request, mut respond) = says_hello(&mut asked).await;
        let send = answer(&mut respond, StatusCode::OK);
        (request, respond, send)
    };
    let (pool, _kept) = pool(transport).await;
    let (stream, _answered) = tokio::join!(open(&pool, &mut first), answering);
    assert!(stream.is_ok() && !first.in_doubt());
}

#[tokio::test]
async fn bytes_that_a_lost_peer_may_have_passed_on_are_not_sent_twice() {
    let farm = Farm::new(Settings::default());
    let (mut program, captured) = program().await;
    for says_something in [false, true] {
        let (transport, mut asked) = peer();
        let (pool, _kept) = pool(transport).await;
        let mut first = FirstBytes::of(&captured);
        if says_something {
            program.write_all(b"hello").await.unwrap();
        }
        let dying = async {
            let (mut request, respond) = asked.recv().await.unwrap();
            if says_something {
                assert_eq!(received(&mut request).await, "hello");
            }
            // This comes before the request, because the request's end would be announced in a frame of its own.
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
async fn a_peer_has_to_answer_first_that_was_silent_or_has_yet_to_speak_or_has_refused() {
    let (_program, captured) = program_that_says("hello").await;
    let (refusing, _kept) = refused(&mut FirstBytes::of(&captured)).await;
    let (silent, fresh) = (pool(peer().0).await.0, TestPool::new(Settings::default()));
    tokio::time::pause();
    let (_program, captured) = program_that_says("more").await;
    for (case, pool) in [("refused", refusing), ("silent", silent), ("fresh", fresh)] {
        let farm = Farm::new(Settings::default());
        if case == "silent" {
            tokio::time::advance(2 * LIVELY).await;
        }
        let mut first = FirstBytes::of(&captured);
        let dial = || std::future::ready(Ok(farm.dial()));
        let opening = pool.open_with(&"peer", dial, request(), Some(&mut first));
        tokio::select! {
            biased;
            _ = opening => {}
            () = settle() => {}
        }
        assert_eq!(first.taken(), 0, "{case}");
    }
}

#[tokio::test]
async fn what_one_peer_refused_is_sent_to_the_next_after_its_answer_if_it_must_not_be_before() {
    let (_program, captured) = program_that_says("hello").await;
    let mut first = FirstBytes::of(&captured);
    let _refusing = refused(&mut first).await;
    let farm = Farm::new(Settings::default());
    let fresh = TestPool::new(Settings::default());
    let dial = || std::future::ready(Ok(farm.dial()));
    let (mut stream, _) = fresh.open_with(&"peer", dial, request(), Some(&mut first)).await.unwrap();
    assert_eq!(stream.chunk().await.unwrap().unwrap(), "hello", "as the echo has it");
    assert_eq!((first.taken(), first.in_doubt()), (5, false));
}

#[tokio::test]
async fn a_program_that_resets_its_connection_is_found_out() {
    let (program, captured) = program().await;
    let (transport, mut asked) = peer();
    let (pool, _kept) = pool(transport).await;
    let mut first = FirstBytes::of(&captured);
    let resetting = async {
        let asked = asked.recv().await.unwrap();
        settle().await;
        SockRef::from(&program).set_linger(Some(Duration::ZERO)).unwrap();
        drop(program);
        asked
    };
    let (opened, _unanswered) = tokio::join!(open(&pool, &mut first), resetting);
    assert!(matches!(opened, Err(OpenError::Program(_))), "{opened:?}");
}

#[tokio::test]
async fn a_program_that_ends_at_once_sends_nothing_early() {
    let (mut program, captured) = program().await;
    program.shutdown().await.unwrap();
    let farm = Farm::new(Settings::default());
    let mut first = FirstBytes::of(&captured);
    let (pool, _kept) = pool(farm.dial()).await;
    let mut stream = open(&pool, &mut first).await.unwrap();
    assert_eq!((first.taken(), first.in_doubt()), (0, false));
    say(&mut stream, "its end is still to be passed on").await;
}

#[tokio::test(start_paused = true)]
async fn bytes_that_meet_a_refusal_do_the_connection_no_harm() {
    const AT_ONCE: usize = 100;
    let settings = Settings { connection_window: 64 << 10, ..Settings::default() };
    let farm = Farm::new(settings.clone());
    let mut count = 0;
    let far = farm.dial_to(move |inbound| {
        count += 1;
        if count > 1 {
            inbound.refuse(StatusCode::UNAUTHORIZED, HeaderMap::new());
        } else {
            tokio::spawn(crate::test_support::echo(inbound));
        }
    });
    let (mut send, driver) = settings.client().handshake::<_, Bytes>(late_to_hear(far)).await.unwrap();
    tokio::spawn(driver);
    let connect = |send: &mut h2::client::SendRequest<Bytes>| {
        let mut head = Request::new(());
        *head.method_mut() = http::Method::CONNECT;
        *head.uri_mut() = "10.0.0.1:80".parse().unwrap();
        send.send_request(head, false).unwrap()
    };
    let (accepted, mut open) = connect(&mut send);
    let mut echoed = accepted.await.unwrap().into_body();
    for _ in 0..30 {
        let mut asked: Vec<_> = (0..AT_ONCE).map(|_| connect(&mut send)).collect();
        settle().await;
        for (_, stream) in &mut asked {
            stream.send_data(vec![0; 1 << 10].into(), false).unwrap();
        }
        for (answer, _) in &mut asked {
            assert_eq!(answer.await.unwrap().status(), StatusCode::UNAUTHORIZED);
        }
    }
    open.send_data("still here".into(), false).unwrap();
    assert_eq!(echoed.data().await.unwrap().unwrap(), "still here");
}

/// A transport on which bytes from `far` are delayed.
fn late_to_hear(far: DuplexStream) -> DuplexStream {
    let (near, middle) = duplex(64 << 10);
    let (mut from_near, mut to_near) = tokio::io::split(middle);
    let (mut from_far, mut to_far) = tokio::io::split(far);
    tokio::spawn(async move { tokio::io::copy(&mut from_near, &mut to_far).await });
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from_far.read(&mut buffer).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
            to_near.write_all(&buffer[..len]).await.unwrap();
        }
    });
    near
}
