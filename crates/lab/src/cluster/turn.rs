//! One subject in one round: two servers, and one pod for each step's load.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::application;
use super::nodes::Nodes;
use super::pods::Pods;
use crate::Error;
use crate::load::{Event, HttpOutcome, IdleOutcome, LoadSpec, Outcome, ServerSpec, StreamOutcome};
use crate::measure::{MachineCpu, now};
use crate::options::RunOptions;
use crate::results::{LoadResult, StepResult};
use crate::run::warmup_seconds;
use crate::scenario::{FAR, NEAR, Step};
use crate::subject::Subject;

/// For a load's pod to start and to report, besides its time.
const PATIENCE: Duration = Duration::from_secs(100);

pub(super) struct Turn<'a> {
    pub(super) pods: Pods<'a>,
    pub(super) nodes: &'a Nodes,
    pub(super) options: &'a RunOptions,
    pub(super) subject: &'a Subject,
    /// The class of waypoints.
    pub(super) class: &'static str,
    /// Turns so far in this run, this one included.
    pub(super) number: usize,
    pub(super) round: usize,
}

/// Addresses of servers by their names in scenarios.
pub(super) type Servers = BTreeMap<String, IpAddr>;

impl Turn<'_> {
    /// Starts the servers.
    pub(super) async fn servers(&self) -> Result<Servers, Error> {
        let spec = ServerSpec::default();
        let spec = serde_json::to_string(&spec).map_err(|source| Error::Spec { what: "server", source })?;
        let places = [(NEAR, &self.nodes.near), (FAR, &self.nodes.far)];
        for (name, node) in places {
            self.pods.start(name, node, &["lab-server", &spec], true).await?;
        }
        let mut servers = Servers::new();
        for (name, _) in places {
            servers.insert(name.to_owned(), self.pods.ready(name).await?);
        }
        if let Some(application) = self.options.scenario.application {
            let steps = self.options.chosen_steps()?;
            servers.extend(application::start(application, &self.pods, self.nodes, self.class, &steps).await?);
        }
        Ok(servers)
    }

    /// Runs a step's load to its end.
    pub(super) async fn step(&self, servers: &Servers, index: usize, step: &Step) -> Result<StepResult, Error> {
        let [placed] = &step.loads[..] else {
            return Err(Error::Usage(format!(
                "step {} has several loads, which a cluster's run can't have",
                step.name
            )));
        };
        let failed = |reason: String| Error::Load { step: step.name.clone(), reason };
        let server = servers.get(&placed.to).ok_or_else(|| failed(format!("there is no {}", placed.to)))?;
        let seconds = self.options.seconds;
        let spec = LoadSpec {
            warmup_seconds: warmup_seconds(seconds),
            seconds,
            unattended: true,
            load: placed
                .aimed_at(*server, |name| servers.get(name).copied())
                .map_err(|name| failed(format!("there is no {name}")))?,
        };
        let text = serde_json::to_string(&spec).map_err(|source| Error::Spec { what: "load", source })?;
        let name = format!("load-{}-{}", self.number, index + 1);
        let started = now();
        self.pods.start(&name, &self.nodes.near, &["lab-load", &text], false).await?;
        let patience = PATIENCE + Duration::from_secs_f64(spec.warmup_seconds + 2.0 * seconds);
        let log = self.pods.log(&name, patience).await?;
        let outcome = outcome(&log).map_err(failed)?;
        if let Some(reason) = nothing(&outcome) {
            return Err(Error::Subject {
                subject: self.subject.to_string(),
                reason: format!("nothing got through in step {}: {reason}", step.name),
                log: String::new(),
            });
        }
        Ok(StepResult {
            step: step.name.clone(),
            subject: self.subject.to_string(),
            round: self.round,
            started,
            seconds: lasted(&outcome).unwrap_or(seconds),
            loads: vec![LoadResult { placed: placed.clone(), outcome }],
            proxies: Vec::new(),
            machine: MachineCpu::default(),
            others_seconds: 0.0,
        })
    }

    /// Removes the application, the servers and all that is left of loads.
    pub(super) async fn end(&self) -> Result<(), Error> {
        if self.options.scenario.application.is_some() {
            application::remove(self.pods.client).await?;
        }
        self.pods.remove_all().await
    }
}

/// The result that a generator wrote.
fn outcome(log: &str) -> Result<Outcome, String> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
    let mut last = None;
    for event in events {
        match event {
            Event::Result { outcome } => return Ok(*outcome),
            Event::Failed { reason } => return Err(reason),
            event => last = Some(event),
        }
    }
    let line = log.lines().last().unwrap_or_default();
    Err(match last {
        Some(event) => format!("it ended after {event:?} without a result; its last line is {line:?}"),
        None => format!("its image has no leno that can run a load: it says {line:?}"),
    })
}

fn lasted(outcome: &Outcome) -> Option<f64> {
    match outcome {
        Outcome::Http(HttpOutcome { seconds, .. }) | Outcome::Stream(StreamOutcome { seconds, .. }) => Some(*seconds),
        Outcome::Idle(_) => None,
    }
}

/// If nothing got through, why.
fn nothing(outcome: &Outcome) -> Option<String> {
    let (anything, errors) = match outcome {
        Outcome::Http(HttpOutcome { answered, errors, .. }) => (*answered > 0, errors),
        Outcome::Stream(StreamOutcome { bytes, errors, .. }) => (bytes.iter().any(|bytes| *bytes > 0), errors),
        Outcome::Idle(IdleOutcome { alive, errors, .. }) => (*alive > 0, errors),
    };
    let errors: Vec<_> = errors.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
    (!anything).then(|| if errors.is_empty() { "no reason is known".to_owned() } else { errors.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_a_log() {
        let log = "{\"event\":\"started\"}\nnoise\n{\"event\":\"ended\"}\n\
                   {\"event\":\"result\",\"outcome\":{\"kind\":\"stream\",\"seconds\":2.0,\"bytes\":[5],\"tenths\":[5],\"errors\":{}}}\n";
        let found = outcome(log).unwrap();
        assert_eq!((lasted(&found), nothing(&found)), (Some(2.0), None));
        assert_eq!(outcome("{\"event\":\"failed\",\"reason\":\"refused\"}").unwrap_err(), "refused");
        assert!(outcome("{\"event\":\"started\"}").unwrap_err().contains("without a result"));
        assert!(outcome("error: unknown command").unwrap_err().contains("unknown command"));
    }

    #[test]
    fn a_step_in_which_nothing_moved_has_no_result() {
        let idle = |alive| {
            Outcome::Idle(IdleOutcome { alive, errors: [("timed out".to_owned(), 3)].into(), ..IdleOutcome::default() })
        };
        assert_eq!(nothing(&idle(0)).unwrap(), "3 × timed out");
        assert_eq!(nothing(&idle(1)), None);
    }
}
