//! The signals that end a stage in order.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;

/// SIGINT, SIGTERM and SIGHUP, from when it was made: none of them ends the process any more.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub(crate) fn listen() -> Result<Self, Error> {
        let listen = |kind| signal(kind).map_err(Error::io("cannot listen for signals"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one. One that came since the last call counts.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
