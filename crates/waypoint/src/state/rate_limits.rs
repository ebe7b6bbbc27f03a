//! How many requests follow a route that lets through so many in a time. All threads share it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use leno_model::Mesh;
use leno_model::http::{RateLimit, RouteName};
use leno_policy::http::rate;
use parking_lot::Mutex;

/// What is known of routes with a limit.
pub(crate) struct Rates {
    beginning: Instant,
    /// Each with its limit: by another one, what was counted means something else.
    known: Mutex<HashMap<RouteName, (RateLimit, Arc<AtomicU64>), RandomState>>,
}

impl Rates {
    pub(crate) fn new() -> Self {
        Self { beginning: Instant::now(), known: Mutex::default() }
    }

    /// Counts a request that follows a route.
    ///
    /// # Errors
    /// If it is one too many: how long until there is room for one.
    pub(crate) fn admit(&self, route: &RouteName, limit: RateLimit) -> Result<(), Duration> {
        let full = self.of(route, limit);
        let now = u64::try_from(self.beginning.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut wait = Duration::ZERO;
        let counted = full.fetch_update(Relaxed, Relaxed, |full| match rate::admit(full, now, limit) {
            Ok(after) => Some(after),
            Err(longer) => {
                wait = longer;
                None
            }
        });
        counted.map(drop).map_err(|_| wait)
    }

    fn of(&self, route: &RouteName, limit: RateLimit) -> Arc<AtomicU64> {
        let mut known = self.known.lock();
        if let Some((of, full)) = known.get(route)
            && *of == limit
        {
            return full.clone();
        }
        let full = Arc::<AtomicU64>::default();
        known.insert(route.clone(), (limit, full.clone()));
        full
    }

    /// Forgets routes that are gone.
    pub(crate) fn forget(&self, mesh: &Mesh) {
        self.known.lock().retain(|route, _| mesh.route(route).is_some());
    }
}
