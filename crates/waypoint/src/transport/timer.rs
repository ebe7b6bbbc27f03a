//! Time and tasks for the HTTP library, on threads that keep no time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt;
use leno_tunnel::timers;
use parking_lot::Mutex;

use crate::transport::write_coalescing::Cork;

/// Keeps the library's timers where all others are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timer;

impl rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Sleeping(Box::pin(timers::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Sleeping(Box::pin(timers::sleep_until(deadline.into()))))
    }
}

struct Sleeping(Pin<Box<tokio::time::Sleep>>);

impl Future for Sleeping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl rt::Sleep for Sleeping {}

/// Runs the library's tasks on the thread that asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here;

impl<F> rt::Executor<F> for Here
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

/// As [`Here`], for a client's connection, whose first task is the one that reads and writes. The cork is released after
/// each of its turns. No other task may: the connection's would not be woken when its peer takes more.
#[derive(Clone)]
pub(crate) struct FirstCorked(Arc<Mutex<Option<Arc<Cork>>>>);

impl FirstCorked {
    pub(crate) fn new(cork: Option<Arc<Cork>>) -> Self {
        Self(Arc::new(Mutex::new(cork)))
    }
}

impl<F> rt::Executor<F> for FirstCorked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let Some(cork) = self.0.lock().take() else {
            tokio::spawn(task);
            return;
        };
        tokio::spawn(async move {
            let mut task = pin!(task);
            poll_fn(|cx| {
                let polled = task.as_mut().poll(cx);
                cork.release(cx);
                polled
            })
            .await
        });
    }
}
