//! What was measured, raw and summed up.

mod figures;

use serde::{Deserialize, Serialize};

pub use figures::figures;
pub(crate) use figures::{QUIET, headline, pooled_curve, remarks, taken};

use crate::load::Outcome;
use crate::measure::{Cpu, MachineCpu, Memory};
use crate::scenario::Placed;

/// Everything one step found, raw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Step.
    pub step: String,
    /// Subject.
    pub subject: String,
    /// Round, from 1.
    pub round: usize,
    /// When the step began: RFC 3339, UTC. Empty in reports of versions that did not keep it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// Seconds over which processor time was taken.
    pub seconds: f64,
    /// What the loads found.
    pub loads: Vec<LoadResult>,
    /// What the processes that carry each node's traffic used: its proxy, or its tunnel. None if there is neither.
    pub proxies: Vec<ProxyUse>,
    /// What the whole machine used, load and servers included.
    pub machine: MachineCpu,
    /// Of that, what programs used that are no part of the lab.
    pub others_seconds: f64,
}

/// What one load found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// The load and its place.
    pub placed: Placed,
    /// What it found.
    pub outcome: Outcome,
}

/// What one node's proxy, or tunnel, used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyUse {
    /// Node.
    pub node: String,
    /// Processor time over the measured seconds.
    pub cpu: Cpu,
    /// Memory when nothing had been carried yet.
    pub fresh: Memory,
    /// Memory before the step.
    pub before: Memory,
    /// Memory at the end of the measured seconds, under load.
    pub during: Memory,
    /// Memory afterwards; for idle connections when it was given back, or could have been.
    pub after: Memory,
    /// For idle connections: seconds until memory was within 25 % of the fresh one, if it ever was.
    pub given_back_seconds: Option<f64>,
}
