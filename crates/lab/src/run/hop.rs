//! A step that measures a proxy by itself: the proxy is started for this step alone, in a pod of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_local::Stage;

use super::generator::pod_namespace;
use super::step::{self, Measured, address};
use crate::Error;
use crate::hop::{Place, Proxies, log_file};
use crate::load::{Load, Protocol, ServerSpec};
use crate::results::StepResult;
use crate::scenario::{HOP, HOP_SECOND, HOP_SERVER, Step};
use crate::subject::Subject;

/// The pause after the start, so that memory is that of a proxy at rest.
const REST: Duration = Duration::from_secs(1);

/// Starts what a step measures. `None` if that is no hop, or no proxy.
///
/// # Errors
/// What could not be started, as a text for people.
pub(super) async fn start(
    stage: &Stage,
    scratch: &Path,
    subject: &Subject,
    step: &Step,
) -> Result<Option<Proxies>, String> {
    let (Some(hop), Some(peer)) = (step.hop(), subject.peer()) else { return Ok(None) };
    let known = |pod: &str| address(stage, pod).ok_or_else(|| format!("pod {pod} has no address"));
    let place = |name: &'static str| {
        Ok::<_, String>(Place { name, namespace: pod_namespace(stage, name)?, address: known(name)? })
    };
    let mut places = vec![place(HOP)?];
    if hop.pair {
        places.push(place(HOP_SECOND)?);
    }
    let (server, protocol) = server(known(HOP_SERVER)?, step);
    Proxies::start(peer, hop, protocol, places, server, &scratch.join(DIRECTORY)).await.map(Some)
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
/// As [`step::run`].
pub(super) async fn measure(measured: &Measured<'_>, step: &Step) -> Result<StepResult, Error> {
    tokio::time::sleep(REST).await;
    let fresh = step::memories(measured, step.via)?;
    step::run(measured, &fresh, step).await
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
