//! What all threads know of a service's port: its endpoints, and what is open there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use foldhash::fast::RandomState;
use leno_model::http::{EndpointRules, RetryBudget};
use leno_model::{ServiceName, WorkloadUid};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ejection;
use super::vital::Vital;

/// The share of open requests that may be sent again at a time, and how many always may, where no rule says otherwise: a
/// service that fails gets little more than what its clients ask for.
const BUDGET: RetryBudget = RetryBudget { per_million: 200_000, at_least: 3 };

/// What is counted, and limited by rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests that are open.
    Requests,
    /// Requests that wait for a connection.
    Pending,
    /// Connections to endpoints.
    Connections,
    /// Requests that are being sent again.
    Retries,
}

/// What a service's port has as much of as its rule permits.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{service} has {most} {what}, as many as the trafficPolicy of its DestinationRule permits (connectionPool)")]
pub(crate) struct Overflow {
    service: ServiceName,
    most: u32,
    what: &'static str,
}

/// What all threads know of a service's port.
pub(crate) struct Shared {
    pub(super) vitals: Mutex<HashMap<WorkloadUid, Arc<Vital>, RandomState>>,
    counts: [AtomicU32; 4],
    /// Requests that wait until a connection is free.
    waiting: AtomicU32,
    freed: Notify,
    /// The turn of the next request.
    turn: AtomicU64,
    /// When the last endpoint that is left out comes back, milliseconds.
    all_in: AtomicU64,
    pub(super) totals: Totals,
}

/// What is counted for all services.
#[derive(Clone)]
pub(crate) struct Totals {
    pub(crate) ejections: leno_telemetry::metrics::Counter,
    pub(crate) overflows: leno_telemetry::metrics::Counter,
    pub(crate) retries_refused: leno_telemetry::metrics::Counter,
}

/// One that is counted until this is dropped.
pub(crate) struct Counted {
    shared: Arc<Shared>,
    limit: Limit,
}

/// One that waits for a connection.
pub(crate) struct Waiting<'s>(&'s Shared);

impl Shared {
    pub(super) fn new(totals: &Totals) -> Self {
        Self {
            vitals: Mutex::default(),
            counts: Default::default(),
            waiting: AtomicU32::new(0),
            freed: Notify::new(),
            turn: AtomicU64::new(0),
            all_in: AtomicU64::new(0),
            totals: totals.clone(),
        }
    }

    pub(super) fn turn(&self) -> u64 {
        self.turn.fetch_add(1, Relaxed)
    }

    /// Counts one more, if there are fewer than `most`.
    pub(super) fn begin(&self, limit: Limit, most: Option<u32>) -> bool {
        let count = &self.counts[limit as usize];
        let before = count.fetch_add(1, Relaxed);
        if most.is_none_or(|most| before < most) {
            return true;
        }
        count.fetch_sub(1, Relaxed);
        false
    }

    pub(super) fn end(&self, limit: Limit) {
        self.counts[limit as usize].fetch_sub(1, Relaxed);
        if limit == Limit::Connections {
            self.has_room();
        }
    }

    /// As [`Self::begin`], until what is returned is dropped.
    pub(crate) fn count(self: &Arc<Self>, limit: Limit, most: Option<u32>) -> Option<Counted> {
        self.begin(limit, most).then(|| Counted { shared: self.clone(), limit })
    }

    /// A request that fails may be sent again.
    pub(super) fn retry(self: &Arc<Self>, rules: &EndpointRules) -> Option<Counted> {
        let budget = rules.retry_budget.unwrap_or(BUDGET);
        let open = u64::from(self.counts[Limit::Requests as usize].load(Relaxed));
        let share = u32::try_from(open * u64::from(budget.per_million) / 1_000_000).unwrap_or(u32::MAX);
        let most = share.max(budget.at_least).min(rules.max_retries.unwrap_or(u32::MAX));
        let counted = self.count(Limit::Retries, Some(most));
        if counted.is_none() {
            self.totals.retries_refused.inc();
        }
        counted
    }

