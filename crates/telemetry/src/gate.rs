//! Limits log lines to one a second, so that a flood of events does not become a flood of lines.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// Lets one line a second through.
#[derive(Debug, Default)]
pub struct Gate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    silent: u64,
}

impl Gate {
    /// A gate that nothing has passed yet.
    pub const fn new() -> Self {
        Self(Mutex::new(State { last: None, silent: 0 }))
    }

    /// Whether to write a line now. If so, returns how many lines were suppressed since the last one.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            state.silent += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_all() {
        let begun = Instant::now();
        let gate = Gate::default();
        let told: Vec<u64> =
            (0..100).filter_map(|number| gate.pass_at(begun + Duration::from_millis(50) * number)).collect();
        assert_eq!(told, [0, 19, 19, 19, 19]);
    }
}
