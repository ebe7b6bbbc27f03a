//! A task that others wake: from another thread, or for a reason it does not poll for.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// Where others find the task to wake; nobody before it has registered.
#[derive(Debug, Default)]
pub(crate) struct Sleeper(Mutex<Option<Waker>>);

impl Sleeper {
    pub(crate) fn wake(&self) {
        let task = self.0.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Nobody is to be woken any more.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// Keeps the waker of the task that polls, unless it is kept already; says whether it was another.
pub(crate) fn keep(kept: &mut Option<Waker>, cx: &Context<'_>) -> bool {
    let new = !kept.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
    if new {
        *kept = Some(cx.waker().clone());
    }
    new
}

/// What a task has registered with a [`Sleeper`], to be compared without its lock.
#[derive(Debug, Default)]
pub(crate) struct Registered(Option<Waker>);

impl Registered {
    /// From now on the task that polls is woken; to be called at each poll.
    pub(crate) fn renew(&mut self, cx: &Context<'_>, sleeper: &Sleeper) {
        if keep(&mut self.0, cx) {
            *sleeper.0.lock() = Some(cx.waker().clone());
        }
    }
}
