//! A run: subjects take turns, round after round, so that a drift of the machine affects all of them.
//!
//! Every subject has a fresh stage in every round, so that no measurement influences the next.

mod alone;
mod carrier;
mod generator;
mod hop;
mod memory;
mod plan;
mod proof;
mod ready;
mod running;
mod step;
mod waypoints;
mod wireguard;

use std::collections::BTreeMap;
use std::time::Duration;

use leno_local::{Stage, StageOptions};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(crate) use alone::Alone;
pub(crate) use plan::{Plan, in_words};
pub(crate) use step::warmup_seconds;

use crate::Error;
use crate::churn::{self, Phase, Shape};
use crate::many_svc;
use crate::measure::{Machine, busy_cores};
pub use crate::options::RunOptions;
use crate::report::Report;
use crate::results::{QUIET, StepResult, headline};
use crate::scenario::{NODES, Step, Via};
use crate::subject::Subject;
use wireguard::WireGuard;
pub use wireguard::remove_sockets;

/// If memory matters, it is first read this long after the stage is ready. A proxy that reports ready may still be
/// fetching certificates and giving back memory that it needed to start.
const FRESH: Duration = Duration::from_secs(3);
/// How long the machine is watched before anything is measured.
const LOOK: Duration = Duration::from_secs(2);
/// Open descriptors of a stage and its proxies besides those for idle connections, with a margin.
const ENOUGH_DESCRIPTORS: u64 = 1024;
/// How long to wait for the operator's signal after a failure, because the signal may be its cause.
const ECHO: Duration = Duration::from_millis(200);
/// The cargo profile of shipped builds.
const SHIPPED: &str = "dist";
/// How many log lines of a failed subject are shown.
const LOG_LINES: usize = 20;

/// News of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub enum Progress {
    /// A remark about the machine or a result that the reader must know.
    Warning {
        /// The text.
        text: String,
    },
    /// A subject's turn begins.
    Turn {
        /// Subject.
        subject: String,
        /// Round, from 1.
        round: usize,
        /// Rounds in all.
        rounds: usize,
        /// Estimated seconds until the run ends.
        left_seconds: f64,
    },
    /// A step begins.
    Begins {
        /// Its name.
        step: String,
        /// Estimated seconds until the run ends.
        left_seconds: f64,
    },
    /// The operator has interrupted the run. With hundreds of pods it takes seconds to end them.
    Stopping,
    /// A step is done.
    Step {
        /// Its name.
        step: String,
        /// Its main number, in words.
        summary: String,
    },
}

