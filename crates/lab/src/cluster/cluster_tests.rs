//! What is refused before a cluster is asked, and what a subject is.

use leno_local::names::StageName;

use super::*;
use crate::scenario::{Size, find};

fn options(scenario: &str, subjects: &[&str]) -> RunOptions {
    RunOptions {
        scenario: find(scenario, Size::Quick).unwrap(),
        subjects: subjects.iter().map(|name| Subject::parse(name).unwrap()).collect(),
        rounds: 1,
        seconds: 1.0,
        size: Size::Quick,
        only: String::new(),
        program: "/leno".into(),
        stage: StageName::new("lab").unwrap(),
        command: String::new(),
        commit: None,
    }
}

fn refusal(scenario: &str, subjects: &[&str]) -> String {
    let error = check(&options(scenario, subjects)).unwrap_err();
    assert!(error.is_usage());
    error.to_string()
}

#[test]
fn what_a_cluster_can_measure() {
    check(&options("latency", &["none", "leno"])).unwrap();
    check(&options("throughput", &["installed"])).unwrap();
    assert!(refusal("mixed", &["none"]).contains("throughput, latency, connections"));
    assert!(refusal("churn", &["leno"]).contains("not for a cluster"));
    assert!(refusal("latency", &["none", "floor"]).contains("not floor"));
    assert!(refusal("latency", &["leno=/bin/sh"]).contains("not leno=/"));
    assert!(refusal("latency", &["leno", "installed"]).contains("not both"));
}

#[test]
fn every_step_of_these_scenarios_has_one_load() {
    for name in SCENARIOS {
        assert!(find(name, Size::Full).unwrap().steps.iter().all(|step| step.loads.len() == 1), "{name}");
    }
}

#[test]
fn subjects_are_what_is_installed() {
    let mesh = |is_leno| Mesh { name: "M (x/y)".to_owned(), is_leno, image: "i:1".to_owned(), digest: "00".to_owned() };
    let said = |subject: &Subject, mesh: Option<&Mesh>| identify(subject, mesh).unwrap_err().to_string();
    assert!(said(&Subject::Leno(None), None).contains("leno install --wait"));
    assert!(said(&Subject::Leno(None), Some(&mesh(false))).contains("--subject installed"));
    assert!(identify(&Subject::None, None).unwrap().programs.is_empty());
    let found = identify(&Subject::Installed, Some(&mesh(false))).unwrap();
    assert_eq!((found.name.as_str(), found.programs[0].version.as_deref()), ("installed", Some("M (x/y), image i:1")));
    assert_eq!(found.programs[0].profile(), None);
}
