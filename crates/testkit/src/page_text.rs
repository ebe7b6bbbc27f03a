//! The text of a page: the sessions in it, and whether what a command prints is what a session shows.

/// The line before a block that is about a cluster. The others are about a stage.
const ON_A_CLUSTER: &str = "<!-- on a cluster -->";

/// Where a session takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `leno up` plays the manifests.
    Stage,
    /// A Kubernetes cluster does.
    Cluster,
}

/// One command of a session and what the page says it prints.
#[derive(Debug, PartialEq)]
pub struct Step {
    /// What is typed.
    pub command: String,
    /// Its lines.
    pub prints: Vec<String>,
}

/// The steps of all `console` blocks of a page that take place here, in order.
pub fn steps(page: &str, place: Place) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut fenced) = (false, false);
    let mut before = "";
    for line in page.lines() {
        if line.starts_with("```") {
            let here = if before == ON_A_CLUSTER { Place::Cluster } else { Place::Stage };
            fenced = !fenced;
            inside = fenced && line == "```console" && here == place;
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), prints: Vec::new() });
        } else if inside && let Some(step) = steps.last_mut() {
            step.prints.push(line.to_owned());
        }
        if !line.is_empty() {
            before = line;
        }
    }
    steps
}

/// Whether `printed` is what the page shows.
pub fn matches(shown: &[String], printed: &str) -> bool {
    let shown: Vec<_> = shown.iter().map(|line| plain(line)).filter(|line| !line.is_empty()).collect();
    let printed: Vec<_> = printed.lines().map(plain).filter(|line| !line.is_empty()).collect();
    lines_match(&shown, &printed)
}

fn lines_match(shown: &[String], printed: &[String]) -> bool {
    match shown {
        [] => printed.is_empty(),
        [any, rest @ ..] if any == "..." => (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..])),
        [line, rest @ ..] => match printed {
            [first, others @ ..] => line_matches(line, first) && lines_match(rest, others),
            [] => false,
        },
    }
}

/// Whether the pieces of `shown` between `…` occur in `printed` in their order, the first at its start and the last at
/// its end.
fn line_matches(shown: &str, printed: &str) -> bool {
    let Some((start, rest)) = shown.split_once('…') else { return shown == printed };
    let Some(mut left) = printed.strip_prefix(start) else { return false };
    let mut pieces = rest.split('…').peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return left.ends_with(piece);
        }
        let Some(at) = left.find(piece) else { return false };
        left = &left[at + piece.len()..];
    }
    true
}

/// A line without the parts that differ from run to run.
fn plain(line: &str) -> String {
    line.split_whitespace().map(plain_word).collect::<Vec<_>>().join(" ")
}

fn plain_word(word: &str) -> String {
    if !word.is_empty() && word.split(',').all(|part| part.parse::<std::net::IpAddr>().is_ok()) {
        return "ADDRESSES".to_owned();
    }
    let mut parts: Vec<&str> = word.split('-').collect();
    // A pod's name: its Deployment's name, then nine or ten letters for the template and five for the pod.
    let made = |part: &str| part.bytes().all(|letter| b"bcdfghjklmnpqrstvwxz2456789".contains(&letter));
    let at = (1..parts.len().saturating_sub(1)).find(|at| {
        let pod = parts[at + 1].split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default();
        (9..=10).contains(&parts[*at].len()) && made(parts[*at]) && pod.len() == 5 && made(pod)
    });
    let mut end = "";
    if let Some(at) = at {
        end = &parts[at + 1][5..];
        parts.truncate(at);
        parts.push("POD");
    }
    let mut text = String::new();
    for letter in parts.join("-").chars().chain(end.chars()) {
        let digit = letter.is_ascii_digit();
        if !(digit && text.ends_with('0')) {
            text.push(if digit { '0' } else { letter });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let page = "text\n```console\n$ leno ps\none\n\n$ sudo leno down\n```\n```sh\n$ not this\n```\n\
                    <!-- on a cluster -->\n```console\n$ leno status\n```\n";
        let step = |command: &str, prints: &[&str]| Step {
            command: command.to_owned(),
            prints: prints.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(steps(page, Place::Stage), [step("leno ps", &["one", ""]), step("sudo leno down", &[])]);
        assert_eq!(steps(page, Place::Cluster), [step("leno status", &[])]);
    }

    #[test]
    fn what_differs_from_run_to_run_is_no_difference() {
        let shown = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let pod = shown(&["emojivoto   web-lhv6tqx9s-dzr49   yes   10.244.1.11,fd00:10:244:1::b"]);
        assert!(matches(&pod, "emojivoto  web-zzzz2222b-7xq4t yes 10.244.12.9,fd00:10:244:2::c\n"));
        assert!(!matches(&pod, "emojivoto  web-zzzz2222b-7xq4t no 10.244.12.9,fd00:10:244:2::c\n"));
        assert!(!matches(&pod, "emojivoto  api-zzzz2222b-7xq4t yes 10.244.12.9\n"));
        let any = shown(&["first", "...", "at …: 12 ms"]);
        assert!(matches(&any, "first\nat here: 7 ms\n") && matches(&any, "first\n\nb\nc\nat a: b: 130 ms\n"));
        assert!(!matches(&any, "first\nat here: 7 s\n") && !matches(&any, "at here: 7 ms\n"));
        assert!(matches(&[], "") && !matches(&[], "words\n"));
    }
}
