//! One step with one subject: the loads, and their cost.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use leno_local::Stage;

use super::carrier::Carrier;
use super::generator::Generator;
use super::running::Running;
use super::waypoints::waypoints;
use super::wireguard::WireGuard;
use super::{last_words, memory, ready};
use crate::Error;
use crate::load::{Event, Load, LoadSpec, Outcome};
use crate::measure::{self, Cpu, MachineCpu, Memory};
use crate::options::RunOptions;
use crate::results::{LoadResult, ProxyUse, StepResult};
use crate::scenario::{NAMESPACE, Placed, Size, Step, Via};
use crate::subject::Subject;

/// The longest wait for memory to be given back: full, and quick.
const GIVE_BACK: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));
/// The pause after opening ten thousand connections, so that proxies give back temporary memory.
const REST: Duration = Duration::from_secs(1);

/// IPv4 address of a pod of the lab.
pub(super) fn address(stage: &Stage, pod: &str) -> Option<IpAddr> {
    let listing = stage.listing();
    let pod = listing.pods.iter().find(|known| known.namespace == NAMESPACE && known.name == pod)?;
    pod.ips.first().copied()
}

/// A subject that is being measured, on a stage of its own.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a> {
    pub stage: &'a Stage,
    pub options: &'a RunOptions,
    pub subject: &'a Subject,
    /// The steps that are measured of it.
    pub covered: &'a [&'a Step],
    /// Set for a subject that is not a node's proxy.
    pub tunnel: Option<&'a WireGuard>,
    /// Set for a step that measures a hop.
    pub hop: Option<&'a Running>,
    /// The round, from 1.
    pub round: usize,
}

/// The processes that carry the traffic.
fn carriers(measured: &Measured<'_>, via: Via) -> Vec<Carrier> {
    let Measured { stage, subject, tunnel, hop, .. } = *measured;
    if let Some(running) = hop {
        return running.carriers(stage);
    }
    if matches!(via, Via::Hop(_)) {
        return Vec::new();
    }
    match tunnel {
        Some(tunnel) => tunnel.carriers(),
        None if matches!(subject, Subject::Envoy(_)) => node_proxies(stage).into_iter().filter_map(envoy_of).collect(),
        None if subject.is_mesh() => {
            let mut all = node_proxies(stage);
            if via == Via::Waypoint {
                all.extend(waypoints(stage));
            }
            all
        }
        None => Vec::new(),
    }
}

/// Memory of the processes that carry the traffic.
///
/// # Errors
/// When one of them is gone.
pub(super) fn memories(measured: &Measured<'_>, via: Via) -> Result<Vec<Memory>, Error> {
    let Measured { stage, subject, .. } = *measured;
    let gone = |carrier: &Carrier, error: io::Error| Error::Subject {
        subject: subject.to_string(),
        reason: format!(
            "the proxy of {} (pid {}) is gone{}",
            carrier.node,
            carrier.pid,
            because(stage, carrier, &error)
        ),
        log: last_words(stage),
    };
    let carriers = carriers(measured, via);
    carriers.iter().map(|carrier| measure::memory(carrier.pid).map_err(|error| gone(carrier, error))).collect()
}

/// Why a process is gone, if the stage knows. Otherwise, why it can't be inspected.
fn because(stage: &Stage, carrier: &Carrier, error: &io::Error) -> String {
    let nodes = stage.listing().nodes;
    let node = nodes.iter().find(|node| node.name == carrier.node && !node.message.is_empty());
    let told = node.map(|node| ready::without_log(&node.message, stage));
    match told {
        Some(told) => format!(": {told}"),
        // The message then says that there is no such process.
        None if error.kind() == io::ErrorKind::NotFound => String::new(),
        None => format!(" ({error})"),
    }
}

/// The warm-up of a load whose measured time is `seconds`.
pub(crate) fn warmup_seconds(seconds: f64) -> f64 {
    (seconds / 5.0).clamp(0.5, 3.0)
}

/// How long to wait for idle connections' memory.
pub(super) fn give_back_limit(size: Size) -> Duration {
    if size == Size::Full { GIVE_BACK.0 } else { GIVE_BACK.1 }
}

