//! How long policies go on to count after the change that is to end this.
//!
//! A control plane tells of policies and of the workloads that are to name them in separate messages, and of the
//! workloads last or first. The proxy can't tell which workloads it will still hear of: those that keep an old policy
//! because their own update is on its way look the same as those that the change is to set free. So this ends after a
//! while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Kept;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a policy is kept at most. Istio's control plane was seen to update workloads 130 to 200 ms after a policy.
/// It gathers changes for up to ten seconds while they keep coming, and a proxy then waits its turn behind others, for
/// which a busy control plane needs seconds more.
pub(crate) const OVERLAP: Duration = Duration::from_secs(30);

/// What is kept, and until when.
#[derive(Default)]
pub(crate) struct Overlaps {
    /// The first to end first.
    kept: Mutex<VecDeque<(Instant, Kept)>>,
    added: Notify,
}

impl Overlaps {
    /// These are kept on from `now`, those of them that are kept already for longer than before.
    pub(crate) fn add(&self, new: Vec<Kept>, now: Instant) {
        if new.is_empty() {
            return;
        }
        let mut kept = self.kept.lock();
        if new.iter().any(|new| matches!(new, Kept::Replaced(_))) {
            kept.retain(|(_, held)| !new.iter().any(|new| is_same(new, held)));
        }
        kept.extend(new.into_iter().map(|new| (now + OVERLAP, new)));
        self.added.notify_one();
    }

    /// Takes those out that end by `now`.
    pub(crate) fn take_ended(&self, now: Instant) -> Vec<Kept> {
        let mut kept = self.kept.lock();
        std::iter::from_fn(|| kept.pop_front_if(|(end, _)| *end <= now)).map(|(_, kept)| kept).collect()
    }

    /// Resolves when the next one ends.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub(crate) async fn next_end(&self) {
        loop {
            let next = self.kept.lock().front().map(|(end, _)| *end);
            match next {
                Some(end) => return tokio::time::sleep_until(end).await,
                None => self.added.notified().await,
            }
        }
    }
}

/// Only policies that were replaced can be kept anew.
fn is_same(one: &Kept, other: &Kept) -> bool {
    matches!((one, other), (Kept::Replaced(one), Kept::Replaced(other)) if Arc::ptr_eq(one, other))
}
