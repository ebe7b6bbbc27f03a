//! A wall clock that can be replaced.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

/// The wall clock by which certificates are judged. Tests provide their own, so that a certificate's lifetime passes
/// without waiting.
#[derive(Clone, Default)]
pub struct Clock(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    System,
    Caller(Arc<dyn Fn() -> SystemTime + Send + Sync>),
    Ahead(watch::Receiver<Duration>),
}

impl Clock {
    /// The machine's clock.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock provided by the caller.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Source::Caller(Arc::new(now)))
    }

    /// The machine's clock, ahead by as much as the caller says. Whoever waits for a time by this clock looks at it anew
    /// when that changes.
    pub const fn ahead(by: watch::Receiver<Duration>) -> Self {
        Self(Source::Ahead(by))
    }

    /// The time now.
    pub fn now(&self) -> SystemTime {
        match &self.0 {
            Source::System => SystemTime::now(),
            Source::Caller(now) => now(),
            Source::Ahead(by) => SystemTime::now() + *by.borrow(),
        }
    }

    /// Tells of changes of the clock from now on.
    pub(crate) fn changes(&self) -> ClockChanges {
        let mut changes = match &self.0 {
            Source::Ahead(by) => Some(by.clone()),
            Source::System | Source::Caller(_) => None,
        };
        if let Some(changes) = &mut changes {
            changes.mark_unchanged();
        }
        ClockChanges(changes)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Source::System => "Clock(system)",
            Source::Caller(_) => "Clock(handed in)",
            Source::Ahead(_) => "Clock(ahead)",
        })
    }
}

/// Changes of a clock that its owner tells of; of other clocks, none is told.
pub(crate) struct ClockChanges(Option<watch::Receiver<Duration>>);

impl ClockChanges {
    /// Resolves at the next change.
    pub(crate) async fn next(&mut self) {
        let told = match &mut self.0 {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        // Without an owner it does not change any more.
        if !told {
            std::future::pending().await
        }
    }
}