/// Runs a step. `fresh` is the result of [`memories`] before any traffic.
///
/// # Errors
/// When a load can't be run, or a proxy died meanwhile.
pub(super) async fn run(measured: &Measured<'_>, fresh: &[Memory], step: &Step) -> Result<StepResult, Error> {
    let Measured { stage, options, subject, covered, hop, round, .. } = *measured;
    let broken = |reason: String| Error::Subject { subject: subject.to_string(), reason, log: last_words(stage) };
    let gone = |carrier: &Carrier, error: io::Error| {
        let why = because(stage, carrier, &error);
        broken(format!("the proxy of {} (pid {}) is gone in step {}{why}", carrier.node, carrier.pid, step.name))
    };
    let now_carrying = || carriers(measured, step.via);
    let proxies = now_carrying();
    let fewest = match step.hop() {
        Some(hop) => 1 + usize::from(hop.pair),
        None => stage.listing().nodes.len() + usize::from(step.via == Via::Waypoint),
    };
    if subject.carries() && (proxies.len() < fewest || proxies.len() != fresh.len()) {
        return Err(broken("a node's proxy does not run".to_owned()));
    }
    let own = std::process::id().cast_signed();
    let others = || measure::others(own).map_err(Error::io("cannot read /proc"));
    let sample_cpu = || -> Result<(Instant, Vec<Cpu>, MachineCpu), Error> {
        let each = proxies.iter().map(|proxy| measure::cpu(proxy.pid).map_err(|error| gone(proxy, error)));
        let each = each.collect::<Result<_, _>>()?;
        Ok((Instant::now(), each, MachineCpu::now().map_err(Error::io("cannot read /proc/stat"))?))
    };

    let started = measure::now();
    let unloaded = memories(measured, step.via)?;
    let is_idle = step.loads.iter().any(|placed| matches!(placed.load, Load::Idle(_)));
    let mut generators = Vec::new();
    // Disturbing loads start first, so that they disturb from the beginning.
    let (disturbing, counted): (Vec<_>, Vec<_>) = step.loads.iter().partition(|placed| !placed.measured);
    let order: Vec<&Placed> = disturbing.into_iter().chain(counted).collect();
    for placed in &order {
        let in_mesh = subject.is_mesh();
        let address = |name: &str| {
            let service = || options.scenario.service_address(&options.program, in_mesh, covered, name);
            address(stage, name).or_else(service)
        };
        let server = address(&placed.to).ok_or_else(|| broken(format!("{} has no address", placed.to)))?;
        let load = match hop {
            Some(running) => placed.aimed_at_hop(running.address),
            None => {
                let aimed = placed.aimed_at(server, address);
                aimed.map_err(|name| broken(format!("{name} has no address")))?
            }
        };
        let warmup_seconds = warmup_seconds(options.seconds);
        let spec = LoadSpec { unattended: false, warmup_seconds, seconds: options.seconds, load };
        generators.push(Generator::start(stage, options, &step.name, &placed.from, &spec)?);
    }
    for generator in &mut generators {
        generator.expect(&Event::Started).await?;
    }
    if is_idle {
        tokio::time::sleep(REST).await;
    }
    let others_before = others()?;
    let (begun, before, machine_before) = sample_cpu()?;
    if is_idle {
        tokio::time::sleep(Duration::from_secs_f64(options.seconds)).await;
    } else if let Some(last) = generators.last_mut() {
        last.expect(&Event::Ended).await?;
    }
    let (ended, after, machine_after) = sample_cpu()?;
    let others_seconds = (others()? - others_before).max(0.0);
    let during = memories(measured, step.via)?;
    let mut outcomes = Vec::new();
    let count = generators.len();
    for (number, mut generator) in generators.into_iter().enumerate() {
        if is_idle {
            generator.stop().await?;
        }
        if is_idle || number + 1 < count {
            generator.expect(&Event::Ended).await?;
        }
        outcomes.push(generator.outcome().await?);
    }

    let limit = if is_idle { give_back_limit(options.size) } else { Duration::ZERO };
    let processes: Vec<(i32, Memory)> = proxies.iter().map(|proxy| proxy.pid).zip(fresh.iter().copied()).collect();
    let rest = memory::settle(&processes, limit).await.map_err(|(index, error)| gone(&proxies[index], error))?;
    let mut uses = Vec::new();
    for (index, proxy) in proxies.iter().enumerate() {
        uses.push(ProxyUse {
            node: proxy.node.clone(),
            cpu: after[index].since(&before[index]),
            fresh: fresh[index],
            before: unloaded[index],
            during: during[index],
            after: rest[index].memory,
            given_back_seconds: rest[index].back.filter(|_| is_idle),
        });
    }
    let restarted = now_carrying().iter().zip(&proxies).any(|(now, then)| now.restarts != then.restarts);
    if restarted {
        return Err(broken(format!("a proxy was restarted during step {}", step.name)));
    }
    if let Some(reason) = nothing(order.iter().zip(&outcomes).filter(|(placed, _)| placed.measured).map(|(_, one)| one))
    {
        return Err(broken(format!("nothing got through in step {}, in {} s: {reason}", step.name, options.seconds)));
    }
    Ok(StepResult {
        step: step.name.clone(),
        subject: subject.to_string(),
        round,
        started,
        seconds: (ended - begun).as_secs_f64(),
        loads: order
            .into_iter()
            .zip(outcomes)
            .map(|(placed, outcome)| LoadResult { placed: placed.clone(), outcome })
            .collect(),
        proxies: uses,
        machine: machine_after.since(&machine_before),
        others_seconds,
    })
}

