//! A timer of nanosecond resolution for an async runtime, whose own timers tick in milliseconds.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

struct Descriptor(TimerFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

pub(super) struct Ticks(AsyncFd<Descriptor>);

impl Ticks {
    /// Needs a runtime.
    #[allow(unsafe_code)]
    pub(super) fn new() -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        // SAFETY: the descriptor belongs to the timer, which lives as long as its registration and is nowhere else.
        let registered = unsafe { AsyncFd::register_with_interest(Descriptor(timer), Interest::READABLE) };
        Ok(Self(registered?))
    }

    pub(super) async fn until(&self, moment: Instant) -> io::Result<()> {
        let wait = moment.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        // Zero would disarm the timer.
        let wait = TimeSpec::from_duration(wait.max(Duration::from_nanos(1)));
        self.0.get_ref().0.set(Expiration::OneShot(wait), TimerSetTimeFlags::empty())?;
        loop {
            let mut ready = self.0.readable().await?;
            if Instant::now() >= moment {
                // The next setting of the timer resets its count, so that it need not be read.
                ready.clear_ready();
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}
