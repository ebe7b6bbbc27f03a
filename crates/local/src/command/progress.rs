//! What `leno up` tells while a stage comes up: steps on a terminal, few lines in a pipe, and in both what it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::error::name_flag;
use crate::names::StageName;
use crate::stage::StageEvent;
use crate::stage::listing::Listing;

/// How often what is waited for is looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// How long something may be missing before it is told: what comes up as it should is not worth a line.
const BEFORE_TOLD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));

/// Most lines at a time about what is missing: a stage whose proxy fails waits for all of its pods.
const LINES: usize = 5;

/// Who reads what is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A person who watches.
    Terminal,
    /// A file or program: only what matters later.
    Pipe,
    /// Nobody: the stage runs detached, and its log has all of it.
    Nobody,
}

impl Audience {
    /// Who reads standard error.
    pub(crate) fn of_stderr() -> Self {
        if std::io::stderr().is_terminal() { Self::Terminal } else { Self::Pipe }
    }
}

/// Tells of a stage that comes up, runs and changes.
pub(crate) struct Progress {
    audience: Audience,
    warned: BTreeSet<String>,
    ready: BTreeSet<String>,
    published: BTreeSet<SocketAddr>,
    missing: Missing,
    /// What is said when all is ready, if anything.
    complete: Option<String>,
    /// Whether that was said.
    completed: bool,
    /// Whether the last edit was refused, and so what is loaded is an answer to that.
    refused: bool,
}

impl Progress {
    /// Of a stage in the foreground.
    pub(crate) fn foreground(name: &StageName, audience: Audience) -> Self {
        let flag = name_flag(name.as_str());
        let complete = format!("all ready; look with `leno ps{flag}`, stop with Ctrl-C");
        Self { complete: Some(complete), ..Self::detached(audience) }
    }

    /// Of a stage that is started detached: who started it tells the end itself.
    pub(crate) fn detached(audience: Audience) -> Self {
        let patience = if audience == Audience::Terminal { BEFORE_TOLD.0 } else { BEFORE_TOLD.1 };
        Self {
            audience,
            warned: BTreeSet::new(),
            ready: BTreeSet::new(),
            published: BTreeSet::new(),
            missing: Missing { patience, since: BTreeMap::new(), told: BTreeSet::new() },
            complete: None,
            completed: false,
            refused: false,
        }
    }

    /// Tells what is new in a listing: warnings, what became ready, and that all is.
    pub(crate) fn tell(&mut self, now: &Listing) {
        if self.audience == Audience::Nobody {
            return;
        }
        let passed_over = now.passed_over.iter().map(ToString::to_string);
        for warning in passed_over.chain(now.warnings.iter().cloned()) {
            if self.warned.insert(warning.clone()) {
                say(&format!("warning: {warning}"));
            }
        }
        for published in &now.published {
            if self.published.insert(published.address) {
                say(&format!("{} leads to {}", published.address, published.service));
            }
        }
        if self.audience == Audience::Terminal {
            self.steps(now);
        }
        let complete = now.is_ready() && !now.pods.is_empty();
        if complete
            && !self.completed
            && let Some(text) = &self.complete
        {
            say(text);
        }
        // Without a terminal once is enough: what comes and goes would fill a log.
        self.completed = complete || (self.completed && self.audience != Audience::Terminal);
    }

    /// Tells what is missing for long enough, each thing and reason once. To be called every [`LOOK`].
    pub(crate) fn tell_missing(&mut self, now: &Listing) {
        if self.audience != Audience::Nobody {
            for line in self.missing.lines(now, Instant::now()) {
                say(&line);
            }
        }
    }

    /// Tells what happened.
    pub(crate) fn event(&mut self, event: &StageEvent) {
        match event {
            _ if self.audience == Audience::Nobody => {}
            StageEvent::Refused(text) => {
                for line in text.lines() {
                    say(&format!("error: {line}"));
                }
                say("the edit is refused as a whole; the last good state stays");
                self.refused = true;
            }
            StageEvent::Loaded { objects } => {
                let mended = if std::mem::take(&mut self.refused) { "; the edit is in force" } else { "" };
                say(&format!("{objects} objects loaded{mended}"));
            }
            StageEvent::PodGone { namespace, name } if self.audience == Audience::Terminal => {
                say(&format!("pod {namespace}/{name} is gone"));
            }
            StageEvent::PodGone { .. } => {}
        }
    }

    fn steps(&mut self, now: &Listing) {
        let mut ready = BTreeSet::new();
        for node in now.nodes.iter().filter(|node| node.ready) {
            ready.insert(format!("{}: proxy ready", node.name));
        }
        for pod in now.pods.iter().filter(|pod| pod.is_settled()) {
            let mesh = if pod.in_mesh { ", in the mesh" } else { "" };
            ready.insert(format!("{}: pod {}/{} ready{mesh}", pod.node, pod.namespace, pod.name));
        }
        for line in ready.difference(&self.ready) {
            say(line);
        }
        self.ready = ready;
    }
}

/// What is missing, and what of it was told.
struct Missing {
    patience: Duration,
    since: BTreeMap<String, Instant>,
    told: BTreeSet<String>,
}

impl Missing {
    fn lines(&mut self, listing: &Listing, now: Instant) -> Vec<String> {
        let waits = listing.waits();
        self.since.retain(|who, _| waits.iter().any(|wait| wait.who == *who));
        let mut new = Vec::new();
        for wait in waits {
            let since = *self.since.entry(wait.who.clone()).or_insert(now);
            if now.duration_since(since) >= self.patience && self.told.insert(wait.to_string()) {
                new.push(format!("waiting: {wait}"));
            }
        }
        let more = new.len().saturating_sub(LINES);
        if more > 0 {
            new.truncate(LINES);
            new.push(format!("waiting: {more} more; `leno ps{}` shows all", name_flag(&listing.stage)));
        }
        new
    }
}

impl Audience {
    /// Tells how the whole goes.
    pub(crate) fn say(self, line: &str) {
        if self != Self::Nobody {
            say(line);
        }
    }
}

/// A line on standard error. One that nobody can read any more, as on a terminal that was closed, must not end a stage halfway.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
