//! Time and tasks for the HTTP library, on threads that keep no time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt;
use leno_tunnel::timers;

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
