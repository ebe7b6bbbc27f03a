//! Which step may start when. A pure state machine: it is told what started and what ended, and says what comes next.

use super::step::{Place, Step};

/// What front steps may weigh together, in tenths of a core: two cores.
pub(super) const FRONT_TENTHS: u32 = 20;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    /// It measures, failed once, and passed when it ran once more with nothing beside it.
    PassedAgain,
    Failed(String),
    /// What it needs can't be had on this machine.
    Skipped(String),
    /// A step that it builds on did not pass.
    LeftOut(String),
}

impl Verdict {
    fn is_good(&self) -> bool {
        matches!(self, Self::Passed | Self::PassedAgain)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Ended(Verdict),
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    /// Steps to start, by their number.
    pub(super) start: Vec<usize>,
    /// Steps that will not run, and why.
    pub(super) left_out: Vec<(usize, String)>,
}

/// The steps of a run and how far each is.
#[derive(Debug)]
pub(super) struct Schedule {
    steps: Vec<Step>,
    states: Vec<State>,
}

impl Schedule {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self { states: vec![State::Waiting; steps.len()], steps }
    }

    /// More steps, known only now.
    pub(super) fn add(&mut self, steps: Vec<Step>) {
        self.states.extend(vec![State::Waiting; steps.len()]);
        self.steps.extend(steps);
    }

    pub(super) fn step(&self, number: usize) -> &Step {
        &self.steps[number]
    }

    pub(super) fn ended(&mut self, number: usize, verdict: Verdict) {
        self.states[number] = State::Ended(verdict);
    }

    /// Marks what it returns as running or ended.
    pub(super) fn next(&mut self) -> Next {
        let mut next = Next::default();

        // What is left out may leave out more.
        while let Some((number, why)) = self.lacking() {
            self.states[number] = State::Ended(Verdict::LeftOut(why.clone()));
            next.left_out.push((number, why));
        }

        while let Some(number) = self.startable() {
            self.states[number] = State::Running;
            next.start.push(number);
        }
        next
    }

    /// Whether what runs in the background has to stand still.
    pub(super) fn is_anything_alone(&self) -> bool {
        self.running().any(|step| step.place == Place::Alone)
    }

    /// Whether every step has ended.
    pub(super) fn is_done(&self) -> bool {
        self.states.iter().all(|state| matches!(state, State::Ended(_)))
    }

    fn running(&self) -> impl Iterator<Item = &Step> {
        let both = self.steps.iter().zip(&self.states);
        both.filter(|(_, state)| **state == State::Running).map(|(step, _)| step)
    }

    fn state_of(&self, name: &str) -> Option<&State> {
        let number = self.steps.iter().position(|step| step.name == name)?;
        Some(&self.states[number])
    }

    /// A waiting step that builds on one which did not pass, and what did not.
    fn lacking(&self) -> Option<(usize, String)> {
        self.waiting().find_map(|(number, step)| {
            let bad = step.needs.iter().find(|name| match self.state_of(name) {
                Some(State::Ended(verdict)) => !verdict.is_good(),
                Some(_) => false,
                None => true,
            })?;
            Some((number, bad.clone()))
        })
    }

    /// The first waiting step, in the order of the list, that may run now.
    fn startable(&self) -> Option<usize> {
        let is_ready = |step: &Step| {
            let is_over = |name: &String| !matches!(self.state_of(name), Some(State::Waiting | State::Running));
            step.needs.iter().chain(&step.follows).all(is_over)
        };
        let front: u32 = self.running().map(Step::front_tenths).sum();
        let behind = self.running().any(|step| step.place == Place::Behind);
        let alone = self.is_anything_alone();

        self.waiting()
            .filter(|(_, step)| is_ready(step))
            .find(|(_, step)| match step.place {
                Place::Front { tenths } => !alone && (front == 0 || front + tenths <= FRONT_TENTHS),
                Place::Behind => !alone && !behind,
                Place::Alone => !alone && front == 0,
            })
            .map(|(number, _)| number)
    }

    fn waiting(&self) -> impl Iterator<Item = (usize, &Step)> {
        let both = self.steps.iter().zip(&self.states).enumerate();
        both.filter(|(_, (_, state))| **state == State::Waiting).map(|(number, (step, _))| (number, step))
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
