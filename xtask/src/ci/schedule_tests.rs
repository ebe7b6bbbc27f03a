//! Steps named by letters, run by hand.

use super::*;

fn front(name: &str, tenths: u32) -> Step {
    Step::new(name, Place::Front { tenths })
}

fn behind(name: &str) -> Step {
    Step::new(name, Place::Behind)
}

fn alone(name: &str) -> Step {
    Step::new(name, Place::Alone)
}

/// The names of what starts.
fn starts(schedule: &mut Schedule) -> Vec<String> {
    schedule.next().start.into_iter().map(|number| schedule.step(number).name.clone()).collect()
}

fn ends(schedule: &mut Schedule, name: &str, verdict: Verdict) {
    let number = schedule.steps.iter().position(|step| step.name == name).expect("a step of this name");
    assert_eq!(schedule.states[number], State::Running, "{name} runs");
    schedule.ended(number, verdict);
}

#[test]
fn as_many_run_beside_each_other_as_two_cores_bear() {
    let mut schedule = Schedule::new(vec![front("a", 8), front("b", 8), front("c", 8), front("d", 4)]);
    assert_eq!(starts(&mut schedule), ["a", "b", "d"]);
    ends(&mut schedule, "a", Verdict::Passed);
    assert_eq!(starts(&mut schedule), ["c"]);
}

#[test]
fn what_weighs_more_than_the_machine_runs_all_the_same() {
    let mut schedule = Schedule::new(vec![front("a", 90), front("b", 1)]);
    assert_eq!(starts(&mut schedule), ["a"]);
    ends(&mut schedule, "a", Verdict::Passed);
    assert_eq!(starts(&mut schedule), ["b"]);
}

#[test]
fn one_at_a_time_runs_in_the_background_beside_the_front() {
    let mut schedule = Schedule::new(vec![behind("x"), behind("y"), front("a", 20)]);
    assert_eq!(starts(&mut schedule), ["x", "a"]);
    ends(&mut schedule, "x", Verdict::Passed);
    assert_eq!(starts(&mut schedule), ["y"]);
}

#[test]
fn what_measures_waits_for_the_front_and_stops_the_background() {
    let mut schedule = Schedule::new(vec![front("a", 5), behind("x"), alone("m"), behind("y"), front("b", 20)]);
    assert_eq!(starts(&mut schedule), ["a", "x"]);
    ends(&mut schedule, "a", Verdict::Passed);
    assert_eq!(starts(&mut schedule), ["m"]);
    assert!(schedule.is_anything_alone());
    ends(&mut schedule, "x", Verdict::Passed);
    assert!(starts(&mut schedule).is_empty(), "nothing begins beside what measures");
    ends(&mut schedule, "m", Verdict::PassedAgain);
    assert!(!schedule.is_anything_alone());
    assert_eq!(starts(&mut schedule), ["y", "b"]);
}

#[test]
fn a_step_waits_for_what_it_needs_and_is_left_out_where_that_fails() {
    let steps = vec![front("build", 20), front("test", 5).needs(&["build"]), front("report", 5).needs(&["test"])];
    let mut schedule = Schedule::new(steps);
    assert_eq!(starts(&mut schedule), ["build"]);
    ends(&mut schedule, "build", Verdict::Failed("exit code 1".to_owned()));
    let next = schedule.next();
    assert_eq!(next.left_out, [(1, "build".to_owned()), (2, "test".to_owned())]);
    assert!(next.start.is_empty() && schedule.is_done());
}

#[test]
fn a_step_that_only_follows_another_runs_however_that_ended() {
    let mut schedule = Schedule::new(vec![front("up", 5), front("down", 5).follows(&["up"])]);
    assert_eq!(starts(&mut schedule), ["up"]);
    ends(&mut schedule, "up", Verdict::Skipped("no Go".to_owned()));
    assert_eq!(starts(&mut schedule), ["down"]);
}

#[test]
fn a_need_that_is_no_step_leaves_a_step_out() {
    let mut schedule = Schedule::new(vec![front("a", 5).needs(&["misspelt"])]);
    assert_eq!(schedule.next().left_out, [(0, "misspelt".to_owned())]);
}

#[test]
fn steps_that_become_known_later_are_run() {
    let mut schedule = Schedule::new(vec![front("build", 20)]);
    assert_eq!(starts(&mut schedule), ["build"]);
    ends(&mut schedule, "build", Verdict::Passed);
    schedule.add(vec![front("test", 5).needs(&["build"])]);
    assert!(!schedule.is_done());
    assert_eq!(starts(&mut schedule), ["test"]);
    ends(&mut schedule, "test", Verdict::Passed);
    assert!(schedule.is_done());
}
