//! Bulk bytes: a blocking thread per stream, as `iperf3` has since version 3.16.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::spec::{Direction, Event, StreamLoad, StreamOutcome};
use crate::Error;

/// Bytes per system call.
const BLOCK: usize = 256 * 1024;
/// Bytes per system call of a slow reader. The pauses follow from it.
const SLOW_BLOCK: usize = 16 * 1024;
/// A stream notices the end within this time.
const LOOK: Duration = Duration::from_millis(200);
/// The limit for the target to accept, and to report at the end how much arrived.
const PATIENCE: Duration = Duration::from_secs(10);

/// State shared between a stream's thread and the measuring one.
#[derive(Default)]
struct Shared {
    bytes: Vec<AtomicU64>,
    over: AtomicBool,
}

/// Runs the load and reports to `events` when the measured time begins and ends.
///
/// # Errors
/// When a stream can't be opened.
pub(super) fn run(
    load: &StreamLoad,
    warmup: Duration,
    duration: Duration,
    events: &mut dyn FnMut(Event),
) -> Result<StreamOutcome, Error> {
    let mut streams = Vec::new();
    for number in 0..load.streams {
        let what = || format!("cannot open stream {number} to {}", load.target);
        let stream = TcpStream::connect_timeout(&load.target, PATIENCE).map_err(Error::io(what()))?;
        let prepare = || {
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_write_timeout(Some(LOOK))
        };
        prepare().map_err(Error::io(what()))?;
        streams.push(stream);
    }
    let shared = Arc::new(Shared { bytes: streams.iter().map(|_| AtomicU64::new(0)).collect(), over: false.into() });
    let read = || -> Vec<u64> { shared.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect() };
    let mut outcome = StreamOutcome::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = streams
            .into_iter()
            .enumerate()
            .map(|(number, stream)| {
                let shared = &*shared;
                scope.spawn(move || match load.direction {
                    Direction::Send => send(stream, number, shared),
                    Direction::Receive => receive(stream, number, shared, load.read_limit),
                })
            })
            .collect();
        std::thread::sleep(warmup);
        events(Event::Started);
        let (begun, before) = (Instant::now(), read());
        let mut last: u64 = before.iter().sum();
        for tenth in 1..=10_u32 {
            std::thread::sleep((begun + duration * tenth / 10).saturating_duration_since(Instant::now()));
            let now: u64 = read().iter().sum();
            outcome.tenths.push(now - last);
            last = now;
        }
        let (elapsed, after) = (begun.elapsed(), read());
        events(Event::Ended);
        shared.over.store(true, Ordering::Relaxed);
        outcome.seconds = elapsed.as_secs_f64();
        outcome.bytes = before.iter().zip(&after).map(|(before, after)| after - before).collect();
        let mut errors: BTreeMap<String, u64> = BTreeMap::new();
        for stream in running {
            if let Err(reason) = stream.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                *errors.entry(reason).or_default() += 1;
            }
        }
        outcome.errors = errors;
    });
    Ok(outcome)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn send(mut stream: TcpStream, number: usize, shared: &Shared) -> Result<(), String> {
    let block = vec![0x5a; BLOCK];
    let mut sent = 0;
    while !shared.over.load(Ordering::Relaxed) {
        match stream.write(&block) {
            Ok(count) => {
                sent += count as u64;
                shared.bytes[number].store(sent, Ordering::Relaxed);
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(format!("send: {}", error.kind())),
        }
    }
    // Only bytes that arrive count, so the sink reports how many it got.
    let mut arrived = [0; 8];
    stream
        .shutdown(Shutdown::Write)
        .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
        .and_then(|()| stream.read_exact(&mut arrived))
        .map_err(|error| format!("the sink did not confirm: {}", error.kind()))?;
    let arrived = u64::from_be_bytes(arrived);
    if arrived == sent { Ok(()) } else { Err("bytes were lost".to_owned()) }
}

fn receive(mut stream: TcpStream, number: usize, shared: &Shared, limit: Option<u64>) -> Result<(), String> {
    let mut block = vec![0; if limit.is_some() { SLOW_BLOCK } else { BLOCK }];
    let (begun, mut received) = (Instant::now(), 0_u64);
    while !shared.over.load(Ordering::Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => return Err("receive: closed".to_owned()),
            Ok(count) => {
                received += count as u64;
                shared.bytes[number].store(received, Ordering::Relaxed);
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(format!("receive: {}", error.kind())),
        }
        if let Some(limit) = limit {
            let pace = Duration::from_secs_f64(received as f64 / limit.max(1) as f64);
            // Long pauses are slept in pieces, so that the end is noticed.
            while !shared.over.load(Ordering::Relaxed) && begun.elapsed() < pace {
                std::thread::sleep((begun + pace).saturating_duration_since(Instant::now()).min(LOOK));
            }
        }
    }
    Ok(())
}
