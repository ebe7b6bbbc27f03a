use super::*;
use crate::stage::listing::PodListing;

fn listing(pods: &[(&str, &str, bool)]) -> Listing {
    let pod = |(name, message, ready): &(&str, &str, bool)| PodListing {
        namespace: "shop".to_owned(),
        name: (*name).to_owned(),
        node: "node-1".to_owned(),
        ips: Vec::new(),
        in_mesh: false,
        ready: *ready,
        status: "Running".to_owned(),
        restarts: 0,
        message: (*message).to_owned(),
        wants_mesh: false,
        netns: String::new(),
        waypoint: false,
        gateway: String::new(),
        pid: None,
    };
    Listing { stage: "default".to_owned(), pods: pods.iter().map(pod).collect(), ..Listing::default() }
}

fn missing() -> Missing {
    Missing { patience: Duration::from_secs(2), since: BTreeMap::new(), told: BTreeSet::new() }
}

#[test]
fn what_is_missing_is_told_after_a_while_and_once() {
    let (mut missing, begin) = (missing(), Instant::now());
    let at = |seconds| begin + Duration::from_secs(seconds);
    let refused = listing(&[("web", "readiness probe: refused", false), ("db", "", true)]);
    assert!(missing.lines(&refused, at(0)).is_empty());
    let told = missing.lines(&refused, at(2));
    assert_eq!(told, ["waiting: pod shop/web is Running: readiness probe: refused"]);
    assert!(missing.lines(&refused, at(9)).is_empty());
    // Another reason is news at once, a reason told before is not.
    assert_eq!(missing.lines(&listing(&[("web", "other", false)]), at(10)).len(), 1);
    assert!(missing.lines(&refused, at(11)).is_empty());
}

#[test]
fn what_comes_up_in_time_is_not_worth_a_line() {
    let (mut missing, begin) = (missing(), Instant::now());
    let at = |seconds| begin + Duration::from_secs(seconds);
    assert!(missing.lines(&listing(&[("web", "", false)]), at(0)).is_empty());
    assert!(missing.lines(&listing(&[("web", "", true)]), at(1)).is_empty());
    // Its time begins anew.
    assert!(missing.lines(&listing(&[("web", "", false)]), at(3)).is_empty());
}

#[test]
fn many_are_counted() {
    let names: Vec<String> = (0..40).map(|number| format!("p{number}")).collect();
    let pods: Vec<_> = names.iter().map(|name| (name.as_str(), "", false)).collect();
    let (mut missing, now) = (missing(), Instant::now());
    let all = listing(&pods);
    missing.lines(&all, now);
    let lines = missing.lines(&all, now + Duration::from_secs(3));
    assert_eq!(lines.len(), LINES + 1);
    assert_eq!(lines[LINES], "waiting: 35 more; `leno ps` shows all");
    assert!(all.missing().ends_with("; and 35 more"), "{}", all.missing());
}
