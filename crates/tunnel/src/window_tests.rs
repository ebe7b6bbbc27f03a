use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::time::Duration;

use http::HeaderMap;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::shares::FIRST;
use super::*;
use crate::server::{Served, serve};
use crate::test_support::request;
use crate::{Pool, Settings, TunnelStream};

const STREAM: usize = 64 << 10;
const CONNECTION: usize = 4 * STREAM;
/// How many readers stop: more than the connection's own window has room for.
const STALLED: usize = 6;
/// Paused time moves on only when no task can run, so this passes only if the test hangs.
const HANGS: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Receiver {
    Client,
    Server,
}

const BOTH: [Receiver; 2] = [Receiver::Client, Receiver::Server];

/// One connection with a few streams.
struct Rig {
    /// The budget of the receiving end.
    budget: WindowBudget,
    senders: Vec<TunnelStream>,
    receivers: Vec<TunnelStream>,
    server: JoinHandle<Served>,
    _pool: Pool<(), ()>,
}

impl Rig {
    async fn new(receiver: Receiver, budget: usize) -> Self {
        let of = |end| Settings {
            stream_window: STREAM as u32,
            connection_window: CONNECTION as u32,
            max_frame_size: 16 << 10,
            // The other end's budget must not matter.
            window_budget: WindowBudget::new(if end == receiver { budget } else { 0 }),
            ..Settings::default()
        };
        let (near, far) = duplex(STREAM);
        let (accepted, mut accepts) = mpsc::unbounded_channel();
        let (client, served) = (of(Receiver::Client), of(Receiver::Server));
        let budget = if receiver == Receiver::Client { &client } else { &served }.window_budget.clone();
        let server = tokio::spawn(async move {
            let accept = |inbound: crate::InboundConnect| {
                let _ = accepted.send(inbound.accept(HeaderMap::new()).unwrap());
            };
            serve(far, &served, std::future::pending(), accept).await
        });
        let pool: Pool<(), ()> = Pool::new(client);
        let mut near = Some(near);
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..=STALLED {
            let (here, _) = pool.open(&(), || std::future::ready(near.take().ok_or(())), request()).await.unwrap();
            let there = accepts.recv().await.unwrap();
            let (from, to) = if receiver == Receiver::Client { (there, here) } else { (here, there) };
            senders.push(from);
            receivers.push(to);
        }
        Self { budget, senders, receivers, server, _pool: pool }
    }

    /// Sends all streams but the last as much as their windows allow; nobody reads it. Returns the number of streams that
    /// got everything.
    async fn stall(&mut self) -> usize {
        for stream in 0..STALLED {
            let (from, to) = (&mut self.senders[stream], &mut self.receivers[stream]);
            let block = vec![7; STREAM];
            let (sent, ()) = tokio::join!(timeout(HANGS, from.write_all(&block)), async {
                let mut got = 0;
                while got < STREAM
                    && let Ok(chunk) = timeout(HANGS, to.chunk()).await
                {
                    got += chunk.unwrap().unwrap().len();
                }
            });
            if sent.is_err() {
                from.unreserve();
                return stream;
            }
        }
        // Lets the connection's task have its turn.
        sleep(Duration::from_millis(1)).await;
        STALLED
    }

    /// Whether the last stream still carries bytes: many more than a window has.
    async fn flows(&mut self) -> bool {
        let (from, to) = (self.senders.last_mut().unwrap(), self.receivers.last_mut().unwrap());
        let block = vec![1; 2 * CONNECTION];
        let mut got = vec![0; block.len()];
        let both = async { tokio::join!(from.write_all(&block), to.read_exact(&mut got)) };
        let result = timeout(HANGS, both).await;
        from.unreserve();
        result.is_ok_and(|(sent, received)| sent.is_ok() && received.is_ok())
    }

