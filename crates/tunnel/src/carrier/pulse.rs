//! Whether anything waits for the peer. The keepalive of a connection depends on it.

use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};

use super::{Carrier, Handle, Role};
use crate::transport::Acknowledged;
use crate::waking::keep;

/// What was sent, compared with what was received.
#[derive(Default)]
pub(super) struct Pulse {
    /// The number of bytes received when a stream's frame was last sent; `None` before the first.
    asked: Option<u64>,
    /// Whether the keepalive is active, and so need not be told of each frame.
    watched: bool,
    /// Whether somebody wants to know at once if the peer is alive.
    probe: bool,
    keepalive: Option<Waker>,
}

/// The state as the keepalive sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// Bytes received so far.
    pub(crate) received: u64,
    /// Something was sent since the keepalive came to rest.
    pub(crate) watched: bool,
    /// A PING is wanted. Reported once.
    pub(crate) probe: bool,
}

impl Pulse {
    fn tell(&mut self) {
        self.watched = true;
        if let Some(keepalive) = &self.keepalive {
            keepalive.wake_by_ref();
        }
    }
}

impl Carrier {
    /// A stream's frame was sent: from now on something should come from the peer.
    pub(super) fn expects_life(&mut self) {
        self.pulse.asked = Some(self.incoming.received.load(Relaxed));
        if !self.pulse.watched {
            self.pulse.tell();
        }
    }

    /// Whether a program would wait for ever if the peer were gone: nothing has come since the last frame was sent, a
    /// request is unanswered, or there is no room for what is to be sent. Not while the connection is being closed:
    /// that has a time limit of its own.
    fn waits(&self) -> bool {
        if self.leaving {
            return false;
        }
        self.pulse.asked == Some(self.incoming.received.load(Relaxed))
            || self.outgoing.mux.is_waited_for()
            || self.streams.values().any(|stream| {
                let asked = self.role == Role::Client && stream.is_held() && stream.sending.is_open();
                let unanswered = asked && !stream.receiving.is_answered();
                let blocked = stream.window <= 0 && stream.sender.is_some();
                stream.failure.is_none() && (unanswered || blocked || !stream.backlog.is_empty())
            })
    }
}

impl Handle {
    /// The current state. Wakes the task of `cx` when there is something to watch.
    pub(crate) fn look(&self, cx: &Context<'_>) -> Look {
        let mut carrier = self.0.lock();
        let received = carrier.incoming.received.load(Relaxed);
        let pulse = &mut carrier.pulse;
        keep(&mut pulse.keepalive, cx);
        Look { received, watched: pulse.watched, probe: std::mem::take(&mut pulse.probe) }
    }

    /// Whether anything waits for the peer. If not, the keepalive rests until something is sent.
    pub(crate) fn waits_or_rests(&self) -> bool {
        let mut carrier = self.0.lock();
        let waits = carrier.waits();
        carrier.pulse.watched = waits;
        waits
    }

    /// Asks for a PING, because the peer was silent for long and somebody wants to know whether it is alive.
    pub(crate) fn probe(&self) {
        let mut carrier = self.0.lock();
        carrier.pulse.probe = true;
        carrier.pulse.tell();
    }

    /// The bytes that the peer's system has acknowledged.
    pub(crate) fn acknowledged(&self) -> Option<Acknowledged> {
        self.0.lock().io.as_ref().and_then(|io| io.acknowledged())
    }

    /// Bytes received so far.
    pub(crate) fn received_so_far(&self) -> u64 {
        self.0.lock().incoming.received.load(Relaxed)
    }
}
