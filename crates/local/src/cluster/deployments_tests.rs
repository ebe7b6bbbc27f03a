use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn pods(names: &[&str], template: &str, ready: bool) -> Vec<Replica> {
    let of =
        |(made, name): (u64, &&str)| Replica { name: (*name).to_owned(), template: template.to_owned(), ready, made };
    (0..).zip(names).map(of).collect()
}

#[test]
fn starts_all_at_once_with_stable_names() {
    let step = reconcile("web", "t1", 3, &[], &[]);
    assert_eq!(step.create.len(), 3);
    assert!(step.delete.is_empty());
    assert_eq!(step, reconcile("web", "t1", 3, &[], &[]));
    assert!(step.create.iter().all(|name| name.starts_with("web-t1-") && name.len() == 12), "{:?}", step.create);
}

#[test]
fn a_name_of_a_leaving_pod_is_not_reused() {
    let first = reconcile("web", "t1", 1, &[], &[]).create;
    assert_ne!(reconcile("web", "t1", 1, &[], &first).create, first);
}

#[test]
fn scales_down_unready_pods_first() {
    let mut existing = pods(&["a", "b"], "t1", true);
    existing.extend(pods(&["c"], "t1", false));
    assert_eq!(reconcile("web", "t1", 2, &existing, &[]), Step { create: vec![], delete: vec!["c".into()] });
    assert_eq!(reconcile("web", "t1", 0, &existing, &[]).delete.len(), 3);
}

#[test]
fn scales_down_the_youngest_first() {
    let mut existing = pods(&["a", "b", "c", "d"], "t1", true);
    // In whatever order they are listed.
    existing.swap(0, 3);
    assert_eq!(reconcile("web", "t1", 2, &existing, &[]).delete, ["d", "c"]);
    existing[3].ready = false;
    assert_eq!(reconcile("web", "t1", 2, &existing, &[]).delete, ["a", "d"]);
}

#[test]
fn an_update_waits_for_the_new_pod() {
    let old = pods(&["a", "b"], "t1", true);
    let step = reconcile("web", "t2", 2, &old, &[]);
    assert_eq!((step.create.len(), step.delete.len()), (1, 0));
    let mut both = old.clone();
    both.extend(pods(&["c"], "t2", false));
    assert_eq!(reconcile("web", "t2", 2, &both, &[]), Step::default());
    both[2].ready = true;
    assert_eq!(reconcile("web", "t2", 2, &both, &[]).delete, ["a"]);
}

proptest! {
    /// Whatever the start, an update ends with exactly the wanted pods, and no step of it takes
    /// a ready pod away while fewer than wanted would remain.
    #[test]
    fn updates_end_and_never_dip(
        replicas in 0_usize..8,
        old in 0_usize..8,
        fresh in 0_usize..8,
        ready in proptest::collection::vec(any::<bool>(), 16),
    ) {
        let mut existing: Vec<Replica> = (0..old + fresh)
            .map(|i| Replica {
                name: format!("p{i}"),
                template: if i < old { "old".into() } else { "new".into() },
                ready: ready[i],
                made: 0,
            })
            .collect();
        for _ in 0..64 {
            let before = existing.iter().filter(|pod| pod.ready).count();
            let step = reconcile("d", "new", replicas, &existing, &[]);
            if step == Step::default() && existing.iter().all(|pod| pod.ready) {
                break;
            }
            existing.retain(|pod| !step.delete.contains(&pod.name));
            let after = existing.iter().filter(|pod| pod.ready).count();
            prop_assert!(after >= before.min(replicas), "{before} -> {after} of {replicas}");
            for name in step.create {
                existing.push(Replica { name, template: "new".into(), ready: false, made: 0 });
            }
            if let Some(pod) = existing.iter_mut().find(|pod| !pod.ready) {
                pod.ready = true;
            }
        }
        prop_assert_eq!(existing.len(), replicas);
        prop_assert!(existing.iter().all(|pod| pod.template == "new" && pod.ready));
        let names: BTreeSet<_> = existing.iter().map(|pod| &pod.name).collect();
        prop_assert_eq!(names.len(), replicas);
    }
}

#[test]
fn pods_spread_over_nodes() {
    assert_eq!(choose_node(&[(0, 0), (0, 0)]), 0);
    assert_eq!(choose_node(&[(1, 1), (0, 5)]), 1);
    assert_eq!(choose_node(&[(1, 3), (1, 2)]), 1);
}

#[test]
fn template_hashes_are_names() {
    let hash = template_hash("{\"spec\":1}");
    assert_eq!(hash.len(), 9);
    assert!(hash.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    assert_ne!(hash, template_hash("{\"spec\":2}"));
}
