use super::*;

fn workloads(range: std::ops::Range<usize>) -> Vec<Change> {
    range.map(|n| Change::Workload(format!("w{n}").into())).collect()
}

fn these(range: std::ops::Range<usize>) -> Changed {
    let workloads = range.map(|n| format!("w{n}").into()).collect();
    Changed::These { workloads, policies: HashSet::new() }
}

#[test]
fn what_changed_since_is_told_and_perhaps_all_once_that_is_forgotten() {
    let mut recent = Recent::default();
    assert_eq!(recent.since(0), these(0..0));
    recent.add(1, workloads(0..2));
    recent.add(2, vec![]);
    recent.add(3, workloads(1..3));
    assert_eq!((recent.since(0), recent.since(1), recent.since(3)), (these(0..3), these(1..3), these(0..0)));
    assert!(recent.since(1).concerns("w1") && !recent.since(1).concerns("w0"));
    // Of the first generation one is forgotten.
    recent.add(4, workloads(10..MOST + 7));
    assert_eq!(recent.since(0), Changed::Perhaps);
    assert!(recent.since(1).concerns("w1") && !recent.since(1).concerns("w0"));
    assert!(recent.since(0).concerns("unheard of"));
    // More at once than are remembered.
    recent.add(5, workloads(0..MOST + 1));
    assert_eq!((recent.since(4), recent.since(5)), (Changed::Perhaps, these(0..0)));
}

#[test]
fn a_policy_concerns_those_it_may_apply_to() {
    let id = PolicyName { namespace: "a".into(), name: "p".into() };
    let [of_it, of_another] = ["a", "b"].map(|namespace| Workload::new("w", namespace, "w"));
    let naming = Workload { authorization_policies: vec![id.clone()], ..of_another.clone() };
    for (scope, concerned) in [
        (Scope::Global, [true, true, true]),
        (Scope::Namespace, [true, false, true]),
        (Scope::WorkloadSelector, [false, false, true]),
    ] {
        let mut recent = Recent::default();
        recent.add(1, vec![Change::Policy(id.clone(), scope)]);
        let found = [&of_it, &of_another, &naming].map(|workload| recent.since(0).concerns_access_to(workload));
        assert_eq!(found, concerned, "{scope:?}");
        assert!(!recent.since(1).concerns_access_to(&naming));
        recent.add(2, vec![Change::Workload("w".into())]);
        assert!(recent.since(1).concerns_access_to(&of_another));
    }
}
