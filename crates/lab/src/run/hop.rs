//! A step that measures a proxy by itself: the proxy is started for this step alone, in a pod of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_local::{Listing, Stage};

use super::generator::{Generator, pod_namespace};
use super::running::{Running, Runs};
use super::step::{self, Measured, address};
use crate::Error;
use crate::hop::{Place, Proxies, log_file};
use crate::load::{Event, HttpLoad, Load, LoadSpec, Outcome, Pace, Protocol, ServerSpec};
use crate::results::StepResult;
use crate::scenario::{HOP, HOP_SECOND, HOP_SERVER, NAMESPACE, Step, clear_port, waypoint_of};
use crate::subject::Subject;

/// The pause after the start, so that memory is that of a proxy at rest.
const REST: Duration = Duration::from_secs(1);
/// For a waypoint to be ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts what a step measures. `None` if that is no hop, or no proxy.
///
/// # Errors
/// What could not be started, as a text for people.
pub(super) async fn start(
    stage: &Stage,
    scratch: &Path,
    subject: &Subject,
    step: &Step,
) -> Result<Option<Running>, String> {
    let Some(hop) = step.hop() else { return Ok(None) };
    if matches!(subject, Subject::Leno(_)) {
        let gateway = waypoint_of(hop);
        stage.scale(NAMESPACE, &gateway, 1).await.map_err(|error| error.to_string())?;
        let is_there = |now: &Listing| now.is_ready() && now.pods.iter().any(|pod| pod.gateway == gateway);
        stage.wait_for(PATIENCE, is_there).await.map_err(|error| error.to_string())?;
        let waypoint = stage.listing().pods.into_iter().find(|pod| pod.gateway == gateway);
        let address = waypoint.and_then(|pod| pod.ips.first().copied()).ok_or("the waypoint has no address")?;
        let (_, protocol) = server(address, step);
        let port = clear_port(hop, protocol != Protocol::Http1);
        return Ok(Some(Running { address: (address, port).into(), runs: Runs::Waypoint(gateway) }));
    }
    let Some(peer) = subject.peer() else { return Ok(None) };
    let known = |pod: &str| address(stage, pod).ok_or_else(|| format!("pod {pod} has no address"));
    let place = |name: &'static str| {
        Ok::<_, String>(Place { name, namespace: pod_namespace(stage, name)?, address: known(name)? })
    };
    let mut places = vec![place(HOP)?];
    if hop.pair {
        places.push(place(HOP_SECOND)?);
    }
    let (server, protocol) = server(known(HOP_SERVER)?, step);
    let proxies = Proxies::start(peer, hop, protocol, places, server, &scratch.join(DIRECTORY)).await?;
    Ok(Some(Running { address: proxies.address, runs: Runs::Proxies(proxies) }))
}

/// Below the stage's directory of manifests.
const DIRECTORY: &str = "hop";

/// Where the server answers, and how.
fn server(address: IpAddr, step: &Step) -> (SocketAddr, Protocol) {
    let protocol = step.loads.iter().find_map(|placed| match &placed.load {
        Load::Http(load) => Some(load.protocol),
        _ => None,
    });
    let ports = ServerSpec::default();
    match protocol.unwrap_or_default() {
        Protocol::Http1 => ((address, ports.http).into(), Protocol::Http1),
        other => ((address, ports.http2).into(), other),
    }
}

/// Measures what was started.
///
/// # Errors
/// As [`step::run`], and if it lets pass what it should refuse.
pub(super) async fn measure(measured: &Measured<'_>, step: &Step) -> Result<StepResult, Error> {
    tokio::time::sleep(REST).await;
    let fresh = step::memories(measured, step.via)?;
    refuses(measured, step).await?;
    step::run(measured, &fresh, step).await
}

/// Checks that a proxy does what it is told: a request that breaks its rule, or that it has no route for, must be refused.
/// One that only passes everything on would win.
async fn refuses(measured: &Measured<'_>, step: &Step) -> Result<(), Error> {
    let Measured { stage, options, subject, hop: Some(running), .. } = *measured else { return Ok(()) };
    let Some(hop) = step.hop().filter(|hop| hop.rule || hop.routes > 0) else { return Ok(()) };
    let Some(placed) = step.loads.first() else { return Ok(()) };
    let Load::Http(load) = placed.aimed_at_hop(running.address) else { return Ok(()) };
    let pace = Pace::Open { per_second: 50.0 };
    // Neither the rule's field nor a route's path.
    let load = HttpLoad { walk: None, headers: Vec::new(), connections: 1, streams: 1, pace, ..load };
    let spec = LoadSpec { unattended: false, warmup_seconds: 0.1, seconds: 0.2, load: Load::Http(load) };
    let mut generator = Generator::start(stage, options, &step.name, &placed.from, &spec)?;
    generator.expect(&Event::Started).await?;
    generator.expect(&Event::Ended).await?;
    let outcome = generator.outcome().await?;
    // Traefik's rules are its routes.
    let allowed: &[&str] = if hop.rule { &["status 403", "status 404"] } else { &["status 404", "status 503"] };
    match &outcome {
        Outcome::Http(found)
            if found.answered == 0
                && found.error_count() > 0
                && found.errors.keys().all(|error| allowed.contains(&error.as_str())) =>
        {
            Ok(())
        }
        _ => Err(Error::Subject {
            subject: subject.to_string(),
            reason: format!("in step {} it does not refuse what it should: {outcome:?}", step.name),
            log: last_words(stage, 5),
        }),
    }
}

/// The last lines of the proxies' logs.
pub(super) fn last_words(stage: &Stage, most: usize) -> String {
    let mut text = String::new();
    for place in [HOP, HOP_SECOND] {
        let log = std::fs::read(log_file(&directory(stage), place)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(most)..] {
            text.push_str(&format!("{place}: {line}\n"));
        }
    }
    text
}

fn directory(stage: &Stage) -> PathBuf {
    stage.run_dir().join("manifests").join(DIRECTORY)
}
