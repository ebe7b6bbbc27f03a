//! What all engines of requests have in common: a worker per thread, and events at the beginning and the end.

use std::time::{Duration, Instant};

use super::pace::Schedule;
use super::spec::{Event, HttpLoad, HttpOutcome, Pace};
use super::tally::Tally;
use super::undisturbed::{SLICE, Slices};
use crate::Error;

/// Checks what every engine needs.
///
/// # Errors
/// [`Error::Usage`].
pub(super) fn check(load: &HttpLoad) -> Result<(), Error> {
    if let Pace::Open { per_second } = load.pace
        && !(per_second > 0.0 && per_second.is_finite())
    {
        return Err(Error::Usage(format!("a rate of {per_second} requests per second is none")));
    }
    if load.connections == 0 || load.streams == 0 {
        return Err(Error::Usage("a load needs at least one connection, and one request at a time on it".to_owned()));
    }
    Ok(())
}

/// Runs each worker on a thread of its own and reports to `events` when the measured time begins and ends.
///
/// # Errors
/// That of a worker.
pub(super) fn conduct<W>(
    schedule: &Schedule,
    duration: Duration,
    workers: Vec<W>,
    events: &mut dyn FnMut(Event),
) -> Result<HttpOutcome, Error>
where
    W: FnOnce() -> Result<Tally, Error> + Send,
{
    let (tallies, slices): (Vec<Result<Tally, Error>>, Slices) = std::thread::scope(|scope| {
        let running: Vec<_> = workers.into_iter().map(|worker| scope.spawn(worker)).collect();
        sleep_until(schedule.begin);
        events(Event::Started);
        let mut slices = Slices::new(schedule.begin);
        let mut look = schedule.begin;
        while schedule.is_open() && look + SLICE <= schedule.end {
            look += SLICE;
            sleep_until(look);
            slices.look();
        }
        sleep_until(schedule.end);
        events(Event::Ended);
        let tallies = running
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (tallies, slices)
    });
    let mut total = Tally::default();
    for tally in tallies {
        total.add(tally?);
    }
    Ok(total.finish(duration, &slices))
}

fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}
