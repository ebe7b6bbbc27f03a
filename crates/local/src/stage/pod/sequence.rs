//! In which order a pod's containers are started, and what all of them together are: init containers one after the other,
//! each once the one before it has ended well, then the others. An init container that runs beside them (a sidecar) has to
//! run for the next one to begin, and ends after them.

use std::ops::Range;

use leno_objects::{PodPhase, PodSpec};

use crate::stage::pod::container::State;

/// The containers of a pod, init containers first, and how many were started.
#[derive(Debug)]
pub(crate) struct Sequence {
    names: Vec<String>,
    /// For each init container, whether it runs beside the others.
    sidecars: Vec<bool>,
    started: usize,
}

/// A pod as it is now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// `None`: as before.
    pub phase: Option<PodPhase>,
    pub ready: bool,
    /// One word, as `kubectl get pods` shows it.
    pub status: String,
    /// Why it isn't what it should be.
    pub message: String,
}

impl Sequence {
    pub(crate) fn new(spec: &PodSpec) -> Self {
        Self {
            names: spec.all_containers().map(|container| container.name.clone()).collect(),
            sidecars: spec.init_containers.iter().map(leno_objects::Container::is_sidecar).collect(),
            started: 0,
        }
    }

    /// How many containers there are.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Which of them are the pod's own, after the init containers.
    pub(crate) fn main(&self) -> Range<usize> {
        self.sidecars.len()..self.names.len()
    }

    pub(crate) fn is_sidecar(&self, index: usize) -> bool {
        self.sidecars.get(index) == Some(&true)
    }

    /// Whether the container at `index` is one that has to end before the next begins.
    pub(crate) fn is_step(&self, index: usize) -> bool {
        self.sidecars.get(index) == Some(&false)
    }

    /// Those to start now, and to count as started from here on. Empty until something changes.
    pub(crate) fn next(&mut self, states: &[State]) -> Range<usize> {
        let last = self.started.checked_sub(1);
        let passed = last.is_none_or(|last| match states.get(last) {
            Some(State::Running { .. }) => self.is_sidecar(last),
            Some(State::Ended { code: 0 }) => self.is_step(last),
            _ => false,
        });
        let begin = self.started;
        if passed && begin < self.names.len() {
            self.started = if begin < self.sidecars.len() { begin + 1 } else { self.names.len() };
        }
        begin..self.started
    }

    /// Whether the pod's own containers have all ended for good: then nothing is left for its sidecars to do.
    pub(crate) fn is_over(&self, states: &[State]) -> bool {
        states.get(self.main()).is_some_and(|main| main.iter().all(|state| matches!(state, State::Ended { .. })))
    }

    pub(crate) fn summary(&self, states: &[State]) -> Summary {
        let named = |index: usize, text: &str| match self.names.get(index) {
            Some(name) if index < self.sidecars.len() => format!("init container {name}: {text}"),
            _ => text.to_owned(),
        };
        let failed_step = states.iter().enumerate().find_map(|(index, state)| match state {
            State::Ended { code } if *code != 0 && self.is_step(index) => Some((index, *code)),
            _ => None,
        });
        if let Some((index, code)) = failed_step {
            let message = named(index, &format!("ended with exit code {code}"));
            return Summary { phase: Some(PodPhase::Failed), ready: false, status: "Init:Error".to_owned(), message };
        }
        let waiting = states.iter().take(self.started).enumerate().find_map(|(index, state)| match state {
            State::Waiting { reason, message } => Some((index, *reason, named(index, message))),
            _ => None,
        });
        if self.started <= self.sidecars.len() && !self.sidecars.is_empty() {
            let done = |index: &usize| match states.get(*index) {
                Some(State::Running { .. }) => self.is_sidecar(*index),
                Some(State::Ended { .. }) => true,
                _ => false,
            };
            let progress = format!("Init:{}/{}", (0..self.sidecars.len()).filter(done).count(), self.sidecars.len());
            let (status, message) = match waiting {
                Some((_, reason, message)) if !message.is_empty() && reason != STARTING => {
                    (format!("Init:{reason}"), message)
                }
                Some((_, _, message)) => (progress, message.trim_end_matches(": ").to_owned()),
                None => (progress, String::new()),
            };
            return Summary { phase: None, ready: false, status, message };
        }
        self.of_main(states, waiting.map(|(_, reason, message)| (reason, message)), named)
    }

    /// Once the init containers have done their part.
    fn of_main(
        &self,
        states: &[State],
        waiting: Option<(&'static str, String)>,
        named: impl Fn(usize, &str) -> String,
    ) -> Summary {
        let main = states.get(self.main()).unwrap_or_default();
        let over = self.is_over(states);
        let failed = main.iter().any(|state| matches!(state, State::Ended { code } if *code != 0));
        let phase = match (over, failed) {
            (true, true) => Some(PodPhase::Failed),
            (true, false) => Some(PodPhase::Succeeded),
            _ if main.iter().any(|state| matches!(state, State::Running { .. })) => Some(PodPhase::Running),
            _ => None,
        };
        let serving = |(index, state): (usize, &State)| {
            self.is_step(index) || matches!(state, State::Running { ready: true, .. })
        };
        let ready = states.iter().enumerate().all(serving);
        let unready = states.iter().enumerate().find_map(|(index, state)| match state {
            State::Running { ready: false, message } => Some(named(index, message)),
            State::Ended { code } if *code != 0 && !self.is_sidecar(index) => {
                Some(named(index, &format!("ended with exit code {code}")))
            }
            _ => None,
        });
        let (status, message) = match waiting {
            _ if over => (if failed { "Error" } else { "Completed" }.to_owned(), if failed { unready } else { None }),
            Some((reason, message)) => (reason.to_owned(), Some(message)),
            None => ("Running".to_owned(), unready),
        };
        Summary { phase, ready, status, message: message.unwrap_or_default() }
    }
}

/// What a container waits for that has not been started for the first time.
pub(crate) const STARTING: &str = "ContainerCreating";

#[cfg(test)]
#[path = "sequence_tests.rs"]
mod tests;
