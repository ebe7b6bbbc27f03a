//! Which requests the hypervisor did not delay.
//!
//! A hypervisor takes a core away for milliseconds at a time, a thousand times as long as a request waits in a proxy,
//! and as often as its other guests need it. Such requests then make up the tail of every measurement. So the time is
//! cut into slices, and requests in slices without taken time are summed up separately. They are chosen by the time at
//! which they were due, never by their latency.

use std::time::{Duration, Instant};

use super::histogram::LatencyRecorder;
use super::spec::Undisturbed;
use crate::measure::MachineCpu;

/// Ten times the kernel's unit of stolen time, which is 10 ms. Less than a unit shows in a later slice.
pub(super) const SLICE: Duration = Duration::from_millis(100);
/// Slices left out after one with taken time: queues are worked off, and the check may have been late.
const AFTER: usize = 2;
/// Slices left out before one with taken time: their last requests were still in progress.
const BEFORE: usize = 1;

/// The slices since a moment, and whether time was taken in each.
pub(super) struct Slices {
    begin: Instant,
    disturbed: Vec<bool>,
    /// Seconds taken from the start of the machine to the last check. `None` if the kernel does not report them.
    taken: Option<f64>,
}

impl Slices {
    /// Starts now, which is `begin`.
    pub(super) fn new(begin: Instant) -> Self {
        Self { begin, disturbed: Vec::new(), taken: taken() }
    }

    /// Checks how much time was taken since the last check.
    pub(super) fn look(&mut self) {
        self.note(Instant::now(), taken());
    }

    fn note(&mut self, now: Instant, taken: Option<f64>) {
        let passed = now.saturating_duration_since(self.begin).as_nanos() / SLICE.as_nanos();
        let passed = usize::try_from(passed).unwrap_or(usize::MAX);
        let any = taken.is_none() || taken != self.taken;
        self.taken = taken;
        if any && let Some(last) = self.disturbed.last_mut() {
            // The last check may have come before the end of its slice.
            *last = true;
        }
        self.disturbed.resize(passed.max(self.disturbed.len()), any);
    }

    /// Whether no time was taken in the slice and its neighbours. Unchecked slices are not calm.
    fn is_calm(&self, slice: usize) -> bool {
        slice >= AFTER
            && self
                .disturbed
                .get(slice - AFTER..=slice + BEFORE)
                .is_some_and(|about| about.iter().all(|disturbed| !disturbed))
    }

    /// Sums up the requests that were due in calm slices, from their due times and latencies. `None` if the machine is
    /// not known to be a guest.
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

    /// A slice with a check at the end of each; `taken` are the seconds taken until then.
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
    fn a_slice_is_calm_if_its_neighbours_are() {
        assert_eq!(calm(&slices(&[1.0; 8])), [2, 3, 4, 5, 6]);
        // Time was taken in slice 6, which the check at its end shows. Some of it may have been in slice 5.
        let some = slices(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1]);
        assert_eq!(calm(&some), [2, 3, 9, 10]);
        assert!(calm(&slices(&[1.0, 1.0])).is_empty());
    }

    #[test]
    fn a_late_check_covers_all_slices_it_missed() {
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
        // The second request lasts into the taken time, and counts. The third is short, and does not.
        let sum = slices.sum_up(&[at(2.5, 1), at(4.9, 900), at(7.5, 1), at(0.0, 1), at(99.0, 1)]).unwrap();
        assert!((sum.seconds - 0.3).abs() < 1e-9, "{sum:?}");
        assert_eq!(sum.latency.count, 2);
        assert!((sum.latency.max_us - 900_000.0).abs() < 1000.0, "{sum:?}");
    }

    #[test]
    fn a_machine_that_is_no_guest_has_no_undisturbed_sum() {
        assert_eq!(slices(&[0.0; 8]).sum_up(&[]), None);
    }
}
