//! A relay that moves nothing for a while.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::timers::sleep;

/// Ready once nothing has moved for a time, and at most twice that.
pub(super) struct Standstill {
    time: Duration,
    timer: Pin<Box<Sleep>>,
    /// Bytes moved when the timer was set.
    moved: u64,
}

impl Standstill {
    pub(super) fn new(time: Duration, moved: u64) -> Self {
        Self { time, timer: Box::pin(sleep(time)), moved }
    }

    /// Not to be called again once it was ready.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, moved: u64) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.moved == moved {
                return Poll::Ready(());
            }
            self.moved = moved;
            self.timer.as_mut().reset(Instant::now() + self.time);
        }
        Poll::Pending
    }
}
