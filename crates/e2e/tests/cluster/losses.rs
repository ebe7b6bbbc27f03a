//! Counting what a load lost.

use std::time::Duration;

use leno_e2e::Answer;

/// How long a node's kernel lets connections wait for the next proxy.
const HELD: Duration = Duration::from_secs(10);

/// What may be lost of so many loads, each of which asks one question after the other, when a proxy is killed: what it had in its
/// hand, one of each load. Those that come meanwhile wait, but a proxy that is away for longer than the kernel lets them wait costs
/// one more each time.
pub(crate) fn most(loads: usize, away: Duration) -> usize {
    loads * (1 + usize::try_from(away.as_secs() / HELD.as_secs()).unwrap())
}

/// Prints how many failed, and returns why each did.
pub(crate) fn count(when: &str, answers: &[Answer]) -> Vec<String> {
    let failed: Vec<_> = answers.iter().filter_map(|answer| answer.outcome.clone().err()).collect();
    eprintln!("{when}: {} of {} requests failed", failed.len(), answers.len());
    failed
}

pub(crate) fn assert_none(when: &str, answers: &[Answer]) {
    let failed = count(when, answers);
    assert!(failed.is_empty(), "{when}, {} of {} requests failed: {failed:#?}", failed.len(), answers.len());
}
