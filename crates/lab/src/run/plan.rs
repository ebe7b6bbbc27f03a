//! The estimated duration of a run.

use std::time::Instant;

use super::step::{give_back_limit, warmup_seconds};
use crate::options::RunOptions;
use crate::scenario::Step;

/// Seconds for a fresh stage, the check of encryption and the end of both, as measured on two cores. Experience
/// corrects it.
const TURN: f64 = 5.0;
/// Time for starting and ending a load, seconds.
const STEP: f64 = 0.5;
/// Idle connections that are opened, and checked again, per second.
const OPENED: f64 = 2_000.0;
/// Limits of the correction.
const CORRECTION: (f64, f64) = (0.5, 3.0);

/// Work in expected seconds.
pub(crate) struct Plan {
    begun: Instant,
    all: f64,
    done: f64,
}

impl Plan {
    /// Starts the estimate of a run that begins now.
    pub(crate) fn new(options: &RunOptions, steps: &[&Step]) -> Self {
        let turn = |subject: &crate::subject::Subject| {
            let steps = steps.iter().filter(|step| subject.covers(step));
            TURN + steps.map(|step| expected(options, step)).sum::<f64>()
        };
        let round: f64 = options.subjects.iter().map(turn).sum();
        Self { begun: Instant::now(), all: round * options.rounds as f64, done: 0.0 }
    }

    /// A turn's stage is ready.
    pub(crate) fn turn_begun(&mut self) {
        self.done += TURN;
    }

    /// A step is done.
    pub(crate) fn step_done(&mut self, options: &RunOptions, step: &Step) {
        self.done += expected(options, step);
    }

    /// Estimated seconds until the end.
    pub(crate) fn left(&self) -> f64 {
        left(self.all, self.done, self.begun.elapsed().as_secs_f64())
    }
}

fn left(all: f64, done: f64, elapsed: f64) -> f64 {
    // One more turn as expected is added to the sums, because the first seconds say little.
    let pace = (elapsed + TURN) / (done + TURN);
    (all - done).max(0.0) * pace.clamp(CORRECTION.0, CORRECTION.1)
}

fn expected(options: &RunOptions, step: &Step) -> f64 {
    let idle = step.idle_connections() as f64;
    let waiting = if idle > 0.0 {
        2.0 * idle / OPENED + give_back_limit(options.size).as_secs_f64()
    } else {
        warmup_seconds(options.seconds)
    };
    STEP + waiting + options.seconds
}

/// A duration, rounded as people say it.
pub(crate) fn in_words(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match minutes {
        _ if seconds < 90.0 => format!("about {:.0} s", (seconds / 5.0).ceil() * 5.0),
        0..100 => format!("about {minutes} min"),
        _ => format!("about {} h {:02} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_progress() {
        assert_eq!(left(600.0, 0.0, 0.0), 600.0);
        assert!((left(600.0, 300.0, 300.0) - 300.0).abs() < 1e-9, "as expected");
        assert!((left(600.0, 300.0, 600.0) - 600.0).abs() < 10.0, "half as fast");
        assert_eq!(left(600.0, 5.0, 3_000.0), 595.0 * 3.0, "one slow start doesn't make it hours");
        assert_eq!(left(600.0, 700.0, 700.0), 0.0);
    }

    #[test]
    fn times_are_said() {
        let said = [1.0, 58.0, 91.0, 3599.0, 7500.0].map(in_words);
        assert_eq!(said, ["about 5 s", "about 60 s", "about 2 min", "about 60 min", "about 2 h 05 min"]);
    }
}
