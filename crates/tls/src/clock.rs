//! Wall-clock time as something that can be handed in.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Tells the wall-clock time certificates are judged by. Tests hand in their own, so that a
/// certificate's life passes without waiting for it.
#[derive(Clone)]
pub struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl Clock {
    /// The machine's clock.
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock of the caller's.
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