/// If all loads found nothing, why. That is no zero in a table but a subject that does not work.
fn nothing<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<String> {
    let mut reasons = Vec::new();
    for outcome in outcomes {
        let (anything, what, errors) = match outcome {
            Outcome::Http(outcome) => (outcome.answered > 0, "no request was answered", &outcome.errors),
            Outcome::Stream(outcome) => {
                (outcome.bytes.iter().any(|bytes| *bytes > 0), "no byte moved", &outcome.errors)
            }
            Outcome::Idle(outcome) => (outcome.alive > 0, "no connection lived to the end", &outcome.errors),
        };
        if anything {
            return None;
        }
        let errors: Vec<_> = errors.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
        reasons.push(if errors.is_empty() { what.to_owned() } else { format!("{what} ({})", errors.join(", ")) });
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Envoy itself: the only child of the agent that configures it. Other node proxies have no agent.
fn envoy_of(agent: Carrier) -> Option<Carrier> {
    let pid = measure::process_tree(agent.pid).ok()?.into_iter().find(|pid| *pid != agent.pid)?;
    Some(Carrier { pid, ..agent })
}

fn node_proxies(stage: &Stage) -> Vec<Carrier> {
    let nodes = stage.listing().nodes.into_iter();
    nodes.filter_map(|node| Some(Carrier { node: node.name, pid: node.pid?, restarts: node.restarts })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{HttpOutcome, IdleOutcome, StreamOutcome};

    #[test]
    fn no_result_at_all_is_an_error() {
        let failed = || [("timed out".to_owned(), 7)].into();
        let http = |answered| Outcome::Http(HttpOutcome { answered, errors: failed(), ..HttpOutcome::default() });
        let stream =
            |bytes: [u64; 2]| Outcome::Stream(StreamOutcome { bytes: bytes.into(), ..StreamOutcome::default() });
        let idle = |alive| Outcome::Idle(IdleOutcome { opened: 9, alive, ..IdleOutcome::default() });
        assert_eq!(nothing([http(0)].iter()).unwrap(), "no request was answered (7 × timed out)");
        assert_eq!(nothing([stream([0, 0])].iter()).unwrap(), "no byte moved");
        assert_eq!(nothing([idle(0)].iter()).unwrap(), "no connection lived to the end");
        for some in [http(1), stream([0, 1]), idle(1)] {
            assert_eq!(nothing([some].iter()), None);
        }
        assert_eq!(nothing([http(0), http(1)].iter()), None, "a pod that gets nothing beside others is a finding");
    }
}
