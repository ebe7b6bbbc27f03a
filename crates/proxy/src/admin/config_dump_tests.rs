use super::*;

#[test]
fn serial_numbers_are_decimal() {
    for (hex, expected) in [
        ("00", "0"),
        ("0a", "10"),
        ("ff", "255"),
        ("7fffffffffffffff", "9223372036854775807"),
        ("e5dfb59150b2ba7f108d93dcec5aa613", "305554775863395697262503895661564044819"),
        ("no", "no"),
    ] {
        assert_eq!(decimal(hex), expected, "{hex}");
    }
}

#[test]
fn a_policy_that_counts_on_says_for_whom() {
    let policy = |id: &str, scope| {
        let id = leno_model::PolicyName { namespace: "ns".into(), name: id.into() };
        let (rules, not_understood) = (vec![leno_model::Rule::default()], None);
        Arc::new(Authorization { id, scope, action: Action::Deny, rules, dry_run: false, not_understood })
    };
    let naming = |uid: &str, names: &[&Arc<Authorization>]| {
        let authorization_policies = names.iter().map(|policy| policy.id.clone()).collect();
        Arc::new(Workload { authorization_policies, ..Workload::new(uid, "ns", uid) })
    };
    let [gone, left] = ["gone", "left"].map(|id| policy(id, Scope::WorkloadSelector));
    let mut mesh = Mesh::default();
    mesh.change_policies(&[], vec![gone.clone(), left.clone(), policy("wide", Scope::Namespace)]);
    mesh.upsert_workload(naming("v", &[&gone]));
    mesh.upsert_workload(naming("w", &[&left]));
    mesh.update_workload(naming("w", &[]));
    let next = policy("next", Scope::WorkloadSelector);
    mesh.change_policies(&[gone.id.clone(), policy("wide", Scope::Namespace).id.clone()], vec![next]);

    let kept: Vec<_> = mesh.kept_policies().map(|(policy, whom)| kept_policy(policy, whom)).collect();
    let told = |name: &str| {
        let mut all = kept.iter().filter(|policy| policy["name"] == name);
        let one = all.next().unwrap_or_else(|| panic!("no {name} in {kept:?}"));
        (one["scope"].clone(), one["keptFor"].clone())
    };
    let (scope, whom) = told("gone");
    assert_eq!((scope, &whom["workloads"]), (json!("WorkloadSelector"), &json!(["v"])));
    let (scope, whom) = told("wide");
    assert_eq!((scope, &whom["policies"]), (json!("Namespace"), &json!(["ns/next"])));
    let (scope, whom) = told("left");
    assert_eq!((scope, &whom["workloads"]), (json!("WorkloadSelector"), &json!(["w"])));
    assert_eq!(kept.len(), 3);
}
