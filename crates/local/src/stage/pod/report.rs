//! What the stage wants from a pod, and what the pod reports.

use std::time::Duration;

use leno_objects::PodPhase;
use tokio::sync::oneshot;

use crate::stage::pod::sandbox::Sandbox;

/// What the stage wants from a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    pub in_mesh: bool,
    pub stop: Option<Stop>,
}

/// How a pod is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Whether others go on, and so must have stopped sending before it ends.
    pub drain: bool,
}

/// The known state of a pod.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub phase: PodPhase,
    pub ready: bool,
    /// Whether the node's proxy has it and the rules are in place.
    pub enrolled: bool,
    pub restarts: u32,
    /// The status in one word, as in `kubectl get pods`.
    pub status: String,
    /// Why it isn't what it should be.
    pub message: String,
    /// Its processes, while there are any.
    pub sandbox: Option<Sandbox>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            phase: PodPhase::Pending,
            ready: false,
            enrolled: false,
            restarts: 0,
            status: "Pending".to_owned(),
            message: String::new(),
            sandbox: None,
        }
    }
}

/// News of a pod for the stage.
#[derive(Debug)]
pub(crate) enum PodEvent {
    Changed {
        uid: String,
        report: Box<Report>,
    },
    Gone {
        uid: String,
    },
    /// Everything told before is published when this is answered.
    Barrier {
        reached: oneshot::Sender<()>,
    },
}
