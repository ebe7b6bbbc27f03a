//! Policies that applied by scope, to a namespace or to all, and now reach only the workloads that name them.
//!
//! A control plane tells of such a policy and of the workloads that are to name it in separate messages. Between
//! them these workloads would be covered by neither version, so the old one goes on to count for those that don't
//! name the policy. One of them that is not to name it looks the same and is not told again, so this ends after a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Authorization;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long an old version goes on to count. Istio's control plane was seen to update workloads 130 to 200 ms
/// after a policy; on a busy machine it takes longer.
pub(crate) const OVERLAP: Duration = Duration::from_secs(5);

/// Which old versions count, and until when.
#[derive(Default)]
pub(crate) struct Narrowed {
    /// The first to end first.
    old: Mutex<VecDeque<(Instant, Arc<Authorization>)>>,
    added: Notify,
}

impl Narrowed {
    /// This old version counts on from `now`; one that does already ends when it was to.
    pub(crate) fn add(&self, old: Arc<Authorization>, now: Instant) {
        let mut all = self.old.lock();
        if !all.iter().any(|(_, held)| Arc::ptr_eq(held, &old)) {
            all.push_back((now + OVERLAP, old));
            self.added.notify_one();
        }
    }

    /// Takes those out that end by `now`.
    pub(crate) fn take_ended(&self, now: Instant) -> Vec<Arc<Authorization>> {
        let mut all = self.old.lock();
        std::iter::from_fn(|| all.pop_front_if(|(end, _)| *end <= now)).map(|(_, old)| old).collect()
    }

    /// Resolves when the next one ends.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub(crate) async fn next_end(&self) {
        loop {
            let next = self.old.lock().front().map(|(end, _)| *end);
            match next {
                Some(end) => return tokio::time::sleep_until(end).await,
                None => self.added.notified().await,
            }
        }
    }
}
