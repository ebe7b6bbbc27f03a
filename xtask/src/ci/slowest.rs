//! The tests and chapters that took longest, so that growth is seen before it hurts.

use std::time::Duration;

/// How many a summary names.
const NAMED_MAX: usize = 10;

/// One test or chapter that said how long it took.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    /// The step in whose log it stands.
    pub(super) step: String,
    pub(super) name: String,
    pub(super) took: Duration,
}

/// All that a step's log tells. Three forms: Rust's own harness with `--report-time`, the harness of tests with a `main` of
/// their own, and the chapters of the cluster's tests.
pub(super) fn timed(step: &str, log: &str) -> Vec<Timed> {
    log.lines()
        .filter_map(|line| {
            let (name, seconds) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.split_once(" ... "))
                .and_then(|(name, verdict)| Some((name, bracketed(verdict)?)))
                .or_else(|| chapter(line))?;
            let took = Duration::try_from_secs_f64(seconds).ok()?;
            Some(Timed { step: step.to_owned(), name: name.to_owned(), took })
        })
        .collect()
}

/// The seconds of `ok <1.234s>` or of `ok (1.2 s)`.
fn bracketed(verdict: &str) -> Option<f64> {
    let seconds = match verdict.rsplit_once('<') {
        Some((_, after)) => after.trim_end().strip_suffix("s>")?,
        None => verdict.rsplit_once('(')?.1.trim_end().strip_suffix(" s)")?,
    };
    seconds.parse().ok()
}

/// `chapter: NAME: ok after 1.2 s`.
fn chapter(line: &str) -> Option<(&str, f64)> {
    let (name, after) = line.strip_prefix("chapter: ")?.rsplit_once(" after ")?;
    let (name, _verdict) = name.rsplit_once(": ")?;
    Some((name, after.trim_end().strip_suffix(" s")?.parse().ok()?))
}

/// The ten that took longest, as lines of the summary.
pub(super) fn slowest(mut all: Vec<Timed>) -> Vec<String> {
    all.sort_by(|one, other| other.took.cmp(&one.took).then_with(|| one.name.cmp(&other.name)));
    all.truncate(NAMED_MAX);
    all.into_iter().map(|timed| format!("{:7.1} s  {}  {}", timed.took.as_secs_f64(), timed.step, timed.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_understood() {
        let log = "running 3 tests\n\
                   test a::b ... ok <0.500s>\n\
                   test c ... FAILED <12.25s>\n\
                   test own ... ok (3.5 s)\n\
                   test old ... ok\n\
                   test left ... ignored, measured: .ci/run measured runs it on a quiet machine\n\
                   chapter: a node is rebooted: ok after 40.1 s\n\
                   chapter: policies: FAILED after 1.5 s\n\
                   test result: ok. 3 passed; 0 failed\n";
        let seen: Vec<_> = timed("e2e", log).into_iter().map(|one| (one.name, one.took.as_millis())).collect();
        let wanted =
            [("a::b", 500), ("c", 12_250), ("own", 3_500), ("a node is rebooted", 40_100), ("policies", 1_500)];
        assert_eq!(seen, wanted.map(|(name, took)| (name.to_owned(), took)));
    }

    #[test]
    fn ten_are_named_the_slowest_first() {
        let one = |number: u64| Timed {
            step: "unit".to_owned(),
            name: format!("test {number}"),
            took: Duration::from_millis(number * 100),
        };
        let lines = slowest((0..30).map(one).collect());
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[0], "    2.9 s  unit  test 29");
    }
}
