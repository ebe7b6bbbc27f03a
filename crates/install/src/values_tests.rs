use serde_json::json;

use super::*;

fn values(profile: Profile) -> Values {
    Values::of(profile).expect("a chart")
}

fn refusal(result: Result<(), Error>) -> String {
    result.expect_err("a refusal").to_string()
}

#[test]
fn every_profile_is_valid() {
    for profile in Profile::ALL {
        let values = values(profile);
        values.checked().expect("valid values");
        assert_eq!(values.given().expect("YAML"), "{}", "an operator has changed nothing yet");
    }
}

#[test]
fn later_ones_win_and_the_rest_stays() {
    let mut values = values(Profile::Ha);
    values.file("control: {replicas: 3, env: {A: b}}\nagent:\n  appArmorProfile: null\n", "mine.yaml").expect("values");
    values.set("control.replicas=5").expect("a value");
    let all = values.checked().expect("valid values");
    assert_eq!(all["control"]["replicas"], 5);
    assert_eq!(all["control"]["env"], json!({"A": "b"}));
    assert_eq!(all["control"]["podDisruptionBudget"], true, "the profile's");
    assert_eq!(all["image"]["pullPolicy"], "IfNotPresent", "the chart's");
    assert_eq!(all["agent"].get("appArmorProfile"), None, "removed");
}

#[test]
fn what_was_changed_can_be_given_to_the_next_version() {
    let mut first = values(Profile::Default);
    first.file("node: {drainSeconds: 60}", "mine.yaml").expect("values");
    first.set("agent.env.RUST_LOG=debug").expect("a value");
    let mut second = values(Profile::Default);
    second.file(&first.given().expect("YAML"), "the first").expect("values");
    let given = |values: &Values| values.given().expect("YAML");
    assert_eq!((first.checked().expect("valid"), given(&first)), (second.checked().expect("valid"), given(&second)));
}

#[test]
fn texts_become_what_the_chart_wants() {
    let mut values = values(Profile::Default);
    for assignment in [
        "clusterId=7",
        "node.drainSeconds=60",
        "node.maxSurge=25%",
        "networkPolicy.enabled=false",
        "image.pullSecrets={one, two}",
        "node.nodeSelector.kubernetes\\.io/arch=arm64",
        "control.env.N=1000000",
        "network=",
    ] {
        values.set(assignment).expect(assignment);
    }
    let all = values.checked().expect("valid values");
    assert_eq!(all["clusterId"], "7", "a text stays one");
    assert_eq!(all["node"]["drainSeconds"], 60);
    assert_eq!(all["node"]["maxSurge"], "25%");
    assert_eq!(all["networkPolicy"]["enabled"], false);
    assert_eq!(all["image"]["pullSecrets"], json!(["one", "two"]));
    assert_eq!(all["node"]["nodeSelector"]["kubernetes.io/arch"], "arm64");
    assert_eq!(all["control"]["env"]["N"], "1000000");
    for quantity in ["250m", "0.5", "1", "1Gi", "1e3", "128974848"] {
        values.set(&format!("node.resources.limits.cpu={quantity}")).expect(quantity);
    }
    values.set("image.repository=registry.example:5000/mesh/leno").expect("a port is fine, too");
    values.set("node.maxSurge=2").expect("a number is fine, too");
    assert_eq!(values.checked().expect("valid values")["node"]["maxSurge"], 2);
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    let mut values = values(Profile::Default);
    assert!(
        refusal(values.set("control.replica=2"))
            .contains("control.replica: there is no such value; there is affinity,")
    );
    assert!(refusal(values.set("control.replicas=two")).contains("write a number"));
    for (assignment, right) in [
        ("control.resources.limits.memory=banana", "such as 64Mi"),
        ("node.maxSurge=0", "1 at least"),
        ("node.maxSurge=0%", "such as 1 or 25%"),
        ("agent.cniBinDir=opt/cni/bin", "such as /opt/cni/bin"),
        ("image.repository=Registry Example", "such as registry.example/leno"),
    ] {
        let refusal = refusal(values.set(assignment));
        assert!(refusal.contains(right), "{refusal}");
    }
    assert!(refusal(values.set("control.replicas=0")).contains("must be 1 at least"));
    assert!(refusal(values.set("networkPolicy.enabled=yes")).contains("write true or false"));
    assert!(refusal(values.set("image.pullPolicy=Sometimes")).contains("one of IfNotPresent, Always, Never"));
    assert!(refusal(values.set("control=2")).contains("it has parts"));
    assert!(refusal(values.set("trustDomain.x=2")).contains("has no parts"));
    for nothing in ["control.replicas", "=2", "control..replicas=2"] {
        assert!(refusal(values.set(nothing)).contains("sets nothing"), "{nothing}");
    }
    assert!(refusal(values.file("- a", "x.yaml")).contains("x.yaml is not a file of values"));
    assert!(refusal(values.file("a: [", "x.yaml")).contains("x.yaml"));
    assert!(values.checked().is_ok(), "what was refused has changed nothing");

    values.file("control: {env: {N: 1}}", "x.yaml").expect("a mapping");
    let error = values.checked().expect_err("a number where a text belongs").to_string();
    let mut nameless = self::values(Profile::Default);
    nameless.file("meshConfig: {extensionProviders: [{envoyExtAuthzGrpc: {}}]}", "x.yaml").expect("a mapping");
    let refusal = nameless.checked().expect_err("a provider without a name").to_string();
    assert!(refusal.contains("meshConfig.extensionProviders[0]: lacks name"), "{refusal}");
    assert!(error.starts_with("x.yaml: control.env.N: is 1, and must be of type string"), "{error}");
}

#[test]
fn a_value_that_is_taken_away_is_missed() {
    let mut values = values(Profile::Default);
    values.file("trustDomain: null", "x.yaml").expect("a mapping");
    assert!(values.checked().expect_err("it has no default").to_string().contains("trustDomain"));
}

/// A value without a comment is one that nobody can use.
#[test]
fn every_value_is_explained() {
    let mut explained = false;
    for (number, line) in chart::LENO.values.lines().enumerate() {
        let trimmed = line.trim_start();
        let indented = line.len() - trimmed.len();
        if trimmed.starts_with('#') {
            explained |= trimmed.starts_with("# -- ") || indented == 0;
        } else if trimmed.is_empty() {
            explained = false;
        } else if indented <= 2 {
            let section = indented == 0 && trimmed.ends_with(':');
            assert!(explained || section, "line {}: {line}", number + 1);
            explained = false;
        }
    }
}

#[test]
fn where_anything_may_be_it_may_be_deep() {
    let mut values = values(Profile::Default);
    let affinity = json!({"nodeAffinity": {"preferred": [{"weight": 1, "preference": {"matchFields": []}}]}});
    values.file(&json!({"control": {"affinity": affinity}}).to_string(), "x.yaml").expect("a mapping");
    values.set("control.affinity.podAffinity.a.b=c").expect("a value");
    let all = values.checked().expect("valid values");
    assert_eq!(all["control"]["affinity"]["nodeAffinity"], affinity["nodeAffinity"]);
    assert_eq!(all["control"]["affinity"]["podAffinity"]["a"]["b"], "c");
}
