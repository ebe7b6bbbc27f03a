//! `leno lab run many-svc` with control planes as they are shipped. Needs no rights.

use std::path::PathBuf;

use serde_json::Value;

use crate::lab::lab;
use crate::stage::script;

/// A small study, as JSON.
fn study(subjects: &[&str]) -> Result<Value, String> {
    let subjects: Vec<&str> = subjects.iter().flat_map(|subject| ["--subject", subject]).collect();
    lab(&[&["many-svc", "--duration", "1s"], &subjects[..]].concat())
}

/// Every step was measured, with proxies that saw every change and held what the cluster is: else the run fails.
fn assert_sound(report: &Value, subject: &str) {
    let results: Vec<&Value> =
        report["churn"].as_array().unwrap().iter().filter(|result| result["subject"] == subject).collect();
    let steps: Vec<&str> = results.iter().map(|result| result["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["ready", "first-sync", "idle", "churn/rescale", "reconnect"]);
    let number = |step: usize, field: &str| results[step][field].as_f64().unwrap();
    let at_most = |step: usize, field: &str| results[step]["after"][field].as_f64().unwrap();
    assert!(number(0, "seconds") > 0.0 && at_most(0, "rss_bytes") > 1e6, "{}", results[0]);
    // Twenty services and two hundred pods for each of ten proxies.
    assert!(number(1, "bytes") > 10.0 * 220.0 * 50.0 && number(1, "proxies") == 10.0, "{}", results[1]);
    assert_eq!((number(2, "bytes"), number(2, "changes")), (0.0, 0.0), "nothing happens: {}", results[2]);
    let changes = number(3, "changes");
    assert!(changes >= 3.0 && number(3, "touched") >= changes, "{}", results[3]);
    assert_eq!(results[3]["latency"]["count"], (changes * 10.0) as u64, "{}", results[3]);
    assert!(number(3, "bytes") > 0.0 && at_most(3, "peak_bytes") >= at_most(3, "rss_bytes"), "{}", results[3]);
    assert_eq!(number(4, "changes"), 10.0, "{}", results[4]);
    let figures = report["figures"].as_array().unwrap();
    for (step, name) in
        [("ready", "time until ready"), ("churn/rescale", "CPU per minute"), ("churn/rescale", "fed to seen p99")]
    {
        let found = figures.iter().find(|figure| figure["step"] == step && figure["name"] == name);
        assert!(found.is_some(), "{step}: {name}");
    }
}

#[test]
fn the_study_is_run_with_the_control_plane_that_is_shipped() {
    let report = study(&["leno"]).unwrap();
    assert_sound(&report, "leno");
    // Nobody but who signs in a cluster would know its root; all that is told again is what was missed.
    let bytes = |step: &str| {
        let result = report["churn"].as_array().unwrap().iter().find(|result| result["step"] == step);
        result.unwrap()["bytes"].as_f64().unwrap()
    };
    assert!(bytes("reconnect") < bytes("first-sync"), "{} of {}", bytes("reconnect"), bytes("first-sync"));
}

#[test]
fn the_study_is_run_with_istiod_beside_leno() {
    let Some(path) = std::env::var_os("LENO_ISTIOD").map(PathBuf::from) else {
        leno_testkit::skips::skip(
            "the_study_is_run_with_istiod_beside_leno",
            "set LENO_ISTIOD=PATH to Istio's pilot-discovery",
        );
        return;
    };
    let report = study(&["leno", &format!("istiod={}", path.display())]).unwrap();
    assert_sound(&report, "leno");
    assert_sound(&report, "istiod");
    let figures = report["figures"].as_array().unwrap();
    let p99 = figures.iter().find(|figure| figure["step"] == "churn/rescale" && figure["name"] == "fed to seen p99");
    let ratio = &p99.unwrap()["subjects"][0]["ratios"][0];
    assert_eq!(ratio["to"], "istiod", "{ratio}");
}

/// What a control plane did while nothing changed in a mesh of so many pods in twenty services, with three nodes.
fn idle_beside(pods: usize, duration: &str) -> Value {
    let each = (pods / 20).to_string();
    let arguments = ["many-svc", "--duration", duration, "--pods", &each, "--proxies", "3", "--step", "idle"];
    let report = lab(&arguments).unwrap();
    let results = report["churn"].as_array().unwrap();
    results.iter().find(|result| result["step"] == "idle").unwrap().clone()
}

/// A debug build takes some 57 MiB with a thousand pods (lab/results). Most of it is the program's code, which differs from build
/// to build and is left out here: what counts is what each pod adds.
#[test]
fn a_control_plane_of_a_thousand_pods_is_small_and_tells_nothing_when_nothing_changes() {
    let (few, many) = (idle_beside(200, "1s"), idle_beside(1000, "1s"));
    let memory = |result: &Value| result["after"]["rss_bytes"].as_f64().unwrap();
    let each = (memory(&many) - memory(&few)) / 800.0;
    assert!(each < 16.0 * 1024.0, "a pod adds {each:.0} bytes");
    for told in ["bytes", "changes"] {
        assert_eq!(many[told], 0, "{told}: {many}");
    }
}

#[test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
fn a_control_plane_of_a_thousand_pods_rests_when_nothing_changes() {
    let many = idle_beside(1000, "10s");
    let cpu = many["cpu"]["user_seconds"].as_f64().unwrap() + many["cpu"]["system_seconds"].as_f64().unwrap();
    let share = cpu / many["seconds"].as_f64().unwrap();
    assert!(share < 0.03, "{:.1} % of a core while nothing changes", share * 100.0);
}

/// What fails says so in the words of the program, and at once.
#[test]
fn what_is_no_control_plane_is_told_with_the_end_of_its_log() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("other");
    script(&path, "test \"$1\" = version && exit\necho the flux capacitor is missing >&2; exit 1");
    for name in ["istiod", "leno"] {
        let error = study(&[&format!("{name}={}", path.display())]).unwrap_err();
        assert!(error.contains(&format!("subject {name}")) && error.contains("has ended"), "{error}");
        assert!(error.contains("the flux capacitor is missing"), "{error}");
    }
}
