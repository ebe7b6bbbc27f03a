//! Checks before the measurement that the subject carries the traffic and encrypts it. A mesh that is bypassed would
//! win every comparison.

use std::fmt;

use leno_capture::sniff::{Seen, Sniffer};
use leno_local::Stage;
use leno_local::addresses::{NODE_LINK, POD_LINK};

use super::generator::Generator;
use super::last_words;
use crate::Error;
use crate::load::{Event, HttpLoad, Load, LoadSpec, Outcome, Pace, Reuse, ServerSpec};
use crate::options::RunOptions;
use crate::scenario::{CLIENT, FAR, NEAR, Step};
use crate::subject::Subject;

const MISSED: &str = "packets were missed while watching for requests in the clear: the machine is overloaded";

/// Where requests are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the link between the nodes.
    BetweenNodes,
    /// On the link of a server in the client's own node.
    InNode,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BetweenNodes => "the link between the nodes",
            Self::InNode => "the link of a pod in the same node",
        })
    }
}

/// Sends requests from the client to a server on the other node and, if a step needs it, to one on its own node.
pub(super) async fn check(
    stage: &Stage,
    options: &RunOptions,
    subject: &Subject,
    steps: &[&Step],
) -> Result<(), Error> {
    // What a hop does is seen by its answers: without a route, or with the wrong one, there is none.
    if !steps.iter().any(|step| subject.covers(step) && step.hop().is_none()) {
        return Ok(());
    }
    check_at(Place::BetweenNodes, stage, options, subject).await?;
    if steps.iter().any(|step| subject.covers(step) && !step.crosses_nodes()) {
        check_at(Place::InNode, stage, options, subject).await?;
    }
    Ok(())
}

async fn check_at(place: Place, stage: &Stage, options: &RunOptions, subject: &Subject) -> Result<(), Error> {
    let canary = format!("canary-{}", std::process::id());
    let wrong = |reason: String| Error::Subject { subject: subject.to_string(), reason, log: last_words(stage) };
    let (server, namespace, link) = match place {
        Place::BetweenNodes => (FAR, stage.node_namespace("node-1"), NODE_LINK),
        Place::InNode => (NEAR, super::generator::pod_namespace(stage, NEAR).ok(), POD_LINK),
    };
    let namespace = namespace.ok_or_else(|| wrong(format!("there is no network namespace for {place}")))?;
    let server = super::step::address(stage, server).ok_or_else(|| wrong(format!("pod {server} has no address")))?;
    let sniffer =
        Sniffer::start(&namespace, Some(link), canary.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let target = (server, ServerSpec::default().http).into();
    let pace = Pace::Open { per_second: 100.0 };
    let load = Load::Http(HttpLoad::new(target, &format!("/{canary}"), 1, pace, Reuse::Kept));
    let spec = LoadSpec { unattended: false, warmup_seconds: 0.1, seconds: 0.2, load };
    let mut generator = Generator::start(stage, options, "proof", CLIENT, &spec)?;
    generator.expect(&Event::Started).await.map_err(|error| wrong(error.to_string()))?;
    generator.expect(&Event::Ended).await?;
    let outcome = generator.outcome().await?;
    let seen = sniffer.stop().map_err(|error| wrong(error.to_string()))?;
    match outcome {
        Outcome::Http(outcome) if outcome.answered > 0 && outcome.error_count() == 0 => {}
        outcome => return Err(wrong(format!("not every request is answered: {outcome:?}"))),
    }
    judge(subject, place, &seen).map_err(wrong)
}

/// Decides whether the capture is as expected.
fn judge(subject: &Subject, place: Place, seen: &Seen) -> Result<(), String> {
    if matches!(subject, Subject::Wireguard(_)) {
        return match (seen.canaries, seen.other_tcp_packets + seen.tunnel_packets) {
            _ if seen.dropped > 0 => Err(MISSED.to_owned()),
            (0, 0) if seen.packets > 0 => Ok(()),
            (0, 0) => Err(format!("nothing crossed {place}")),
            _ => Err(format!("TCP crosses {place} outside of its tunnel")),
        };
    }
    if !subject.is_mesh() {
        return match (seen.tunnel_packets, seen.canaries) {
            (0, 1..) => Ok(()),
            (0, 0) => Err(format!("the requests were not seen on {place}")),
            _ => Err("there is tunnel traffic although there is no mesh".to_owned()),
        };
    }
    if seen.tunnel_packets == 0 {
        return Err(format!("the requests bypass its proxies: no packet of the tunnel's port was seen on {place}"));
    }
    match (subject.encrypts(), seen.canaries) {
        (false, 0) => Err("the requests were not seen in the clear although nothing encrypts them".to_owned()),
        (true, 1..) => Err(format!("the requests cross {place} in the clear")),
        (true, 0) if seen.dropped > 0 => Err(MISSED.to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Place = Place::BetweenNodes;

    #[test]
    fn only_the_expected_capture_passes() {
        let seen = |tunnel_packets, canaries, dropped| Seen { tunnel_packets, canaries, dropped, ..Seen::default() };
        let (none, floor, leno) = (Subject::None, Subject::Floor, Subject::Leno(None));
        assert!(judge(&none, LINK, &seen(0, 3, 0)).is_ok());
        assert!(judge(&floor, LINK, &seen(9, 3, 0)).is_ok());
        assert!(judge(&leno, LINK, &seen(9, 0, 0)).is_ok());
        let wireguard = Subject::Wireguard("/bin/sh".into());
        let packets = |packets, other_tcp_packets| Seen { packets, other_tcp_packets, ..Seen::default() };
        assert!(judge(&wireguard, LINK, &packets(9, 0)).is_ok());
        assert!(judge(&wireguard, LINK, &packets(9, 2)).is_err() && judge(&wireguard, LINK, &packets(0, 0)).is_err());
        assert!(judge(&wireguard, LINK, &seen(0, 1, 0)).is_err() && judge(&wireguard, LINK, &seen(0, 0, 1)).is_err());
        for (subject, seen) in [
            (&none, seen(0, 0, 0)),
            (&none, seen(5, 3, 0)),
            (&floor, seen(0, 3, 0)),
            (&floor, seen(9, 0, 0)),
            (&leno, seen(0, 0, 0)),
            (&leno, seen(9, 1, 0)),
            (&leno, seen(9, 0, 1)),
        ] {
            assert!(judge(subject, LINK, &seen).is_err(), "{subject} {seen:?}");
        }
    }
}
