//! One thing that `.ci/run` does: a command, what it builds on, and how it shares the machine with the others.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How a step shares the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Beside others, as long as all of them need no more than two cores; this one needs so many tenths of one.
    Front { tenths: u32 },
    /// In what time the others leave, at the lowest priority, one step after the other.
    Behind,
    /// It measures the machine: nothing else runs, and what is in the background stands still. If it fails, it is run once
    /// more, and both results are told.
    Alone,
}

/// A step that has not begun yet.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) place: Place,
    /// Steps that must have passed. If one did not, this one is left out.
    pub(super) needs: Vec<String>,
    /// Steps that must have ended, however.
    pub(super) follows: Vec<String>,
    /// After this time it is ended and has failed.
    pub(super) limit: Duration,
    pub(super) command: Vec<OsString>,
    pub(super) directory: Option<PathBuf>,
    pub(super) environment: Vec<(String, OsString)>,
    /// Variables that name a program, and are set only if it is there when the step begins.
    pub(super) programs: Vec<(String, PathBuf)>,
    pub(super) is_quiet: bool,
}

/// Limit of a step that names none.
const LIMIT: Duration = Duration::from_secs(5 * 60);

impl Step {
    pub(super) fn new(name: &str, place: Place) -> Self {
        Self {
            name: name.to_owned(),
            place,
            needs: Vec::new(),
            follows: Vec::new(),
            limit: LIMIT,
            command: Vec::new(),
            directory: None,
            environment: Vec::new(),
            programs: Vec::new(),
            is_quiet: false,
        }
    }

    pub(super) fn runs<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    pub(super) fn needs(mut self, names: &[&str]) -> Self {
        self.needs.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    pub(super) fn follows(mut self, names: &[&str]) -> Self {
        self.follows.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    pub(super) fn minutes(mut self, minutes: u64) -> Self {
        self.limit = Duration::from_secs(minutes * 60);
        self
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Its output is of no interest unless it fails.
    pub(super) fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// What it takes of the front's two cores.
    pub(super) fn front_tenths(&self) -> u32 {
        match self.place {
            Place::Front { tenths } => tenths,
            Place::Behind | Place::Alone => 0,
        }
    }
}
