//! Which pods a StatefulSet should have next: a pure function of what it wants and what there is.

use std::collections::BTreeMap;
use std::ops::Range;

/// A pod of a StatefulSet, as the decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub ordinal: u32,
    /// Hash of the template it was made from.
    pub template: String,
    pub ready: bool,
    /// Whether it is about to go; its name is taken until it has.
    pub leaving: bool,
}

/// What to do now. More may follow when pods become ready or are gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub create: Vec<u32>,
    pub delete: Vec<u32>,
}

/// One step towards a pod of `template` for each number in `wanted`. `ordered`: one after the other, each once those
/// before it are ready; they go in the opposite order. An update replaces one pod at a time, from the last to the first.
pub(crate) fn reconcile(wanted: &Range<u32>, template: &str, ordered: bool, members: &[Member]) -> Step {
    let by_ordinal: BTreeMap<u32, &Member> = members.iter().map(|member| (member.ordinal, member)).collect();
    let mut step = Step::default();
    let surplus = by_ordinal.values().rev().filter(|member| !wanted.contains(&member.ordinal));
    if ordered {
        // The last one goes first, and the next once it has gone.
        step.delete.extend(surplus.take(1).filter(|member| !member.leaving).map(|member| member.ordinal));
    } else {
        step.delete.extend(surplus.filter(|member| !member.leaving).map(|member| member.ordinal));
    }
    // One that was made from an older template and is not ready keeps nobody waiting: it may be the reason for the update.
    let broken = |member: &&&Member| !member.leaving && !member.ready && member.template != template;
    step.delete.extend(by_ordinal.range(wanted.clone()).map(|(_, member)| member).filter(broken).map(|m| m.ordinal));
    for ordinal in wanted.clone() {
        match by_ordinal.get(&ordinal) {
            None => step.create.push(ordinal),
            Some(member) if member.ready && !member.leaving => continue,
            Some(_) => {}
        }
        if ordered {
            return step;
        }
    }
    let all_ready =
        |range: Range<u32>| range.into_iter().all(|n| by_ordinal.get(&n).is_some_and(|m| m.ready && !m.leaving));
    if all_ready(wanted.clone()) {
        let old = by_ordinal.range(wanted.clone()).rev().find(|(_, member)| member.template != template);
        step.delete.extend(old.map(|(ordinal, _)| *ordinal));
    }
    step
}

/// The number at the end of a pod's name.
pub(crate) fn ordinal_of(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(ordinal: u32, template: &str, ready: bool, leaving: bool) -> Member {
        Member { ordinal, template: template.to_owned(), ready, leaving }
    }

    fn step(create: &[u32], delete: &[u32]) -> Step {
        Step { create: create.to_vec(), delete: delete.to_vec() }
    }

    #[test]
    fn each_waits_for_the_one_before_it() {
        let next = |members: &[Member]| reconcile(&(0..3), "t", true, members);
        assert_eq!(next(&[]), step(&[0], &[]));
        assert_eq!(next(&[member(0, "t", false, false)]), step(&[], &[]));
        assert_eq!(next(&[member(0, "t", true, false)]), step(&[1], &[]));
        // The first one is gone for a moment: it comes back before the third is made.
        assert_eq!(next(&[member(1, "t", true, false)]), step(&[0], &[]));
        assert_eq!(reconcile(&(0..3), "t", false, &[]), step(&[0, 1, 2], &[]), "in parallel none waits");
        assert_eq!(reconcile(&(5..7), "t", true, &[]), step(&[5], &[]), "the first number may be another");
    }

    #[test]
    fn the_last_one_goes_first() {
        let three: Vec<_> = (0..3).map(|n| member(n, "t", true, false)).collect();
        assert_eq!(reconcile(&(0..1), "t", true, &three), step(&[], &[2]));
        let going = [member(0, "t", true, false), member(1, "t", true, false), member(2, "t", false, true)];
        assert_eq!(reconcile(&(0..1), "t", true, &going), step(&[], &[]));
        assert_eq!(reconcile(&(0..1), "t", false, &three), step(&[], &[2, 1]));
    }

    #[test]
    fn an_update_goes_from_the_last_to_the_first_one_at_a_time() {
        let old: Vec<_> = (0..3).map(|n| member(n, "old", true, false)).collect();
        assert_eq!(reconcile(&(0..3), "new", true, &old), step(&[], &[2]));
        let without_last = [member(0, "old", true, false), member(1, "old", true, false)];
        assert_eq!(reconcile(&(0..3), "new", true, &without_last), step(&[2], &[]));
        let coming = [member(0, "old", true, false), member(1, "old", true, false), member(2, "new", false, false)];
        assert_eq!(reconcile(&(0..3), "new", true, &coming), step(&[], &[]));
        let came = [member(0, "old", true, false), member(1, "old", true, false), member(2, "new", true, false)];
        assert_eq!(reconcile(&(0..3), "new", true, &came), step(&[], &[1]));
    }

    #[test]
    fn a_broken_pod_of_the_old_template_is_replaced() {
        let broken = [member(0, "old", false, false)];
        assert_eq!(reconcile(&(0..2), "new", true, &broken), step(&[], &[0]));
        assert_eq!(reconcile(&(0..2), "old", true, &broken), step(&[], &[]));
    }

    #[test]
    fn names_end_with_the_number() {
        assert_eq!(
            (ordinal_of("db", "db-12"), ordinal_of("db", "db-x"), ordinal_of("db", "dbx-1")),
            (Some(12), None, None)
        );
    }
}
