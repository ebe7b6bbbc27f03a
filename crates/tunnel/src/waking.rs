//! A task that is woken from another thread, or for something it does not poll.

use std::task::{Context, Waker};

use parking_lot::Mutex;

/// The place where others find the task to wake. Nobody is woken before it has registered.
#[derive(Debug, Default)]
pub(crate) struct Sleeper(Mutex<Option<Waker>>);

impl Sleeper {
    pub(crate) fn wake(&self) {
        let task = self.0.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// From now on, nobody is woken.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// Stores the waker of the polling task unless it is stored already. Returns whether it was another one.
pub(crate) fn keep(kept: &mut Option<Waker>, cx: &Context<'_>) -> bool {
    let new = !kept.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
    if new {
        *kept = Some(cx.waker().clone());
    }
    new
}

/// What a task has registered with a [`Sleeper`], so that it can be compared without the lock.
#[derive(Debug, Default)]
pub(crate) struct Registered(Option<Waker>);

impl Registered {
    /// From now on, the polling task is woken. Call it at each poll.
    pub(crate) fn renew(&mut self, cx: &Context<'_>, sleeper: &Sleeper) {
        if keep(&mut self.0, cx) {
            *sleeper.0.lock() = Some(cx.waker().clone());
        }
    }
}
