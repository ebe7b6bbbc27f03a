//! The steady client.
//!
//! Open loop: requests are sent when due, however slow the answers are, and latency is counted from
//! when a request was due. A stall therefore shows in every request it delayed, not in one only.

use std::io::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep, timeout};

use super::report::Recorder;
use super::serve::stop_signal;
use super::target::{Connection, Target};
use super::upstream::MAX_AGE;

/// Requests under way at once. Beyond that a request fails instead of piling up: a server that
/// stands still would otherwise take this process's memory with it.
const OUTSTANDING: usize = 1000;

/// Settings of the client.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// http://HOST:PORT of web, or grpc://HOST:PORT of voting.
    #[arg(long, env = "TARGET", default_value = "http://web-svc.emojivoto:80")]
    target: Target,

    /// Requests per second.
    #[arg(long, env = "RATE", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,

    /// Requests on one connection before it is closed and another opened.
    #[arg(long, env = "REQUESTS_PER_CONNECTION", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_connection: u32,

    /// Milliseconds between two lines of results.
    #[arg(long, env = "INTERVAL_MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..))]
    interval_ms: u64,

    /// Text put into every request.
    #[arg(long, env = "CANARY", default_value = "")]
    canary: String,
}

/// A connection between two requests.
struct Idle {
    connection: Connection,
    opened: Instant,
    used: u32,
}

struct Client {
    target: Target,
    requests_per_connection: u32,
    canary: String,
    idle: Mutex<Vec<Idle>>,
    results: Mutex<Recorder>,
    outstanding: Arc<Semaphore>,
}

impl Client {
    fn idle(&self) -> Option<Idle> {
        let mut idle = self.idle.lock();
        while let Some(candidate) = idle.pop() {
            if candidate.opened.elapsed() < MAX_AGE && candidate.connection.is_open() {
                return Some(candidate);
            }
        }
        None
    }

    async fn request(&self, number: u64) -> Result<(), String> {
        let mut lane = match self.idle() {
            Some(idle) => idle,
            None => Idle { connection: Connection::open(&self.target).await?, opened: Instant::now(), used: 0 },
        };
        lane.connection.request(number, &self.canary).await?;
        lane.used += 1;
        if lane.used < self.requests_per_connection {
            self.idle.lock().push(lane);
        }
        Ok(())
    }

    fn send(self: &Arc<Self>, number: u64, due: Instant) {
        let Ok(permit) = self.outstanding.clone().try_acquire_owned() else {
            let error = format!("{OUTSTANDING} requests are under way already");
            self.results.lock().record(due.elapsed(), Err(error));
            return;
        };
        let client = self.clone();
        tokio::spawn(async move {
            let outcome = client.request(number).await;
            client.results.lock().record(due.elapsed(), outcome);
            drop(permit);
        });
    }

    fn print(&self) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let interval = self.results.lock().cut(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, &interval)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }
}

pub(super) async fn run(args: ClientArgs) -> anyhow::Result<()> {
    let client = Arc::new(Client {
        target: args.target,
        requests_per_connection: args.requests_per_connection,
        canary: args.canary,
        idle: Mutex::default(),
        results: Mutex::new(Recorder::new()),
        outstanding: Arc::new(Semaphore::new(OUTSTANDING)),
    });
    let mut stop = pin!(stop_signal());

    // Measuring starts with the first answer: what comes up in which order is not the client's topic.
    loop {
        tokio::select! {
            stopped = &mut stop => return stopped,
            first = client.request(0) => match first {
                Ok(()) => break,
                Err(error) => eprintln!("waiting for {}: {error}", client.target),
            },
        }
        sleep(Duration::from_millis(100)).await;
    }

    let mut due = interval(Duration::from_secs(1) / args.rate);
    // Every request is sent, if late: skipping those that were due in a stall would hide the stall.
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let report_every = Duration::from_millis(args.interval_ms);
    let mut report = interval_at(Instant::now() + report_every, report_every);
    let mut number = 0;
    loop {
        tokio::select! {
            stopped = &mut stop => {
                stopped?;
                break;
            }
            at = due.tick() => {
                number += 1;
                client.send(number, at);
            }
            _ = report.tick() => client.print()?,
        }
    }
    // A request under way when the program is told to stop is answered like any other.
    let all = u32::try_from(OUTSTANDING).unwrap_or(u32::MAX);
    timeout(Duration::from_secs(5), client.outstanding.acquire_many(all)).await.ok();
    client.print()
}
