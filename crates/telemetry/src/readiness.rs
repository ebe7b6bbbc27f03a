//! Whether the process may be given work.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// What a process waits for before it is ready, by name.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    pending: Arc<Mutex<BTreeMap<String, Pending>>>,
}

#[derive(Debug, Default)]
struct Pending {
    tasks: usize,
    reason: String,
}

impl Readiness {
    /// Registers something to wait for; the process is unready until it says so.
    pub fn task(&self, name: impl Into<String>) -> ReadyTask {
        let mut task = ReadyTask { readiness: self.clone(), name: name.into(), ready: true };
        task.not_ready("not started");
        task
    }

    /// Whether nothing is waited for.
    pub fn is_ready(&self) -> bool {
        self.pending.lock().is_empty()
    }

    /// What is waited for: names and reasons.
    pub fn pending(&self) -> Vec<(String, String)> {
        self.pending.lock().iter().map(|(name, pending)| (name.clone(), pending.reason.clone())).collect()
    }
}

/// One thing that readiness waits for. Dropping it changes nothing: a part that died before it
/// was ready keeps the process unready.
#[derive(Debug)]
pub struct ReadyTask {
    readiness: Readiness,
    name: String,
    ready: bool,
}

impl ReadyTask {
    /// This part works.
    pub fn ready(&mut self) {
        if std::mem::replace(&mut self.ready, true) {
            return;
        }
        let mut pending = self.readiness.pending.lock();
        if let Some(entry) = pending.get_mut(&self.name) {
            entry.tasks -= 1;
            if entry.tasks == 0 {
                pending.remove(&self.name);
            }
        }
    }

    /// This part does not work, or no longer; `reason` is shown to who asks.
    pub fn not_ready(&mut self, reason: impl Into<String>) {
        let mut pending = self.readiness.pending.lock();
        let entry = pending.entry(self.name.clone()).or_default();
        entry.reason = reason.into();
        if std::mem::replace(&mut self.ready, false) {
            entry.tasks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_task_is() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready());
        let mut xds = readiness.task("state manager");
        let mut zds = readiness.task("workload proxy manager");
        xds.ready();
        xds.ready();
        assert_eq!(readiness.pending(), [("workload proxy manager".into(), "not started".into())]);
        zds.ready();
        assert!(readiness.is_ready());
        zds.not_ready("disconnected");
        zds.not_ready("still disconnected");
        assert_eq!(readiness.pending(), [("workload proxy manager".into(), "still disconnected".into())]);
        zds.ready();
        assert!(readiness.is_ready());
    }

    #[test]
    fn two_tasks_of_one_name_are_two_and_death_is_not_readiness() {
        let readiness = Readiness::default();
        let mut first = readiness.task("x");
        let second = readiness.task("x");
        first.ready();
        assert!(!readiness.is_ready());
        drop(second);
        assert!(!readiness.is_ready());
    }
}
