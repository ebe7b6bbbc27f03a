//! A relay that moves nothing for a while.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::timers::sleep;

/// Ready when nothing has moved for a given time, or up to twice that time.
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

    /// Must not be called again after it was ready.
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
