//! The lists themselves: that what a step waits for exists, and that nothing is run twice or left out.

use std::collections::BTreeSet;

use super::*;
use crate::ci::executables::Package;

fn executables() -> Vec<Executable> {
    let messages = [("leno", "e2e"), ("leno-e2e", "cluster"), ("leno-node", "mesh"), ("leno-local", "stage"), ("xtask", "summary")]
        .map(|(package, name)| {
            format!(
                r#"{{"package_id":"path+file:///x/{package}#{package}@0.1.0","manifest_path":"/x/{package}/Cargo.toml","target":{{"kind":["test"],"name":"{name}"}},"profile":{{"test":true}},"executable":"/t/{name}"}}"#
            )
        })
        .join("\n");
    let packages = ["leno", "leno-e2e", "leno-node", "leno-local", "xtask"].map(|name| Package {
        name: name.to_owned(),
        manifest: if name == "leno-local" { "[[test]]\nname = \"stage\"\nharness = false\n" } else { "" }.to_owned(),
        environment: Vec::new(),
    });
    crate::ci::executables::executables(&messages, &packages).expect("some")
}

fn all_steps(tier: Tier) -> Vec<Step> {
    let places = Places::at("/cache".into());
    let mut steps = before_the_build(tier, &places).expect("steps");
    steps.extend(after_the_build(tier, &executables(), &places).expect("steps"));
    steps
}

const TIERS: [Tier; 5] = [Tier::All, Tier::Lint, Tier::Tests, Tier::Measured, Tier::Dist];

#[test]
fn what_a_step_waits_for_is_a_step_of_the_run() {
    for tier in TIERS {
        let steps = all_steps(tier);
        let names: BTreeSet<_> = steps.iter().map(|step| step.name.clone()).collect();
        assert_eq!(names.len(), steps.len(), "{tier:?}: two steps have one name");
        let logs: BTreeSet<_> = steps.iter().map(|step| log_of(step, Path::new("/logs"))).collect();
        assert_eq!(logs.len(), steps.len(), "{tier:?}: two steps have one log");
        for step in &steps {
            for name in &step.needs {
                assert!(names.contains(name), "{tier:?}: {} needs {name}, which is no step", step.name);
            }
            assert!(!step.command.is_empty(), "{tier:?}: {} does nothing", step.name);
        }
    }
}

#[test]
fn every_test_program_runs_once_and_the_summary_of_skips_last() {
    for tier in [Tier::All, Tier::Tests] {
        let steps = all_steps(tier);
        let runs = |name: &str| steps.iter().filter(|step| step.command.iter().any(|word| *word == *name)).count();
        for executable in executables() {
            let expected = usize::from(tier == Tier::All || executable.name != CLUSTER_TESTS);
            assert_eq!(runs(&executable.path.display().to_string()), expected, "{tier:?}: {}", executable.label());
        }
        let summary = steps.iter().find(|step| step.name == "test xtask/summary").expect("the summary");
        for name in ["test leno/e2e", "test leno-node/mesh", "test leno-local/stage"] {
            assert!(
                summary.follows.iter().any(|other| other == name),
                "{tier:?}: the summary does not wait for {name}"
            );
        }
    }
}

#[test]
fn only_programs_with_the_usual_harness_are_asked_for_times() {
    let steps = all_steps(Tier::All);
    let asks = |name: &str| {
        let step = steps.iter().find(|step| step.name == name).expect("a step");
        step.command.iter().any(|word| word == "--report-time")
    };
    assert!(asks("test leno/e2e") && !asks("test leno-local/stage"));
}

#[test]
fn what_is_measured_is_run_alone_at_full_size_and_nothing_else_of_it() {
    let steps = all_steps(Tier::Measured);
    let tests: Vec<_> = steps.iter().filter(|step| step.name.starts_with("measured ")).collect();
    assert_eq!(tests.len(), 3, "a program with a main of its own measures nothing");
    for step in tests {
        assert_eq!(step.place, Place::Alone);
        assert!(step.command.iter().any(|word| word == "--ignored"));
        assert!(step.environment.iter().any(|(name, value)| name == "LENO_SOAK" && value == "1"));
    }
}

#[test]
fn a_schedule_of_all_steps_comes_to_its_end() {
    for tier in TIERS {
        let mut schedule = crate::ci::schedule::Schedule::new(all_steps(tier));
        while !schedule.is_done() {
            let next = schedule.next();
            assert_eq!(next.left_out, [], "{tier:?}");
            assert!(!next.start.is_empty(), "{tier:?}: nothing runs and nothing may begin");
            for number in next.start {
                schedule.ended(number, crate::ci::schedule::Verdict::Passed);
            }
        }
    }
}
