//! What a log says of a failure, for a reader who has nothing but the end of a run's output.

/// Lines shown of the causes that a log names.
const CAUSE_LINES_MAX: usize = 60;
/// Lines that follow the first one of a cause.
const FOLLOWING_LINES: usize = 4;
/// Lines shown of a log that names no cause.
const LAST_LINES: usize = 15;
/// A longer line is cut: some hold a whole configuration.
const LINE_CHARACTERS_MAX: usize = 400;

/// The causes in the tests' and the compiler's words, or else the last lines.
pub(super) fn causes(log: &str) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut following = 0;

    for line in log.lines() {
        if begins_a_cause(line) {
            following = FOLLOWING_LINES + 1;
        }
        if following > 0 {
            shown.push(line);
            following -= 1;
        }
    }

    let most = if shown.is_empty() {
        shown = log.lines().collect();
        LAST_LINES
    } else {
        CAUSE_LINES_MAX
    };
    let last = shown[shown.len().saturating_sub(most)..].iter();
    last.map(|line| line.chars().take(LINE_CHARACTERS_MAX).collect()).collect::<Vec<String>>().join("\n")
}

fn begins_a_cause(line: &str) -> bool {
    line.contains("panicked at")
        || (line.starts_with("chapter: ") && line.contains(" FAILED"))
        || line.starts_with("error:")
        || line.starts_with("error[")
        || line.starts_with("left behind")
        || line.starts_with("NOT ALLOWED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_shown_with_what_follows_it() {
        let log = "test a ... ok\nthread 'b' panicked at x.rs:1:\nleft: 1\nright: 2\n3\n4\n5\n6\n";
        assert_eq!(causes(log), "thread 'b' panicked at x.rs:1:\nleft: 1\nright: 2\n3\n4");
    }

    #[test]
    fn a_log_without_a_cause_shows_its_end() {
        let log: String = (0..40).map(|number| format!("line {number}\n")).collect();
        let shown = causes(&log);
        assert!(shown.starts_with("line 25\n") && shown.ends_with("line 39"), "{shown}");
        assert_eq!(causes(""), "");
    }

    #[test]
    fn neither_many_causes_nor_long_lines_fill_the_summary() {
        let log: String = (0..100).map(|number| format!("error[E{number}]: {}\n", "é".repeat(500))).collect();
        let shown = causes(&log);
        assert_eq!(shown.lines().count(), CAUSE_LINES_MAX);
        assert!(shown.lines().all(|line| line.chars().count() == LINE_CHARACTERS_MAX));
        assert!(shown.lines().last().is_some_and(|line| line.starts_with("error[E99]")));
    }
}
