//! When the bytes that streams send are written to the transport.

use tokio::io::AsyncWrite;

use super::*;

async fn sends(lane: &Lane, raw: &mut Raw) -> bool {
    let Poll::Ready(Ok(room)) = lane.poll_reserve(&cx(), 5) else { panic!("there is room") };
    lane.send(buffer(b"hello"), room).unwrap();
    left(raw).await
}

/// Whether something was sent.
async fn left(raw: &mut Raw) -> bool {
    let mut left = false;
    while timeout(HANGS, raw.frame()).await.is_ok() {
        left = true;
    }
    left
}

/// A transport that passes bytes on only when it is flushed, as TLS does.
struct Gathers {
    io: DuplexStream,
    gathered: Vec<u8>,
}

impl AsyncRead for Gathers {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Gathers {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.gathered.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gathered = std::mem::take(&mut self.gathered);
        if !gathered.is_empty() {
            assert!(
                matches!(Pin::new(&mut self.io).poll_write(cx, &gathered), Poll::Ready(Ok(taken)) if taken == gathered.len())
            );
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Transport for Gathers {}

async fn bench() -> (Bench, Lane) {
    let (near, far) = duplex(1 << 20);
    let settings = small();
    let ledger = crate::window::Window::new(settings.connection_window, WindowBudget::new(0)).ledger().clone();
    let io = Gathers { io: near, gathered: Vec::new() };
    let handle = Handle::new(Box::new(io), Role::Client, &settings, ledger);
    let mut bench = Bench { library: handle.library_io(), handle, raw: Raw::new(far) };
    bench.handle.has_task();
    bench.library.write_all(PREFACE).await.unwrap();
    bench.library.write_all(&frame(HEADERS, END_HEADERS, 1, CONNECT)).await.unwrap();
    bench.turn();
    bench.raw.io.read_exact(&mut [0; 24]).await.unwrap();
    bench.raw.window_told(1).await;
    let lane = bench.handle.attach(1);
    (bench, lane)
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_that_the_thread_sleeps_all_leaves_at_the_end_of_a_turn() {
    let (mut bench, lane) = bench().await;
    for _ in 0..5 {
        assert!(!sends(&lane, &mut bench.raw).await);
        bench.turn();
        assert!(left(&mut bench.raw).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_alone_leaves_at_once_and_several_leave_together() {
    let (mut bench, lane) = bench().await;
    for _ in 0..3 {
        thread_sleeps();
        assert!(sends(&lane, &mut bench.raw).await, "alone");
    }
    assert!(!sends(&lane, &mut bench.raw).await, "the second of a waking");
    assert!(!sends(&lane, &mut bench.raw).await);
    bench.turn();
    assert!(left(&mut bench.raw).await);
    thread_sleeps();
    assert!(!sends(&lane, &mut bench.raw).await, "several came the time before");
    bench.turn();
    assert!(left(&mut bench.raw).await);
    thread_sleeps();
    assert!(sends(&lane, &mut bench.raw).await, "alone again");
}

#[tokio::test(start_paused = true)]
async fn within_a_turn_all_waits_for_its_end() {
    let (mut bench, lane) = bench().await;
    thread_sleeps();
    assert!(bench.handle.begin_turn(&mut cx()).is_ok());
    assert!(!sends(&lane, &mut bench.raw).await);
    bench.handle.end_turn(&mut cx()).unwrap();
    assert!(left(&mut bench.raw).await);
}

/// A sleeping task must be woken for what it has to send.
#[tokio::test(start_paused = true)]
async fn the_task_is_woken_once_for_what_waits() {
    #[derive(Default)]
    struct Woken(AtomicU64);
    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    let (bench, lane) = bench().await;
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    assert!(bench.handle.begin_turn(&mut Context::from_waker(&waker)).is_ok());
    bench.handle.end_turn(&mut Context::from_waker(&waker)).unwrap();
    for _ in 0..3 {
        let Poll::Ready(Ok(room)) = lane.poll_reserve(&cx(), 5) else { panic!("there is room") };
        lane.send(buffer(b"hello"), room).unwrap();
    }
    assert_eq!(woken.0.load(Relaxed), 1);
}
