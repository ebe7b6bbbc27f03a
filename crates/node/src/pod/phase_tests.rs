use super::*;

const ALL: [Phase; 5] = [Phase::Serving, Phase::Leaving, Phase::Left, Phase::Draining, Phase::Stopped];
const EVENTS: [Event; 3] = [Event::Leave, Event::Drain, Event::Stop];

fn after(events: &[Event]) -> Phase {
    events.iter().fold(Phase::Serving, |phase, event| phase.then(*event))
}

#[test]
fn a_pod_that_leaves_takes_stragglers_and_then_nothing() {
    use Event::{Drain, Leave, Stop};
    assert!(Phase::Serving.takes_tunnels() && Phase::Serving.takes_captured());
    let leaving = after(&[Leave]);
    assert!(!leaving.takes_tunnels() && leaving.takes_captured() && leaving.has_left());
    let left = after(&[Leave, Drain]);
    assert!(!left.takes_captured() && left.has_left() && left != Phase::Stopped);
    assert_eq!(after(&[Drain, Leave]), left, "the proxy is ending, and the pod goes before it");
    assert_eq!(after(&[Leave, Drain, Stop]), Phase::Stopped);
}

#[test]
fn a_proxy_that_drains_takes_nothing_and_its_pods_have_not_left() {
    let draining = after(&[Event::Drain]);
    assert!(!draining.takes_tunnels() && !draining.takes_captured() && !draining.has_left());
}

#[test]
fn nothing_is_taken_up_again() {
    for phase in ALL {
        for event in EVENTS {
            let next = phase.then(event);
            assert!(phase.takes_tunnels() || !next.takes_tunnels(), "{phase:?} {event:?}");
            assert!(phase.takes_captured() || !next.takes_captured(), "{phase:?} {event:?}");
            assert!(phase != Phase::Stopped || next == Phase::Stopped, "{event:?}");
            assert_eq!(next.then(event), next, "{phase:?} {event:?} twice");
        }
        assert_eq!(phase.then(Event::Stop), Phase::Stopped);
    }
}

#[tokio::test]
async fn who_waits_for_a_phase_is_told_also_when_it_is_skipped() {
    let phases = std::sync::Arc::new(Phases::default());
    let waiting = {
        let phases = phases.clone();
        tokio::spawn(async move { phases.until(|phase| !phase.takes_captured()).await })
    };
    tokio::task::yield_now().await;
    phases.on(Event::Leave);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "stragglers are taken");
    let stopped = {
        let phases = phases.clone();
        tokio::spawn(async move { phases.stopped().await })
    };
    tokio::task::yield_now().await;
    assert!(!stopped.is_finished());
    phases.on(Event::Stop);
    stopped.await.expect("no panic");
    assert_eq!(waiting.await.expect("no panic"), Phase::Stopped);
    assert_eq!(phases.until(|phase| phase == Phase::Stopped).await, Phase::Stopped, "it is over already");
}
