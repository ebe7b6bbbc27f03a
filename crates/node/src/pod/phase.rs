//! The phases of a pod's time with this proxy.
//!
//! ```text
//!             leave              1 s, or drain
//!  Serving ──────────▶ Leaving ─────────────────▶ Left ───┐
//!     │                                           ▲       │ stop
//!     │ drain                               leave │       ▼
//!     └────────────▶ Draining ────────────────────┴───▶ Stopped
//! ```
//!
//! A pod only moves forward. `stop` leads to the last phase from any other.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One phase of a pod's time with this proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Everything new is accepted.
    Serving,
    /// The pod left the mesh. Peers are told and may open no new tunnels. What the rules led here in the last moment is
    /// accepted.
    Leaving,
    /// The pod left the mesh, and nothing new is accepted. Live connections have no time limit.
    Left,
    /// The proxy is about to end, and nothing new is accepted. Live connections have until the proxy's deadline.
    Draining,
    /// Live connections must end, too.
    Stopped,
}

impl Phase {
    /// Whether peers may open tunnels.
    pub(crate) fn takes_tunnels(self) -> bool {
        self == Self::Serving
    }

    /// Whether redirected connections are accepted.
    pub(crate) fn takes_captured(self) -> bool {
        matches!(self, Self::Serving | Self::Leaving)
    }

    /// Whether the pod left the mesh while the proxy stays.
    pub(crate) fn has_left(self) -> bool {
        matches!(self, Self::Leaving | Self::Left)
    }

    fn then(self, event: Event) -> Self {
        match (self, event) {
            (Self::Stopped, _) | (_, Event::Stop) => Self::Stopped,
            (Self::Serving, Event::Leave) => Self::Leaving,
            (Self::Serving, Event::Drain) => Self::Draining,
            // A proxy that drains accepts no stragglers either, and the pod is gone all the same.
            (Self::Leaving, Event::Drain) | (Self::Draining, Event::Leave) => Self::Left,
            (Self::Leaving, Event::Leave) | (Self::Left, _) | (Self::Draining, Event::Drain) => self,
        }
    }
}

/// An event that moves a pod forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The node agent says that the pod is no longer in the mesh.
    Leave,
    /// Nothing new may be accepted: the proxy ends, or the time for stragglers is over.
    Drain,
    /// Everything ends.
    Stop,
}

/// A pod's phase, and those that wait for the next.
pub(crate) struct Phases {
    phase: watch::Sender<Phase>,
    /// Cancelled on the way to [`Phase::Stopped`], which every connection waits for. Waiting for this takes 170 bytes
    /// less of a connection's task than waiting for the phase itself.
    stopped: CancellationToken,
}

impl Default for Phases {
    fn default() -> Self {
        Self { phase: watch::Sender::new(Phase::Serving), stopped: CancellationToken::new() }
    }
}

impl Phases {
    pub(crate) fn now(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn on(&self, event: Event) {
        self.phase.send_if_modified(|phase| {
            let next = phase.then(event);
            std::mem::replace(phase, next) != next
        });
        if self.now() == Phase::Stopped {
            self.stopped.cancel();
        }
    }

    /// Resolves with the first phase for which `reached` is true.
    pub(crate) async fn until(&self, reached: impl Fn(Phase) -> bool) -> Phase {
        let mut phases = self.phase.subscribe();
        loop {
            let now = *phases.borrow_and_update();
            if reached(now) {
                return now;
            }
            // Waiting can't fail: the sender lives as long as `self`.
            let _ = phases.changed().await;
        }
    }

    /// Resolves when the pod has stopped.
    pub(crate) async fn stopped(&self) {
        self.stopped.cancelled().await;
    }
}

#[cfg(test)]
#[path = "phase_tests.rs"]
mod tests;
