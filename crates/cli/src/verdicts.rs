//! The verdicts of an explanation in colour.

use crate::output::Paint;

/// Explanations with each verdict painted: the headline's, that on arrival, a refusal, and what is not in force.
pub(crate) fn painted(text: &str, paint: Paint) -> String {
    text.lines().map(|line| painted_line(line, paint)).collect::<Vec<_>>().join("\n")
}

fn painted_line(line: &str, paint: Paint) -> String {
    const ARRIVAL: &str = "  on arrival: ";
    if let Some(rest) = line.strip_prefix(ARRIVAL) {
        let verdict = rest.split(':').next().unwrap_or(rest);
        return format!("{ARRIVAL}{}{}", verdict_painted(verdict, paint), &rest[verdict.len()..]);
    }
    for start in ["  refused:", "not in force"] {
        if let Some(rest) = line.strip_prefix(start) {
            return format!("{}{rest}", paint.bad(start));
        }
    }
    // The headline: SOURCE to DESTINATION: VERDICT.
    match line.rsplit_once(": ") {
        Some((parties, verdict)) if !line.starts_with(' ') && parties.contains(" to ") => {
            format!("{parties}: {}", verdict_painted(verdict, paint))
        }
        _ => line.to_owned(),
    }
}

fn verdict_painted(verdict: &str, paint: Paint) -> String {
    let begins = |words: &[&str]| words.iter().any(|word| verdict.starts_with(word));
    if begins(&["allowed", "answered"]) {
        paint.good(verdict)
    } else if begins(&["denied", "not allowed", "refused"]) {
        paint.bad(verdict)
    } else {
        paint.bold(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a/web on node-1 (spiffe://c/ns/a/sa/web) to 10.96.0.1:80: denied\n  10.96.0.1 is service a/db\n\
                        endpoint 10.0.0.1:80 at a/db-1\n  path: HBONE (mTLS) to 10.0.0.1:15008\n  on arrival: not allowed: \
                        nobody is\n    ALLOW a/x: does not match\nnot in force for a/db-1: NetworkPolicy a/y: NOT restricted";

    #[test]
    fn verdicts_have_colours_and_nothing_else_has() {
        let red = |text: &str| format!("\x1b[31;1m{text}\x1b[0m");
        let wanted = TEXT
            .replace(": denied", &format!(": {}", red("denied")))
            .replace("not allowed", &red("not allowed"))
            .replace("not in force", &red("not in force"));
        assert_eq!(painted(TEXT, Paint::always()), wanted);
        let udp = painted("a/web to 1.2.3.4:53/udp: passes by, unencrypted; no policy is asked", Paint::always());
        assert!(udp.ends_with(": \x1b[1mpasses by, unencrypted; no policy is asked\x1b[0m"), "{udp}");
        assert_eq!(painted("a/b to 1.2.3.4:5: allowed", Paint::always()), "a/b to 1.2.3.4:5: \x1b[32mallowed\x1b[0m");
    }

    #[test]
    fn in_a_pipe_there_are_none() {
        // A test's standard output is no terminal.
        assert_eq!(painted(TEXT, Paint::never()), TEXT);
    }
}
