//! Counting what a load lost.

use leno_e2e::Answer;

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