    pub(super) fn overflow(&self, service: &ServiceName, limit: Limit, most: Option<u32>) -> Overflow {
        self.totals.overflows.inc();
        let what = match limit {
            Limit::Requests => "open requests",
            Limit::Pending => "requests that wait for a connection",
            Limit::Connections => "connections",
            Limit::Retries => "requests that are being sent again",
        };
        Overflow { service: service.clone(), most: most.unwrap_or_default(), what }
    }

    /// Waits until a connection is free.
    pub(crate) fn freed(&self) -> (Waiting<'_>, tokio::sync::futures::Notified<'_>) {
        self.waiting.fetch_add(1, Relaxed);
        (Waiting(self), self.freed.notified())
    }

    /// A connection is free, or another one may be made.
    pub(crate) fn has_room(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.freed.notify_one();
        }
    }

    /// Whether no endpoint is left out.
    pub(super) fn all_in(&self, now: u64) -> bool {
        self.all_in.load(Relaxed) <= now
    }

    /// Leaves an endpoint out, unless enough are.
    pub(super) fn eject(&self, vital: &Vital, of: &ejection::Ejected<'_>) {
        let Some(rules) = &of.rules.ejection else { return };
        let vitals = self.vitals.lock();
        let now = super::vital::milliseconds(Instant::now());
        let out = vitals.values().filter(|vital| vital.is_out(now)).count();
        if vital.is_out(now) || out >= ejection::allowed(vitals.len(), rules.max_percent) {
            return;
        }
        let until = vital.leave_out(rules, now);
        self.all_in.fetch_max(until, Relaxed);
        drop(vitals);
        self.totals.ejections.inc();
        tracing::warn!(
            service = %of.service,
            endpoint = %of.endpoint,
            cause = of.cause,
            "an endpoint failed too often and gets no requests for {} ms (outlierDetection)",
            until - now
        );
    }
}

impl Counted {
    /// Whether this counts a connection of `shared`.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The connection is free for another request.
    pub(crate) fn is_free(&self) {
        self.shared.has_room();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.end(self.limit);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Arc<Shared> {
        let counter = leno_telemetry::metrics::Counter::default;
        let totals = Totals { ejections: counter(), overflows: counter(), retries_refused: counter() };
        Arc::new(Shared::new(&totals))
    }

    #[test]
    fn a_limit_holds_and_is_given_back() {
        let shared = shared();
        let one = shared.count(Limit::Connections, Some(1));
        assert!(one.is_some() && shared.count(Limit::Connections, Some(1)).is_none());
        assert!(shared.count(Limit::Pending, Some(1)).is_some(), "each has its own");
        drop(one);
        assert!(shared.count(Limit::Connections, Some(1)).is_some());
        assert!(shared.count(Limit::Connections, Some(0)).is_none());
        let _unlimited: Vec<_> = (0..100).map(|_| shared.count(Limit::Connections, None)).collect();
        assert!(shared.count(Limit::Connections, Some(100)).is_none());
    }

    #[test]
    fn a_budget_grows_with_the_requests() {
        let shared = shared();
        let rules = EndpointRules::default();
        let few: Vec<_> = (0..10).map_while(|_| shared.retry(&rules)).collect();
        assert_eq!(few.len(), 3, "at least three");
        drop(few);
        for _ in 0..100 {
            assert!(shared.begin(Limit::Requests, None));
        }
        let many: Vec<_> = (0..100).map_while(|_| shared.retry(&rules)).collect();
        assert_eq!(many.len(), 20, "a fifth of what is open");
        assert_eq!(shared.totals.retries_refused.get(), 2);
        drop(many);
        let none = EndpointRules { max_retries: Some(0), ..EndpointRules::default() };
        assert!(shared.retry(&none).is_none());
        let half = RetryBudget { per_million: 500_000, at_least: 0 };
        let half = EndpointRules { retry_budget: Some(half), ..EndpointRules::default() };
        assert_eq!((0..100).map_while(|_| shared.retry(&half)).collect::<Vec<_>>().len(), 50);
    }
}
