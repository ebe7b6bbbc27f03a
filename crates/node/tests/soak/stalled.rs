//! Programs that stop reading, while what sends to them does not stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leno_testkit::network::may_run;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::process::{MESSAGE, WORKERS, order};
use crate::support::soon;
use crate::{ALONE, Field, open, short};

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
    let mut field = Field::new().await;
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
