//! Which pods a Job should have next: a pure function of what it wants and what there is.

use std::time::Duration;

use crate::cluster::deployments::letters;
use crate::stable_hash::fnv;

/// What a Job asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// How many pods have to end well.
    pub completions: usize,
    /// How many run at a time.
    pub parallelism: usize,
    /// How many failures are tried again.
    pub backoff_limit: u32,
}

/// How far a pod of a Job came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It may still end well.
    Active,
    Succeeded,
    Failed,
    /// It is about to go.
    Leaving,
}

/// What to do now. More may follow when pods end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// How many pods to make.
    pub create: usize,
    /// Which of the pods have failed and make room for another try, by place in the list.
    pub replace: Vec<usize>,
}

/// One step. `failures` counts those that made room before. The pod whose failure is one too many stays, to be looked at,
/// and no further one is made.
pub(crate) fn reconcile(wanted: Wanted, pods: &[Progress], failures: u32) -> Step {
    let count = |progress| pods.iter().filter(|pod| **pod == progress).count();
    let failed = pods.iter().enumerate().filter(|(_, pod)| **pod == Progress::Failed).map(|(index, _)| index);
    let left = usize::try_from(wanted.backoff_limit.saturating_sub(failures)).unwrap_or(usize::MAX);
    let replace: Vec<usize> = failed.clone().take(left).collect();
    if failed.count() > replace.len() {
        return Step { create: 0, replace };
    }
    let missing = wanted.completions.saturating_sub(count(Progress::Succeeded) + count(Progress::Active));
    let room = wanted.parallelism.saturating_sub(count(Progress::Active) + count(Progress::Leaving));
    // What failed is replaced once it is gone.
    let create = if replace.is_empty() { missing.min(room) } else { 0 };
    Step { create, replace }
}

/// Names for further pods of a Job: the same for the same template, number of failures and pod in every run.
pub(crate) fn unused_names(job: &str, template: &str, failures: u32, taken: &[&str]) -> impl Iterator<Item = String> {
    let name = move |number: u64| {
        let hash = fnv(format!("{job}/{template}/{failures}/{number}").as_bytes());
        format!("{job}-{}", letters(hash, 5))
    };
    (0_u64..).map(name).filter(|name| !taken.contains(&name.as_str()))
}

/// How long a try waits after so many failures: the kubelet's ten seconds, doubled each time, is more than a person at a
/// laptop waits for, so it begins with one.
pub(crate) fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => Duration::from_secs(1 << (n - 1).min(5)),
    }
}

#[cfg(test)]
mod tests {
    use super::Progress::{Active, Failed, Leaving, Succeeded};
    use super::*;

    const ONE: Wanted = Wanted { completions: 1, parallelism: 1, backoff_limit: 1 };
    const FIVE: Wanted = Wanted { completions: 5, parallelism: 2, backoff_limit: 6 };

    fn step(create: usize, replace: &[usize]) -> Step {
        Step { create, replace: replace.to_vec() }
    }

    #[test]
    fn as_many_run_as_may_until_enough_have_ended_well() {
        assert_eq!(reconcile(FIVE, &[], 0), step(2, &[]));
        assert_eq!(reconcile(FIVE, &[Active, Active], 0), step(0, &[]));
        assert_eq!(reconcile(FIVE, &[Succeeded, Active], 0), step(1, &[]));
        assert_eq!(reconcile(FIVE, &[Succeeded, Succeeded, Succeeded, Succeeded, Active], 0), step(0, &[]));
        assert_eq!(reconcile(ONE, &[Succeeded], 0), step(0, &[]));
    }

    #[test]
    fn a_failure_is_tried_again_until_the_limit() {
        assert_eq!(reconcile(ONE, &[Failed], 0), step(0, &[0]));
        assert_eq!(reconcile(ONE, &[Leaving], 1), step(0, &[]), "the next one waits until it is gone");
        assert_eq!(reconcile(ONE, &[], 1), step(1, &[]));
        assert_eq!(reconcile(ONE, &[Failed], 1), step(0, &[]), "one too many: it stays and is the last");
        assert_eq!(reconcile(FIVE, &[Succeeded, Failed, Active], 5), step(0, &[1]));
    }

    #[test]
    fn names_are_those_of_pods() {
        let all: Vec<String> = unused_names("load", "abc", 0, &[]).take(3).collect();
        assert!(all.iter().all(|name| name.len() == "load-xxxxx".len() && name.starts_with("load-")), "{all:?}");
        let taken = [all[0].as_str()];
        assert_eq!(unused_names("load", "abc", 0, &taken).take(2).collect::<Vec<_>>(), &all[1..]);
        assert_ne!(unused_names("load", "abc", 1, &[]).next(), Some(all[0].clone()), "another try is another pod");
    }

    #[test]
    fn tries_come_more_and_more_seldom() {
        let seconds: Vec<u64> = (0..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 32, 32]);
    }
}
