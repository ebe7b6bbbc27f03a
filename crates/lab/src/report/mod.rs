//! The report of a run, for people and for programs.

mod card;
mod curve;
mod html;
mod markup;
mod published;
mod ratio;
mod remarks;
mod tables;
mod text;
mod verdict;

use serde::{Deserialize, Serialize};

pub use html::{html, raw_json};
pub use published::{Published, Study, study};
pub use text::text;

use crate::Error;
use crate::churn::{self, PhaseResult};
use crate::cluster_info::ClusterInfo;
use crate::identity::Identified;
use crate::measure::{Machine, now};
use crate::options::RunOptions;
use crate::results::{StepResult, figures, taken};
use crate::scenario::Scenario;
use crate::stats::{Figure, Found, sum_up};

/// Version of the report's JSON: changes when a field changes its meaning.
pub const VERSION: u32 = 1;

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the program that measured.
    pub program_version: String,
    /// The commit that this program was built from, with `-dirty` if there were other changes. `None` if it was built
    /// outside of a repository.
    pub commit: Option<String>,
    /// The command line.
    pub command: String,
    /// When the run began: RFC 3339, UTC.
    pub started: String,
    /// When it ended.
    pub ended: String,
    /// The machine that the lab ran on.
    pub machine: Machine,
    /// The cluster, if the loads ran on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterInfo>,
    /// The scenario.
    pub scenario: String,
    /// The scenario's description.
    pub about: String,
    /// The steps that were measured.
    pub steps: Vec<StepInfo>,
    /// Rounds.
    pub rounds: usize,
    /// Seconds that each step counted.
    pub seconds: f64,
    /// The subjects, in the order of each round.
    pub subjects: Vec<Identified>,
    /// What a reader must know before relying on the figures.
    pub warnings: Vec<String>,
    /// Medians, spreads and ratios.
    pub figures: Vec<Figure>,
    /// Every raw result, in the order of measurement.
    pub results: Vec<StepResult>,
    /// Every raw result of a control plane's measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub churn: Vec<PhaseResult>,
}

/// A step in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepInfo {
    /// Its name.
    pub name: String,
    /// What the step shows.
    pub about: String,
    /// Published figures measured under similar conditions.
    pub published: Vec<Published>,
}

impl Report {
    /// The report of a run that begins now.
    ///
    /// # Errors
    /// When a subject's program can't be started.
    pub(crate) async fn new(options: &RunOptions, machine: Machine) -> Result<Self, Error> {
        let mut subjects = Vec::new();
        for subject in &options.subjects {
            subjects.push(subject.identify(&options.program).await?);
        }
        Ok(Self::begin(options, machine, subjects, None))
    }

    /// The report of a run that begins now, with subjects that are known.
    pub(crate) fn begin(
        options: &RunOptions,
        machine: Machine,
        subjects: Vec<Identified>,
        cluster: Option<ClusterInfo>,
    ) -> Self {
        Self {
            version: VERSION,
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: options.commit.clone(),
            command: options.command.clone(),
            started: now(),
            ended: String::new(),
            machine,
            cluster,
            scenario: options.scenario.name.to_owned(),
            about: options.scenario.about.to_owned(),
            steps: Vec::new(),
            rounds: options.rounds,
            seconds: options.seconds,
            subjects,
            warnings: Vec::new(),
            figures: Vec::new(),
            results: Vec::new(),
            churn: Vec::new(),
        }
    }

    /// Sums up the results.
    pub(crate) fn conclude(&mut self, scenario: &Scenario) {
        self.ended = now();
        self.steps = scenario
            .steps
            .iter()
            .filter(|step| {
                self.results.iter().any(|result| result.step == step.name)
                    || self.churn.iter().any(|result| result.step == step.name)
            })
            .map(|step| StepInfo {
                name: step.name.clone(),
                about: step.about.to_owned(),
                published: step.published.map(published::figures).unwrap_or_default(),
            })
            .collect();
        let of_phases = self.churn.iter().map(|result| Found {
            step: &result.step,
            subject: &result.subject,
            round: result.round,
            values: churn::values(result, &self.churn),
        });
        let of_phases = sum_up(&of_phases.collect::<Vec<_>>());
        self.figures = figures(&self.results);
        self.figures.extend(of_phases);
        self.warnings.extend(self.churn.iter().flat_map(churn::remarks));
        self.warnings.extend(self.results.iter().flat_map(crate::results::remarks));
        self.warnings.extend(taken(&self.results));
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
