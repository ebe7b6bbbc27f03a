//! "Did you mean": the known word nearest to an unknown one.

/// The candidate nearest to `word`, if it is near enough to be a typing mistake: equal except for case, or at most one
/// edit per three letters. An edit inserts, deletes or replaces a letter, or swaps two neighbours.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let allowed = word.chars().count().div_ceil(3).min(3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let exchange = last[j] + usize::from(a[i] != b[j]);
            let mut best = exchange.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["containers", "nodeName", "replicas"];
        for (typed, meant) in [
            ("contaners", Some("containers")),
            ("Containers", Some("containers")),
            ("nodename", Some("nodeName")),
            ("repilcas", Some("replicas")),
            ("sidecars", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(typed, known), meant, "{typed}");
        }
    }

    #[test]
    fn a_swap_is_one_edit() {
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
