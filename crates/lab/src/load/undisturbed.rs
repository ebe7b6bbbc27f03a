//! Which requests the hypervisor had no part in.
//!
//! A hypervisor takes a core away for milliseconds at a time, a thousand times as long as a request waits in a proxy,
//! and as often as its other guests need it. Those requests then make the tail of whatever is being measured. So the
//! time is cut into slices, and the slices in which nothing was taken are summed up separately. What is left out is
//! chosen by when requests were due, never by how long they took.

use std::time::{Duration, Instant};

use super::histogram::LatencyRecorder;
use super::spec::Undisturbed;
use crate::measure::MachineCpu;

/// Ten times the kernel's unit of stolen time (10 ms, after which what is left of it shows in the next slice).
pub(super) const SLICE: Duration = Duration::from_millis(100);
/// Slices left out after one in which time was taken: a queue is worked off, and the look may have been late.
const AFTER: usize = 2;
/// Slices left out before one: their last requests were still on their way.
const BEFORE: usize = 1;

/// Slices from a moment on, and in which of them time was taken.
pub(super) struct Slices {
    begin: Instant,
    disturbed: Vec<bool>,
    /// Seconds taken by the last look since the machine started; `None` where the kernel does not tell.
    taken: Option<f64>,
}

impl Slices {
    /// Slices from `begin` on, which is now.
    pub(super) fn new(begin: Instant) -> Self {
        Self { begin, disturbed: Vec::new(), taken: taken() }
    }

    /// Looks at what was taken since the last look.
    pub(super) fn look(&mut self) {
        self.note(Instant::now(), taken());
    }

    fn note(&mut self, now: Instant, taken: Option<f64>) {
        let passed = now.saturating_duration_since(self.begin).as_nanos() / SLICE.as_nanos();
        let passed = usize::try_from(passed).unwrap_or(usize::MAX);
        let any = taken.is_none() || taken != self.taken;
        self.taken = taken;
        if any && let Some(last) = self.disturbed.last_mut() {
            // The last look may have come before its slice was quite over.
            *last = true;
        }
        self.disturbed.resize(passed.max(self.disturbed.len()), any);
    }

    /// Whether no time was taken in the slice, nor about it. What was not looked at is not known to be so.
    fn is_calm(&self, slice: usize) -> bool {
        slice >= AFTER
            && self
                .disturbed
                .get(slice - AFTER..=slice + BEFORE)
                .is_some_and(|about| about.iter().all(|disturbed| !disturbed))
    }

    /// Sums up the requests that were due in calm slices: when each was due, and its latency. `None` where the machine is no
    /// guest, or does not know it.
    pub(super) fn sum_up(&self, requests: &[(Instant, Duration)]) -> Option<Box<Undisturbed>> {
        if self.taken.is_none_or(|seconds| seconds == 0.0) {
            return None;
        }
        let calm: Vec<bool> = (0..self.disturbed.len()).map(|slice| self.is_calm(slice)).collect();
        let mut latency = LatencyRecorder::new();
        for (due, late) in requests {
            let slice = due.saturating_duration_since(self.begin).as_nanos() / SLICE.as_nanos();
            if usize::try_from(slice).is_ok_and(|slice| calm.get(slice) == Some(&true)) {
                latency.record(*late);
            }
        }
        let seconds = calm.iter().filter(|calm| **calm).count() as f64 * SLICE.as_secs_f64();
        Some(Box::new(Undisturbed { seconds, latency: latency.finish() }))
    }
}

fn taken() -> Option<f64> {
    MachineCpu::now().ok().map(|cpu| cpu.steal_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices, each with a look at its end; `taken` are the seconds taken by then.
    fn slices(taken: &[f64]) -> Slices {
        let begin = Instant::now();
        let mut slices = Slices { begin, disturbed: Vec::new(), taken: taken.first().copied() };
        for (end, taken) in (1..).zip(taken) {
            slices.note(begin + SLICE * end, Some(*taken));
        }
        slices
    }

    fn calm(slices: &Slices) -> Vec<usize> {
        (0..slices.disturbed.len() + 3).filter(|slice| slices.is_calm(*slice)).collect()
    }

    #[test]
    fn a_slice_is_calm_when_those_about_it_are() {
        assert_eq!(calm(&slices(&[1.0; 8])), [2, 3, 4, 5, 6]);
        // Taken in slice 6, which the look at its end shows; slice 5 may have had some of it.
        let some = slices(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1]);
        assert_eq!(calm(&some), [2, 3, 9, 10]);
        assert!(calm(&slices(&[1.0, 1.0])).is_empty());
    }

    #[test]
    fn a_look_that_comes_late_speaks_for_all_it_missed() {
        let mut slices = slices(&[1.0; 8]);
        let begin = slices.begin;
        slices.note(begin + SLICE * 11, Some(1.5));
        slices.note(begin + SLICE * 16, Some(1.5));
        assert_eq!(calm(&slices), [2, 3, 4, 5, 13, 14]);
        slices.note(begin + SLICE * 20, None);
        assert_eq!(calm(&slices), [2, 3, 4, 5, 13], "what is not known is not calm");
    }

    #[test]
    fn requests_count_by_when_they_were_due() {
        let slices = slices(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5]);
        assert_eq!(calm(&slices), [2, 3, 4]);
        let at = |tenths: f64, late: u64| (slices.begin + SLICE.mul_f64(tenths), Duration::from_millis(late));
        // The second one lasts into what was taken, and counts; the third is quick, and does not.
        let sum = slices.sum_up(&[at(2.5, 1), at(4.9, 900), at(7.5, 1), at(0.0, 1), at(99.0, 1)]).unwrap();
        assert!((sum.seconds - 0.3).abs() < 1e-9, "{sum:?}");
        assert_eq!(sum.latency.count, 2);
        assert!((sum.latency.max_us - 900_000.0).abs() < 1000.0, "{sum:?}");
    }

    #[test]
    fn a_machine_that_is_no_guest_has_no_such_sum() {
        assert_eq!(slices(&[0.0; 8]).sum_up(&[]), None);
    }
}
