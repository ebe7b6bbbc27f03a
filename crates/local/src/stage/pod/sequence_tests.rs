use leno_objects::{Container, RestartPolicy};

use super::*;

fn container(name: &str, sidecar: bool) -> Container {
    let restart_policy = sidecar.then_some(RestartPolicy::Always);
    Container { name: name.to_owned(), restart_policy, ..Container::default() }
}

/// Two steps with a sidecar between them, and two containers.
fn sequence() -> (Sequence, Vec<State>) {
    let spec = PodSpec {
        init_containers: [container("first", false), container("beside", true), container("last", false)].into(),
        containers: [container("a", false), container("b", false)].into(),
        ..PodSpec::default()
    };
    (Sequence::new(&spec), vec![starting(); 5])
}

fn starting() -> State {
    State::Waiting { reason: STARTING, message: String::new() }
}

fn running(ready: bool) -> State {
    State::Running { ready, message: if ready { String::new() } else { "not probed yet".to_owned() } }
}

fn said(sequence: &Sequence, states: &[State]) -> (String, String, bool) {
    let Summary { status, message, ready, .. } = sequence.summary(states);
    (status, message, ready)
}

#[test]
fn one_after_the_other_and_then_all() {
    let (mut sequence, mut states) = sequence();
    assert_eq!(sequence.next(&states), 0..1);
    assert_eq!(said(&sequence, &states), ("Init:0/3".to_owned(), "init container first".to_owned(), false));
    assert!(sequence.next(&states).is_empty());
    states[0] = running(true);
    assert!(sequence.next(&states).is_empty(), "it has to end");
    states[0] = State::Ended { code: 0 };
    assert_eq!(sequence.next(&states), 1..2);
    assert!(sequence.next(&states).is_empty(), "the sidecar has to run");
    states[1] = running(false);
    assert_eq!(sequence.next(&states), 2..3, "but not to be ready");
    assert_eq!(sequence.summary(&states).status, "Init:2/3");
    states[2] = State::Ended { code: 0 };
    assert_eq!(sequence.next(&states), 3..5);
    assert!(sequence.next(&states).is_empty());
    states[3] = running(true);
    states[4] = running(true);
    let not_yet = "init container beside: not probed yet".to_owned();
    assert_eq!(said(&sequence, &states), ("Running".to_owned(), not_yet, false));
    states[1] = running(true);
    assert_eq!(said(&sequence, &states), ("Running".to_owned(), String::new(), true));
}

#[test]
fn an_init_container_that_fails_is_named() {
    let (mut sequence, mut states) = sequence();
    sequence.next(&states);
    states[0] = State::Waiting { reason: "CrashLoopBackOff", message: "ended with exit code 3: no".to_owned() };
    let message = "init container first: ended with exit code 3: no".to_owned();
    assert_eq!(said(&sequence, &states), ("Init:CrashLoopBackOff".to_owned(), message, false));
    assert!(sequence.next(&states).is_empty());
    states[0] = State::Ended { code: 3 };
    let summary = sequence.summary(&states);
    assert_eq!((summary.phase, &*summary.status), (Some(PodPhase::Failed), "Init:Error"));
    assert_eq!(summary.message, "init container first: ended with exit code 3");
    assert!(sequence.next(&states).is_empty(), "nothing comes after it");
}

#[test]
fn a_pod_is_over_without_its_sidecars() {
    let (mut sequence, mut states) = sequence();
    for state in &mut states[..3] {
        *state = State::Ended { code: 0 };
    }
    states[1] = running(true);
    while !sequence.next(&states).is_empty() {}
    states[3] = State::Ended { code: 0 };
    states[4] = running(true);
    assert!(!sequence.is_over(&states));
    states[4] = State::Ended { code: 0 };
    assert!(sequence.is_over(&states));
    assert_eq!(sequence.summary(&states).phase, Some(PodPhase::Succeeded));
    states[1] = State::Ended { code: 143 };
    assert_eq!(said(&sequence, &states), ("Completed".to_owned(), String::new(), false));
    states[3] = State::Ended { code: 2 };
    assert_eq!(said(&sequence, &states), ("Error".to_owned(), "ended with exit code 2".to_owned(), false));
}

#[test]
fn without_init_containers_all_begin_at_once() {
    let spec = PodSpec { containers: [container("a", false), container("b", false)].into(), ..PodSpec::default() };
    let (mut sequence, states) = (Sequence::new(&spec), vec![starting(); 2]);
    assert_eq!(sequence.next(&states), 0..2);
    assert_eq!(said(&sequence, &states), (STARTING.to_owned(), String::new(), false));
}
