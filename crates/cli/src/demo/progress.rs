//! The progress shown while it runs.

use std::io::{IsTerminal as _, stderr, stdout};
use std::time::{Duration, Instant};

use crate::output::Paint;

/// Lines on stderr, if somebody watches; nothing in a pipe.
pub(super) struct Progress {
    watched: bool,
    paint: Paint,
}

impl Progress {
    pub(super) fn new(watched: bool) -> Self {
        Self { watched, paint: Paint::stderr() }
    }

    /// Whether somebody watches this process.
    pub(super) fn is_watched() -> bool {
        stderr().is_terminal() && stdout().is_terminal()
    }

    /// A new act.
    pub(super) fn act(&self, title: &str) {
        if self.watched {
            eprintln!("{}", self.paint.bold(title));
        }
    }

    /// Something happened in it.
    pub(super) fn tell(&self, text: &str) {
        if self.watched {
            eprintln!("  {text}");
        }
    }

    /// Something is done that took a while.
    pub(super) fn done(&self, text: &str, since: Instant) {
        self.tell(&format!("{text} ({})", took(since.elapsed())));
    }
}

fn took(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
