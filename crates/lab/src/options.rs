//! The options of a run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use leno_local::names::StageName;

use crate::Error;
use crate::many_svc::FEWEST_SERVICES;
use crate::scenario::{Scenario, Size, Step};
use crate::subject::Subject;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The scenario.
    pub scenario: Scenario,
    /// The subjects, in the order of each round.
    pub subjects: Vec<Subject>,
    /// How often each subject is measured.
    pub rounds: usize,
    /// Seconds of each step's measured time.
    pub seconds: f64,
    /// Whether the full scenario or the quick one is measured.
    pub size: Size,
    /// Only steps with this name ([`Step::is_called`]). Empty for all.
    pub only: String,
    /// The program of every process of the lab: `leno`.
    pub program: PathBuf,
    /// The stage's name. A second run with the same name is refused, because the two would measure each other.
    pub stage: StageName,
    /// The command line, for the report.
    pub command: String,
    /// The commit that `program` was built from, if it is known.
    pub commit: Option<String>,
}

impl RunOptions {
    /// The steps to be measured, whatever the subjects are.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is nothing to measure, or when two subjects have the same name.
    pub(crate) fn chosen_steps(&self) -> Result<Vec<&Step>, Error> {
        let wrong = |text: String| Err(Error::Usage(text));
        if self.rounds == 0 {
            return wrong("without a round nothing is measured; there must be at least one".to_owned());
        }
        if self.subjects.is_empty() {
            return wrong("without a subject nothing is measured; there must be at least one".to_owned());
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = self.subjects.iter().find(|subject| !names.insert(subject.to_string())) {
            return wrong(format!(
                "subject {twice} is given twice, and nobody could tell the results apart; to measure it more often, use \
                 --rounds; two builds of one program need a run each"
            ));
        }
        let steps: Vec<_> = self.scenario.steps.iter().filter(|step| step.is_called(&self.only)).collect();
        if steps.is_empty() {
            let names = self.scenario.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(", ");
            return wrong(format!(
                "no step of {} is called {:?}; there are {names} (give one, or whole words of it)",
                self.scenario.name, self.only
            ));
        }
        Ok(steps)
    }

    /// Whether Leno's waypoint is measured as a hop.
    pub(crate) fn has_waypoint_as_hop(&self) -> bool {
        let is_hop = |subject: &Subject| {
            let chosen = self.scenario.steps.iter().filter(|step| step.is_called(&self.only));
            matches!(subject, Subject::Leno(_)) && chosen.into_iter().any(|step| step.hop().is_some())
        };
        self.subjects.iter().any(is_hop)
    }

    /// The steps to be measured on this machine.
    ///
    /// # Errors
    /// As [`Self::chosen_steps`], and when a subject can't have a part in the scenario.
    pub(crate) fn steps(&self) -> Result<Vec<&Step>, Error> {
        let wrong = |text: String| Err(Error::Usage(text));
        let steps = self.chosen_steps()?;
        for subject in &self.subjects {
            match (&self.scenario.mesh, self.scenario.has_api_server) {
                (None, _) => subject.has_proxies()?,
                (Some(_), false) => drop(subject.control_plane(&self.program)?),
                (Some(_), true) => drop(subject.real_control_plane(&self.program)?),
            }
        }
        let few = self.scenario.mesh.filter(|mesh| mesh.services < FEWEST_SERVICES);
        if let Some(mesh) = few.filter(|_| self.scenario.has_api_server) {
            return wrong(format!(
                "many-svc needs {FEWEST_SERVICES} services or more, and --services says {}: with fewer, one is rescaled again \
                 before all proxies have seen the last time",
                mesh.services
            ));
        }
        let idle = self.subjects.iter().find(|subject| !steps.iter().any(|step| subject.covers(step)));
        if let Some((subject, why)) = idle.and_then(|subject| Some((subject, subject.absent(steps.first()?)?))) {
            let text = "Give another --step, or leave it out";
            return wrong(format!("nothing would be measured of {subject}: {why}. {text}"));
        }
        Ok(steps)
    }
}