/// Runs everything. `stop` becomes true when the operator asks for the end.
///
/// # Errors
/// The run ends with the first subject that can't be started or doesn't work, because a report with a gap would compare
/// what can't be compared. Nothing is left behind.
pub async fn run(
    options: &RunOptions,
    stop: watch::Receiver<bool>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    let steps = options.steps()?;
    if !options.program.exists() {
        let what =
            "cannot start this program's own file again and again, as the lab does; was it built anew meanwhile?";
        let gone = std::io::Error::new(std::io::ErrorKind::NotFound, format!("{} is gone", options.program.display()));
        return Err(Error::io(what)(gone));
    }
    // Ten thousand connections need descriptors in the proxies as well, which inherit the limit.
    let descriptors = crate::load::raise_descriptor_limit();
    if options.scenario.mesh.is_none() {
        alone::clear(&options.stage).await?;
    }
    let looking = async {
        let busy = busy_cores(LOOK).await.map_err(Error::io("cannot read /proc/stat"))?;
        let machine = Machine { busy_cores: busy, descriptors, ..Machine::describe() };
        Ok((busy, Report::new(options, machine).await?))
    };
    let mut interrupted = stop.clone();
    let (busy, mut report) = tokio::select! {
        looked = looking => looked?,
        Ok(_) = interrupted.wait_for(|stop| *stop) => return Err(Error::Interrupted),
    };
    for program in report.subjects.iter().flat_map(|subject| &subject.programs) {
        if program.version.is_none() {
            report.warnings.push(format!("{} does not tell its version", program.path));
        }
    }
    let mut doubts = Vec::new();
    for program in report.subjects.iter().flat_map(|subject| &subject.programs) {
        if let Some(profile) = program.profile().filter(|profile| *profile != SHIPPED) {
            doubts.push(format!(
                "{} was built by the profile `{profile}`, not as Leno is shipped: its figures are no measure of Leno's. \
                 Build it with `cargo build --profile {SHIPPED}` and run target/{SHIPPED}/leno",
                program.path
            ));
        }
    }
    if busy > QUIET {
        doubts.push(format!(
            "the machine is not quiet: {busy:.2} of {} cores are at work before anything is measured; \
             figures of this run will be worse and less steady than they should be",
            report.machine.cores
        ));
    }
    let proxies = options.scenario.mesh.map_or(0, |mesh| mesh.proxies as u64);
    let most = steps.iter().map(|step| step.idle_connections()).max().unwrap_or(0);
    if descriptors < most * 4 {
        doubts.push(format!(
            "a process may have {descriptors} open descriptors here: proxies that need more than {:.1} for a connection \
             can't hold {most} of them. Raise the limit with `ulimit -Hn`",
            descriptors as f64 / most.max(1) as f64
        ));
    } else if descriptors < ENOUGH_DESCRIPTORS + proxies {
        doubts.push(format!(
            "a process may have only {descriptors} open descriptors here: the likely cause of whatever hangs or fails. Raise \
             the limit with `ulimit -Hn`"
        ));
    }
    for text in doubts {
        progress(Progress::Warning { text: text.clone() });
        report.warnings.push(text);
    }
    let mut plan = Plan::new(options, &steps);
    for round in 1..=options.rounds {
        for subject in &options.subjects {
            let (name, rounds, left_seconds) = (subject.to_string(), options.rounds, plan.left());
            progress(Progress::Turn { subject: name, round, rounds, left_seconds });
            if let Some(mesh) = options.scenario.mesh {
                let turn = control_plane(options, subject, round, mesh, &steps);
                let mut tell = |news: churn::News<'_>| match news {
                    churn::News::Stops => progress(Progress::Stopping),
                    churn::News::Begins(phase) => {
                        progress(Progress::Begins { step: phase.name().to_owned(), left_seconds: plan.left() });
                    }
                    churn::News::Done(result) => {
                        if let Some(step) = steps.iter().find(|step| step.name == result.step) {
                            plan.step_done(options, step);
                        }
                        progress(Progress::Step { step: result.step.clone(), summary: churn::headline(result) });
                    }
                };
                let stop = stop.clone();
                let results = if options.scenario.has_api_server {
                    many_svc::run(subject, &options.program, &turn, stop, &mut tell).await?
                } else {
                    churn::run(subject.control_plane(&options.program)?, &turn, stop, &mut tell).await?
                };
                report.churn.extend(results);
                plan.turn_begun();
                continue;
            }
            let mut tell = |news: News<'_>| match news {
                News::Stands => plan.turn_begun(),
                News::Stops => progress(Progress::Stopping),
                News::Begins(step) => {
                    progress(Progress::Begins { step: step.name.clone(), left_seconds: plan.left() });
                }
                News::Done(step, result) => {
                    plan.step_done(options, step);
                    progress(Progress::Step { step: step.name.clone(), summary: headline(result) });
                }
            };
            let results = turn(options, subject, round, &steps, stop.clone(), &mut tell).await?;
            report.results.extend(results);
        }
    }
    for subject in &options.subjects {
        let mut skipped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for step in &steps {
            if let Some(why) = subject.absent(step) {
                skipped.entry(why).or_default().push(&step.name);
            }
        }
        for (why, steps) in skipped {
            let text = format!("{subject} has no part in {}: {why}", steps.join(", "));
            progress(Progress::Warning { text: text.clone() });
            report.warnings.push(text);
        }
    }
    report.conclude(&options.scenario);
    for warning in &report.warnings {
        tracing::debug!(warning, "noted");
    }
    Ok(report)
}

/// A turn of a control plane.
fn control_plane(options: &RunOptions, subject: &Subject, round: usize, shape: Shape, steps: &[&Step]) -> churn::Turn {
    let phases = steps.iter().filter_map(|step| Phase::of(&step.name)).collect();
    let all: &[Phase] = if options.scenario.has_api_server { &Phase::MANY_SVC } else { &Phase::CHURN };
    churn::Turn { subject: subject.to_string(), round, shape, seconds: options.seconds, all, phases }
}

/// Progress of a turn.
enum News<'a> {
    Stands,
    Stops,
    Begins(&'a Step),
    Done(&'a Step, &'a StepResult),
}

