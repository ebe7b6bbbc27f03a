//! A wall clock that can be replaced.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// The wall clock by which certificates are judged. Tests provide their own, so that a certificate's lifetime passes
/// without waiting.
#[derive(Clone)]
pub struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl Clock {
    /// The machine's clock.
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock provided by the caller.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(now)))
    }

    /// The time now.
    pub fn now(&self) -> SystemTime {
        self.0.as_ref().map_or_else(SystemTime::now, |now| now())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(handed in)" } else { "Clock(system)" })
    }
}