    /// Waits until the budget is unused.
    async fn given_back(&self) {
        let all = async {
            while self.budget.used() > 0 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let left = || format!("{} bytes are not given back", self.budget.used());
        timeout(HANGS, all).await.unwrap_or_else(|_| panic!("{}", left()));
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_stop_leave_room_for_others() {
    for receiver in BOTH {
        let mut rig = Rig::new(receiver, 1 << 20).await;
        assert_eq!(rig.stall().await, STALLED, "{receiver:?}");
        assert!(rig.flows().await, "{receiver:?}");
        assert!(rig.budget.used() >= (STALLED - 1) * STREAM, "{}", rig.budget.used());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_budget_they_leave_none() {
    for receiver in BOTH {
        let mut rig = Rig::new(receiver, 0).await;
        assert_eq!(rig.stall().await, CONNECTION / STREAM, "{receiver:?}");
        assert!(!rig.flows().await, "{receiver:?}");
        // Everything goes on when one of them is read.
        rig.receivers[0].release(STREAM);
        assert!(timeout(HANGS, say_one_way(&mut rig)).await.is_ok(), "{receiver:?}");
    }
}

async fn say_one_way(rig: &mut Rig) {
    let (from, to) = (rig.senders.last_mut().unwrap(), rig.receivers.last_mut().unwrap());
    // The bytes of `flows` come first.
    from.write_all(&[1]).await.unwrap();
    to.read_exact(&mut [0]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_gets_nothing_more_keeps_what_it_has() {
    for receiver in BOTH {
        // Enough for one more reader than without a budget.
        let mut rig = Rig::new(receiver, STREAM).await;
        assert_eq!(rig.stall().await, CONNECTION / STREAM + 1, "{receiver:?}");
        assert_eq!(rig.budget.used(), STREAM);
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_go_on_give_it_back() {
    for receiver in BOTH {
        let mut rig = Rig::new(receiver, 1 << 20).await;
        rig.stall().await;
        let stalled = rig.budget.used();
        assert!(stalled > 0);
        for stream in &mut rig.receivers[..STALLED] {
            stream.release(STREAM);
        }
        rig.given_back().await;
        assert!(rig.flows().await, "{receiver:?}");
        // Once more: nothing was lost.
        assert_eq!(rig.stall().await, STALLED, "{receiver:?}");
        assert_eq!(rig.budget.used(), stalled, "{receiver:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_are_slow_give_it_back() {
    for receiver in BOTH {
        let mut rig = Rig::new(receiver, 1 << 20).await;
        rig.stall().await;
        let mut used = vec![rig.budget.used()];
        for _ in 0..STREAM / 4096 {
            for stream in &mut rig.receivers[..STALLED] {
                stream.release(4096);
            }
            sleep(Duration::from_millis(1)).await;
            used.push(rig.budget.used());
        }
        assert!(used.is_sorted_by(|a, b| a >= b), "{used:?}");
        used.dedup();
        assert!((3..=8).contains(&used.len()), "by half each time: {used:?}");
        rig.given_back().await;
        assert!(rig.flows().await, "{receiver:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_reset_give_it_back() {
    for receiver in BOTH {
        for by_sender in [true, false] {
            let mut rig = Rig::new(receiver, 1 << 20).await;
            rig.stall().await;
            assert!(rig.budget.used() > 0);
            if by_sender {
                rig.senders.drain(..STALLED);
                for stream in &mut rig.receivers[..STALLED] {
                    timeout(HANGS, stream.chunk()).await.unwrap().unwrap_err();
                }
            }
            rig.receivers.drain(..STALLED);
            rig.given_back().await;
            assert!(rig.flows().await, "{receiver:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_gives_it_back_though_its_streams_are_kept() {
    for receiver in BOTH {
        let mut rig = Rig::new(receiver, 1 << 20).await;
        rig.stall().await;
        assert!(rig.budget.used() > 0);
        rig.server.abort();
        rig.given_back().await;
        for stream in &mut rig.receivers {
            stream.release(1);
        }
        drop(std::mem::take(&mut rig.receivers));
        assert_eq!(rig.budget.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_read_in_part_is_held_once() {
    for receiver in BOTH {
        let mut rig = Rig::new(receiver, 1 << 20).await;
        let (from, to) = (&mut rig.senders[0], &mut rig.receivers[0]);
        from.write_all(&[1; 100]).await.unwrap();
        to.read_exact(&mut [0; 30]).await.unwrap();
        let held = |stream: &TunnelStream| stream.lane.held();
        assert_eq!(held(to), (70, 70));
        assert_eq!(to.chunk().await.unwrap().unwrap().len(), 70);
        assert_eq!(held(to), (70, 70));
        to.release(70);
        assert_eq!(held(to), (0, 0));
    }
}

/// A task that records whether it was woken.
#[derive(Default)]
struct Task(AtomicBool);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn what_is_in_transit_changes_nothing() {
    let budget = WindowBudget::new(64 << 20);
    let mut window = Window::new(16 << 20, budget.clone());
    let task = Arc::new(Task::default());
    let waker = Waker::from(task.clone());
    let cx = Context::from_waker(&waker);
    let mut streams: Vec<_> = (0..8).map(|_| Held::new(window.ledger().clone())).collect();
    assert_eq!(window.turn(&cx), None);
    for _ in 0..100 {
        streams.iter_mut().for_each(|stream| stream.hold(512 << 10));
        assert_eq!(window.turn(&cx), None);
        streams.iter_mut().for_each(|stream| assert_eq!(stream.give_back(512 << 10), 512 << 10));
        assert_eq!(window.turn(&cx), None);
    }
    assert!(!task.0.load(SeqCst));
    // One stream is slow, and others pass the threshold in each round. The window grows once.
    streams[0].hold(4 << 20);
    assert_eq!(window.turn(&cx), None);
    let mut changes = 0;
    for _ in 0..100 {
        streams.iter_mut().for_each(|stream| stream.hold(256 << 10));
        changes += usize::from(window.turn(&cx).is_some());
        streams[1..].iter_mut().for_each(|stream| assert_eq!(stream.give_back(256 << 10), 256 << 10));
        streams[0].give_back(256 << 10);
        changes += usize::from(window.turn(&cx).is_some());
    }
    assert_eq!((changes, budget.used()), (1, 2 << 20));
}

#[test]
fn no_window_is_larger_than_there_may_be() {
    let mut window = Window::new(LARGEST as u32 - 5, WindowBudget::new(usize::MAX));
    let mut stream = Held::new(window.ledger().clone());
    stream.hold(LARGEST);
    assert_eq!(window.turn(&Context::from_waker(Waker::noop())), Some(LARGEST as u32));
}

#[test]
fn a_window_is_smaller_or_larger_in_time_on_many_threads() {
    // Lost wake-ups would leave the task asleep with something of the budget.
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let budget = WindowBudget::new(1 << 20);
    let mut window = Window::new(64 << 10, budget.clone());
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let cx = Context::from_waker(&waker);
    window.turn(&cx);
    let mut grown = 0;
    for _ in 0..200 {
        let work = |ledger: Arc<Ledger>| {
            let mut stream = Held::new(ledger);
            for size in 0..100 {
                stream.hold(1000 + size * 10);
                stream.give_back(400 * (size % 5));
            }
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let ledger = window.ledger().clone();
                std::thread::spawn(move || work(ledger))
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) || budget.used() > 0 {
            grown += usize::from(window.turn(&cx).is_some());
            if threads.iter().all(|thread| thread.is_finished()) && budget.used() > 0 {
                // The call that made the turn due has woken the task.
                let begun = std::time::Instant::now();
                std::thread::park_timeout(Duration::from_secs(10));
                assert!(begun.elapsed() < Duration::from_secs(10), "nobody woke it");
            }
        }
    }
    assert!(grown > 0);
}

#[derive(Debug, Clone)]
enum Step {
    Hold { stream: usize, bytes: usize },
    GiveBack { stream: usize, bytes: usize },
    DropStream { stream: usize },
    Turn { connection: usize },
    DropConnection { connection: usize },
}

const CONNECTIONS: usize = 3;
const STREAMS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let (stream, bytes) = (0..CONNECTIONS * STREAMS, 0..50_000_usize);
    prop_oneof![
        8 => (stream.clone(), bytes.clone()).prop_map(|(stream, bytes)| Step::Hold { stream, bytes }),
        6 => (stream.clone(), bytes).prop_map(|(stream, bytes)| Step::GiveBack { stream, bytes }),
        8 => (0..CONNECTIONS).prop_map(|connection| Step::Turn { connection }),
        1 => stream.prop_map(|stream| Step::DropStream { stream }),
        1 => (0..CONNECTIONS).prop_map(|connection| Step::DropConnection { connection }),
    ]
}

proptest! {
    #[test]
    fn never_more_than_the_budget_and_all_of_it_back(
        limit in 0..400_000_usize,
        bases in prop::array::uniform3(0..200_000_u32),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let budget = WindowBudget::new(limit);
        let tasks: [Arc<Task>; CONNECTIONS] = Default::default();
        let mut windows = bases.map(|base| Some(Window::new(base, budget.clone())));
        let mut streams = Vec::new();
        for stream in 0..CONNECTIONS * STREAMS {
            streams.push(Some(Held::new(windows[stream % CONNECTIONS].as_ref().unwrap().ledger().clone())));
        }
        let mut known = bases;
        let turn = |connection: usize, window: &mut Window, known: &mut [u32; CONNECTIONS]| {
            tasks[connection].0.store(false, SeqCst);
            if let Some(size) = window.turn(&Context::from_waker(&Waker::from(tasks[connection].clone()))) {
                assert_ne!(size, known[connection], "told for nothing");
                known[connection] = size;
            }
        };
        for (connection, window) in windows.iter_mut().enumerate() {
            turn(connection, window.as_mut().unwrap(), &mut known);
        }
        for step in steps {
            match step {
                Step::Hold { stream, bytes } => if let Some(held) = &mut streams[stream] {
                    held.hold(bytes);
                }
                Step::GiveBack { stream, bytes } => if let Some(held) = &mut streams[stream] {
                    held.give_back(bytes);
                }
                Step::DropStream { stream } => streams[stream] = None,
                Step::DropConnection { connection } => windows[connection] = None,
                Step::Turn { connection } => if let Some(window) = &mut windows[connection] {
                    turn(connection, window, &mut known);
                }
            }
            let granted: usize = windows.iter().flatten().map(|window| window.granted).sum();
            prop_assert_eq!(granted, budget.used());
            prop_assert!(granted <= limit);
            for (connection, window) in windows.iter().enumerate() {
                let Some(window) = window else { continue };
                prop_assert_eq!(known[connection] as usize, window.base + window.granted);
                let of_it = streams.iter().skip(connection).step_by(CONNECTIONS).flatten();
                let held: usize = of_it.map(|stream| stream.bytes as usize).sum();
                prop_assert_eq!(held, window.ledger.held.load(SeqCst));
                if tasks[connection].0.load(SeqCst) {
                    continue;
                }
                // Nobody was woken, so nothing is due.
                prop_assert!(window.granted <= 2 * held, "should be smaller");
                // Another connection's turn may have freed some of the budget since.
                let refused = window.ledger.high.load(SeqCst) > window.free() + window.granted;
                prop_assert!(held <= window.free() + window.granted || refused, "should be larger");
            }
        }
        drop(streams);
        for (connection, window) in windows.iter_mut().enumerate() {
            let Some(window) = window else { continue };
            prop_assert!(window.granted == 0 || tasks[connection].0.load(SeqCst), "asleep with {}", window.granted);
            turn(connection, window, &mut known);
            prop_assert_eq!(window.granted, 0);
        }
        prop_assert_eq!(budget.used(), 0);
    }
}

/// Every stream receives a full window, and its program reads nothing of it.
#[test]
fn streams_whose_programs_stop_hold_a_bounded_sum() {
    const UNREAD: usize = 16 << 20;
    const LARGEST: u32 = 4 << 20;
    let budget = WindowBudget::with_unread(64 << 20, UNREAD);
    let window = Window::new(16 << 20, budget.clone());
    let mut streams = Vec::new();
    for count in 1..=20_000 {
        let mut stream = Held::new(window.ledger().clone());
        let bytes = stream.window(LARGEST, 0);
        assert_eq!(bytes == LARGEST, count == 1, "stream {count} of {bytes} bytes");
        assert!(bytes >= 256);
        stream.hold(bytes as usize);
        streams.push(stream);
    }
    assert!(budget.waiting() <= UNREAD + (12 << 20), "{} bytes wait", budget.waiting());
    // A program that is known to read gets what it needs.
    let mut reader = Held::new(window.ledger().clone());
    assert!(reader.window(LARGEST, 0) <= 4096);
    assert_eq!(reader.window(LARGEST, 100_000), 128 << 10);
    assert_eq!(reader.window(LARGEST, 1 << 30), LARGEST);
    // When they have read, others get their windows again.
    drop(streams);
    assert_eq!((budget.waiting(), reader.window(LARGEST, 0)), (0, LARGEST));
    // Bytes promised to idle streams may come at any time.
    let mut idle = Vec::new();
    let mut promised = 0;
    for _ in 0..1000 {
        let mut stream = Held::new(window.ledger().clone());
        let bytes = stream.window(LARGEST, 0);
        assert!(bytes >= FIRST, "nothing waits");
        stream.promise(bytes);
        assert_eq!(stream.window(LARGEST, 0), bytes, "a stream does not stand in its own way");
        promised += (bytes - FIRST) as usize;
        idle.push(stream);
    }
    assert!(promised <= UNREAD, "{promised}");
}

/// Promises to idle streams and one stopped program leave a new stream its first window.
#[test]
fn one_stopped_program_beside_idle_streams_slows_nobody() {
    const LARGEST: u32 = 4 << 20;
    let budget = WindowBudget::with_unread(64 << 20, 16 << 20);
    let window = Window::new(16 << 20, budget);
    let mut idle: Vec<_> = (0..10).map(|_| Held::new(window.ledger().clone())).collect();
    for stream in &mut idle {
        let window = stream.window(LARGEST, 0);
        stream.promise(window);
    }
    let mut stopped = Held::new(window.ledger().clone());
    stopped.hold(LARGEST as usize);
    assert!(Held::new(window.ledger().clone()).window(LARGEST, 0) >= FIRST);
}

/// A stream whose program has read much, and whose window is adapted as it reads on.
struct Reader {
    held: Held,
    window: u32,
}

impl Reader {
    fn new(window: &Window) -> Self {
        let mut reader = Self { held: Held::new(window.ledger().clone()), window: 0 };
        reader.reads();
        reader
    }

    /// The peer has used its window up, and the program has read all of it.
    fn reads(&mut self) -> u32 {
        self.window = self.held.window(4 << 20, 1 << 30);
        self.held.promise(self.window);
        self.window
    }

    fn stops(&mut self) {
        let window = self.reads();
        self.held.hold(window as usize);
        self.held.promise(0);
    }
}

const BUDGET: usize = 64 << 20;

#[test]
fn few_readers_have_what_a_fast_program_far_away_needs_and_many_share() {
    let budget = WindowBudget::new(BUDGET);
    let window = Window::new(16 << 20, budget);
    let mut readers = Vec::new();
    for (count, least) in [(7, 4 << 20), (8, 3 << 20), (31, 1 << 19), (200, FIRST)] {
        readers.resize_with(count, || Reader::new(&window));
        // Each gives some of its window up as it reads.
        for _ in 0..100 {
            for reader in &mut readers {
                reader.reads();
            }
        }
        let windows: Vec<_> = readers.iter().map(|reader| reader.window).collect();
        assert!(windows.iter().all(|window| *window >= least), "{count}: {windows:?}");
        let sum: usize = windows.iter().map(|window| *window as usize).sum();
        assert!(sum <= BUDGET / 2 + count * FIRST as usize, "{count} have {sum}");
    }
    // A stream that ends leaves its window to the others.
    readers.truncate(1);
    assert_eq!(readers[0].reads(), 4 << 20);
}

#[test]
fn programs_that_read_much_and_stop_leave_a_bounded_sum_and_the_others_go_on() {
    let budget = WindowBudget::new(BUDGET);
    let connections: Vec<_> = (0..200).map(|_| Window::new(16 << 20, budget.clone())).collect();
    let (mut stopped, mut beside) = (Vec::new(), Reader::new(&connections[0]));
    let innocent = Window::new(16 << 20, budget.clone());
    let mut elsewhere = Reader::new(&innocent);
    for count in 1..=20_000 {
        let mut reader = Reader::new(&connections[count / 100 % connections.len()]);
        reader.stops();
        stopped.push(reader.held);
        let (beside, elsewhere) = (beside.reads(), elsewhere.reads());
        if count <= 50 {
            assert!(beside.min(elsewhere) >= FIRST, "{count}: {beside}, {elsewhere}");
        }
        if count <= 1000 {
            assert!(elsewhere >= FIRST, "{count}: {elsewhere}");
        }
        assert!(beside >= 256 && elsewhere >= 4 << 10, "{count}: {beside}, {elsewhere}");
    }
    assert!(budget.waiting() <= 52 << 20, "{} bytes wait", budget.waiting());
    // Programs that have never read have a budget of their own.
    let mut unknown = Held::new(innocent.ledger().clone());
    assert!(unknown.window(4 << 20, 0) >= FIRST);
    drop(stopped);
    assert_eq!((budget.waiting(), beside.reads()), (0, 4 << 20));
}

#[test]
fn all_that_is_counted_is_given_back() {
    let budget = WindowBudget::new(BUDGET);
    let window = Window::new(16 << 20, budget.clone());
    for reads in [false, true] {
        let mut stream = Held::new(window.ledger().clone());
        stream.hold(100_000);
        stream.promise(200_000);
        if reads {
            // What the stream held and was promised before is moved as well.
            stream.window(4 << 20, 1 << 20);
            assert_eq!((budget.0.promised.load(Relaxed), budget.0.waiting.load(Relaxed)), (0, 0));
        }
        stream.promise(200_000);
        stream.give_back(40_000);
        assert_eq!(budget.waiting(), 60_000);
    }
    let shares = &*budget.0;
    let all = [&shares.waiting, &shares.promised, &shares.left, &shares.earned, &shares.streams];
    assert_eq!(all.map(|counter| counter.load(Relaxed)), [0; 5]);
    assert_eq!([&shares.stopped, &shares.stopped_connections].map(|counter| counter.load(Relaxed)), [0; 2]);
}
