//! Programs that stop reading, while what sends to them does not stop.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::process::{MESSAGE, WORKERS, order};
use crate::support::{Pod, soon};
use crate::{ALONE, Field, LANES, open, short};

/// What a proxy may hold for readers that have stopped: the receive window of a tunnel, which its
/// streams share, for each thread has a tunnel of its own to a pod; what windows may grow by; and
/// half as much for what surrounds the bytes.
const MOST_RECEIVED: usize = (WORKERS * (16 << 20) + (64 << 20)) * 3 / 2;
/// And for each sender: what is taken from it but not yet sent, and the buffer it is read into.
const MOST_SENT: usize = 2 * (256 << 10);

/// Readers that may stop, each way, without anybody's waiting for them: 4 MiB each, twice what a
/// tunnel's own window has room for.
const FEW: usize = 8;

/// Senders that never stop.
#[derive(Default)]
struct Senders {
    tasks: JoinSet<()>,
    sent: Arc<AtomicU64>,
}

impl Senders {
    fn add(&mut self, mut stream: TcpStream) {
        let sent = self.sent.clone();
        self.tasks.spawn(async move {
            let block = vec![7; 64 << 10];
            while let Ok(count) = stream.write(&block).await {
                sent.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
    }

    /// Waits until nothing goes any more; returns how many bytes have gone.
    async fn stuck(&self) -> u64 {
        let begun = Instant::now();
        loop {
            let before = self.sent.load(Ordering::Relaxed);
            // Silence is what is waited for.
            tokio::time::sleep(Duration::from_millis(500)).await;
            if before == self.sent.load(Ordering::Relaxed) {
                return before;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{before} bytes, and no end of it");
        }
    }
}

#[tokio::test]
async fn readers_that_stop_are_sent_a_bounded_amount_and_disturb_nobody() {
    if !may_run("readers_that_stop_are_sent_a_bounded_amount_and_disturb_nobody") {
        return;
    }
    let _alone = ALONE.lock().await;
    readers_that_stop(Field::new().await).await;
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn readers_that_stop_slow_nobody_down() {
    if !may_run("readers_that_stop_slow_nobody_down") {
        return;
    }
    let _alone = ALONE.lock().await;
    readers_that_stop(Field::measured().await).await;
}

async fn readers_that_stop(mut field: Field) {
    let count = field.size.stalled;
    let neighbour = field.neighbour();
    let base = neighbour.base(&field.size).await;

    // All are open before one of them fills its tunnel.
    let (mut received, mut ignored) = (Vec::new(), Vec::new());
    for _ in 0..count {
        received.push(soon("an answer", open(&field.client, field.target(), order::PUSH)).await.unwrap());
        ignored.push(soon("an answer", open(&field.client, field.target(), order::IGNORE)).await.unwrap());
    }
    let mut senders = Senders::default();
    for few in [true, false] {
        // The other side sends, and nobody reads here; and the other way round.
        let (from, to) = if few { (0, FEW) } else { (FEW, count) };
        for stream in &mut received[from..to] {
            stream.write_all(&[order::PUSH; MESSAGE]).await.unwrap();
        }
        ignored.drain(..to - from).for_each(|stream| senders.add(stream));
        let sent = senders.stuck().await;
        println!("{to} readers each way have stopped: {sent} bytes were taken; {:?} bytes held", field.taken());
        if few {
            // Others on the same tunnel do not notice. When it may not grow any more, they wait.
            for _ in 0..10 {
                soon("an answer on the same tunnel", short(&field.client, field.target())).await.unwrap();
            }
        }
    }
    let most = MOST_RECEIVED + count * MOST_SENT;
    for (node, taken) in field.taken().into_iter().enumerate() {
        assert!(taken <= most, "node-{} holds {taken} bytes, of {most} at most", node + 1);
    }
    neighbour.is_undisturbed(base, "readers that have stopped", &field.size).await;
    // The readers go away: those here, and with their process those there.
    drop((neighbour, received, field.programs.remove(0)));
    let ended = async { while senders.tasks.join_next().await.is_some() {} };
    soon("the senders to be told", ended).await;
    field.is_given_back().await;
}

/// Programs that read much and then stop: twice as many as would use up all that the tunnels between two pods may
/// hold, if each left what it has earned by then.
const QUITTERS: usize = 40;

/// What they may cost a proxy, bytes: what windows may hold for programs that have read and for such that have not,
/// and a third more for what surrounds the bytes.
const QUITTERS_COST: usize = 64 << 20;

/// What the others' throughput may fall to.
const AT_LEAST: f64 = 0.5;

/// Bytes that go on their way to a reader that reads only if it is given windows again and again: several times what they
/// and the kernels on the way may hold.
const SEVERAL_WINDOWS: usize = 64 << 20;

/// Bytes a second that go into `stream`.
async fn speed(stream: &mut TcpStream, time: Duration) -> f64 {
    let block = vec![7; 256 << 10];
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < time {
        // One that nobody takes anything of any more has none.
        match tokio::time::timeout(time, stream.write(&block)).await {
            Ok(written) => sent += written.unwrap(),
            Err(_) => break,
        }
    }
    sent as f64 / begun.elapsed().as_secs_f64()
}

/// A connection to a program that has read much and stopped.
async fn quit(field: &Field) -> TcpStream {
    let mut stream = soon("an answer", open(&field.client, field.target(), order::QUIT)).await.unwrap();
    let (mut read, mut write) = stream.split();
    let block = vec![7; 64 << 10];
    let mut answer = [0; MESSAGE];
    let send = async { while write.write_all(&block).await.is_ok() {} };
    let answered = async {
        tokio::select! {
            answered = read.read_exact(&mut answer) => drop(answered.unwrap()),
            () = send => panic!("the sender is cut off"),
        }
    };
    soon("much to be read", answered).await;
    stream
}

#[tokio::test]
async fn readers_that_stop_after_they_have_read_much_cost_little_and_stop_nobody() {
    if !may_run("readers_that_stop_after_they_have_read_much_cost_little_and_stop_nobody") {
        return;
    }
    let _alone = ALONE.lock().await;
    readers_that_quit(Field::new().await).await;
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn readers_that_stop_after_they_have_read_much_slow_nobody_down() {
    if !may_run("readers_that_stop_after_they_have_read_much_slow_nobody_down") {
        return;
    }
    let _alone = ALONE.lock().await;
    readers_that_quit(Field::measured().await).await;
}

async fn readers_that_quit(mut field: Field) {
    let (from, to) = &field.beside;
    let mut readers = [
        ("between the same pods", soon("an answer", open(&field.client, field.target(), order::TAKE)).await.unwrap()),
        ("between others", soon("an answer", open(from, to.app(to.v4), order::TAKE)).await.unwrap()),
    ];
    let mut before = Vec::new();
    for (_, reader) in &mut readers {
        // The second time, its window has grown.
        soon("bytes to be taken", reader.write_all(&vec![7; SEVERAL_WINDOWS])).await.unwrap();
        before.push(if field.size.measured { speed(reader, field.size.sample).await } else { 0.0 });
    }
    let mut senders = Senders::default();
    for _ in 0..QUITTERS {
        senders.add(quit(&field).await);
    }
    senders.stuck().await;
    for ((which, reader), before) in readers.iter_mut().zip(before) {
        soon(which, reader.write_all(&vec![7; SEVERAL_WINDOWS])).await.unwrap();
        if !field.size.measured {
            continue;
        }
        let mut seen = Vec::new();
        while !seen.iter().any(|now| *now >= AT_LEAST * before) {
            assert!(seen.len() < field.size.rounds, "a reader {which}: {seen:.0?} bytes a second, {before:.0} before");
            seen.push(speed(reader, field.size.sample).await);
        }
        println!("a reader {which}: {seen:.0?} bytes a second, {before:.0} before");
    }
    let cost = field.taken();
    println!("{QUITTERS} readers that have read much and stopped: {cost:?} bytes held");
    for (node, cost) in cost.into_iter().enumerate() {
        assert!(cost <= QUITTERS_COST, "node-{} holds {cost} bytes", node + 1);
    }
    drop((readers, field.programs.remove(0)));
    let ended = async { while senders.tasks.join_next().await.is_some() {} };
    soon("the senders to be told", ended).await;
    field.is_given_back().await;
}

/// What a sender's own kernel takes of what it says, bytes: with the usual some MiB, thousands of
/// senders would take all of the machine's memory.
const SENDERS_BUFFER: usize = 4 << 10;

/// What the kernel may take for a socket, bytes: it has 2 GiB for all of the machine's (`net.ipv4.tcp_mem`), and four sockets
/// for each connection.
const KERNELS_BUFFERS: &str = "4096 4096 4096";

/// Has the kernel take little for each of a pod's sockets.
fn small_buffers(pod: &Pod) {
    for setting in ["tcp_rmem", "tcp_wmem"] {
        let set = || std::fs::write(format!("/proc/sys/net/ipv4/{setting}"), KERNELS_BUFFERS);
        pod.namespace().run(set).unwrap().unwrap();
    }
}

/// A connection to a program that stops reading, and all that goes into it; none if it was refused.
async fn stopped(field: &Field) -> Option<TcpStream> {
    match soon("an answer", open(&field.client, field.target(), order::IGNORE)).await {
        Ok(stream) => {
            socket2::SockRef::from(&stream).set_send_buffer_size(SENDERS_BUFFER).unwrap();
            push(&stream);
            Some(stream)
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends as much as goes now.
fn push(stream: &TcpStream) {
    loop {
        match stream.try_write(&[7; SENDERS_BUFFER]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("a sender is cut off: {error}"),
        }
    }
}

/// Messages to a program that reads on, and their answers.
async fn echoed(reader: &mut TcpStream, messages: usize) {
    let (mut read, mut write) = reader.split();
    let block = vec![order::ECHO; messages * MESSAGE];
    let mut back = vec![0; block.len()];
    let (sent, received) = tokio::join!(write.write_all(&block), read.read_exact(&mut back));
    sent.unwrap();
    received.unwrap();
    assert_eq!(back, block);
}

#[tokio::test]
async fn thousands_of_connections_to_a_stopped_reader_cost_little() {
    if !may_run("thousands_of_connections_to_a_stopped_reader_cost_little") {
        return;
    }
    let _alone = ALONE.lock().await;
    thousands_to_a_stopped_reader(Field::new).await;
}

#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn thousands_of_connections_to_a_stopped_reader_slow_nobody_down() {
    if !may_run("thousands_of_connections_to_a_stopped_reader_slow_nobody_down") {
        return;
    }
    let _alone = ALONE.lock().await;
    thousands_to_a_stopped_reader(Field::measured).await;
}

async fn thousands_to_a_stopped_reader<F: Future<Output = Field>>(field: impl FnOnce() -> F) {
    // Of this process, the proxies and the programs, which inherit it. Where that may not be raised, the proxies
    // refuse what is beyond a pod's share.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let raised = setrlimit(Resource::RLIMIT_NOFILE, soft, hard.max(90_000)).is_ok();
    let mut field = field().await;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    small_buffers(&field.client);
    small_buffers(&field.server);
    let neighbour = field.neighbour();
    let base = neighbour.base(&field.size).await;
    // Others between the same pods: one that is there already, and new ones.
    let mut reader = soon("an answer", open(&field.client, field.target(), order::ECHO)).await.unwrap();
    let (mut held, mut refused, mut slowest) = (Vec::with_capacity(field.size.stopped), 0, Duration::ZERO);
    while held.len() + refused < field.size.stopped {
        let next = || stopped(&field);
        for stream in <[_; LANES]>::from(tokio::join!(next(), next(), next(), next())) {
            refused += usize::from(stream.is_none());
            held.extend(stream);
        }
        if (held.len() + refused) % 200 == 0 {
            held.iter().for_each(push);
            let begun = Instant::now();
            soon("an answer beside stopped readers", echoed(&mut reader, 1)).await;
            if refused == 0 {
                soon("an answer beside stopped readers", short(&field.client, field.target())).await.unwrap();
            }
            slowest = slowest.max(begun.elapsed());
        }
        if (held.len() + refused) % 2500 == 0 {
            println!("{} stopped readers: {:?} bytes held", held.len(), field.taken());
        }
    }
    let most = if raised { 0 } else { field.size.stopped.saturating_sub(hard as usize / 2) };
    assert!(refused <= most, "{refused} connections were refused, {} not", held.len());
    soon("bulk beside stopped readers", echoed(&mut reader, 1 << 15)).await;
    held.iter().for_each(push);
    let cost = field.taken();
    println!("{} stopped, {refused} refused: {cost:?} bytes held; an answer took {slowest:.1?} at most", held.len());
    for (node, cost) in cost.into_iter().enumerate() {
        assert!(cost <= field.size.stopped_cost, "node-{} holds {cost} bytes", node + 1);
    }
    neighbour.is_undisturbed(base, "thousands of stopped readers", &field.size).await;
    // What so many streams held lay in more pages, in some of which something lives on.
    field.size.left *= 2;
    // With the program, whose kernel still has what nobody read.
    drop((neighbour, held, reader, field.programs.remove(0)));
    field.is_given_back().await;
}
