//! The options of a run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use leno_local::names::StageName;

use crate::Error;
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
    /// Seconds that each step counts.
    pub seconds: f64,
    /// How much of the scenario.
    pub size: Size,
    /// Only steps that are called this ([`Step::is_called`]); empty for all.
    pub only: String,
    /// The program that is every process of the lab: `leno`.
    pub program: PathBuf,
    /// Name of the stage. A second run under the same name is refused, as it should be: both would measure each other.
    pub stage: StageName,
    /// The command line, for the report.
    pub command: String,
    /// The commit that `program` was built from, if it is known.
    pub commit: Option<String>,
}

impl RunOptions {
    /// The steps to be measured.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is nothing to measure, or no way to tell one result from another.
    pub(crate) fn steps(&self) -> Result<Vec<&Step>, Error> {
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
        if self.scenario.mesh.is_some() {
            for subject in &self.subjects {
                subject.control_plane(&self.program)?;
            }
        }
        let idle = self.subjects.iter().find(|subject| !steps.iter().any(|step| subject.covers(step)));
        if let Some((subject, why)) = idle.and_then(|subject| Some((subject, subject.absent_in_node()?))) {
            return wrong(format!(
                "nothing would be measured of {subject}: {why}. Give a --step across nodes, or leave it out"
            ));
        }
        Ok(steps)
    }
}