/// One subject in one round.
async fn turn(
    options: &RunOptions,
    subject: &Subject,
    round: usize,
    steps: &[&Step],
    mut stop: watch::Receiver<bool>,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<Vec<StepResult>, Error> {
    if *stop.borrow() {
        return Err(Error::Interrupted);
    }
    let refused = |source| match source {
        leno_local::Error::AlreadyRunning { name, pid } => {
            Error::StageTaken { name, pid: Some(pid).filter(|pid| *pid > 0) }
        }
        source => Error::Stage { subject: subject.to_string(), source: Box::new(source), log: String::new() },
    };
    // Removed with the stage. If this process is killed, the next run of its name removes it.
    let scratch = Stage::manifest_dir(&options.stage).map_err(refused)?;
    let manifests = scratch.join("lab.yaml");
    let covered: Vec<&Step> = steps.iter().copied().filter(|step| subject.covers(step)).collect();
    // A program that is measured as a hop is not also the nodes' proxy.
    let is_hop = subject.peer().is_some() && covered.iter().all(|step| step.hop().is_some());
    let on_nodes = if is_hop { &Subject::None } else { subject };
    let text = options.scenario.manifests(&options.program, on_nodes.is_mesh(), &covered)?;
    std::fs::write(&manifests, text).map_err(Error::io(format!("cannot write {}", manifests.display())))?;
    let stage = Stage::start(StageOptions {
        nodes: NODES,
        manifests: vec![manifests],
        watch: false,
        proxies: on_nodes.proxies(&options.program, &scratch)?,
        executable: Some(options.program.clone()),
        ..StageOptions::new(options.stage.clone())
    })
    .await
    .map_err(refused)?;

    let mut tunnel = None;
    let failed = |reason| Error::Subject { subject: subject.to_string(), reason, log: last_words(&stage) };
    let measuring = async {
        ready::wait(&stage, subject).await.map_err(failed)?;
        let measuring = async {
            if let Subject::Wireguard(program) = subject {
                tunnel = Some(WireGuard::start(&stage, program).await.map_err(failed)?);
            }
            if steps.iter().any(|step| step.idle_connections() > 0) {
                tokio::time::sleep(FRESH).await;
            }
            let measured = step::Measured {
                stage: &stage,
                options,
                subject,
                covered: &covered,
                tunnel: tunnel.as_ref(),
                hop: None,
                round,
            };
            let fresh = step::memories(&measured, Via::Nodes)?;
            let fresh_with_waypoint = step::memories(&measured, Via::Waypoint)?;
            proof::check(&stage, options, subject, steps).await?;
            tell(News::Stands);
            let mut results = Vec::new();
            for &step in &covered {
                tell(News::Begins(step));
                let result = match hop::start(&stage, &scratch, subject, step).await.map_err(failed)? {
                    Some(running) => {
                        let measured = step::Measured { hop: Some(&running), ..measured };
                        let result = hop::measure(&measured, step).await?;
                        running.stop(&stage).await.map_err(failed)?;
                        result
                    }
                    None if step.via == Via::Waypoint => step::run(&measured, &fresh_with_waypoint, step).await?,
                    None => step::run(&measured, &fresh, step).await?,
                };
                tell(News::Done(step, &result));
                results.push(result);
            }
            Ok(results)
        };
        tokio::select! {
            results = measuring => results,
            // Check before the load, not an hour later.
            reason = ready::death(&stage) => Err(failed(reason)),
        }
    };
    let mut outcome = tokio::select! {
        outcome = measuring => outcome,
        _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
        () = stage.down_requested() => Err(Error::Interrupted),
    };
    // Ctrl-C reaches the subject's programs as well, and the end of one may be noticed before the signal.
    if outcome.is_err() && matches!(tokio::time::timeout(ECHO, stop.wait_for(|stop| *stop)).await, Ok(Ok(_))) {
        outcome = Err(Error::Interrupted);
    }
    if matches!(outcome, Err(Error::Interrupted)) {
        tell(News::Stops);
    }
    // The log shows whether the subject is the cause.
    if let Err(Error::Load { step, reason }) = &outcome
        && subject.carries()
    {
        outcome = Err(failed(format!("the load of step {step} failed: {reason}")));
    }
    if let Some(tunnel) = tunnel {
        tunnel.stop().await;
    }
    stage.shutdown().await;
    outcome
}

/// The last log lines of both proxies, or tunnels.
fn last_words(stage: &Stage) -> String {
    let mut text = String::new();
    for node in stage.listing().nodes {
        let log = std::fs::read(wireguard::log_file(stage, &node.name))
            .or_else(|_| std::fs::read(stage.run_dir().join(&node.name).join("proxy.log")))
            .unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            text.push_str(&format!("{}: {line}\n", node.name));
        }
        if lines.is_empty() {
            text.push_str(&format!("{}: (it wrote nothing)\n", node.name));
        }
    }
    text.push_str(&hop::last_words(stage, LOG_LINES));
    text
}
