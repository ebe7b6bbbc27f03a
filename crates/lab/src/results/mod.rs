//! The results of a run: raw, and as figures.

mod figures;

use serde::{Deserialize, Serialize};

pub use figures::figures;
pub(crate) use figures::{QUIET, headline, pooled_curve, remarks, taken};

use crate::load::Outcome;
use crate::measure::{Cpu, MachineCpu, Memory};
use crate::scenario::Placed;

/// The raw results of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Step.
    pub step: String,
    /// Subject.
    pub subject: String,
    /// Round, from 1.
    pub round: usize,
    /// When the step began: RFC 3339, UTC. Empty in reports of versions that did not record it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// Seconds over which processor time was taken.
    pub seconds: f64,
    /// The results of the loads.
    pub loads: Vec<LoadResult>,
    /// The use of the processes that carry each node's traffic: its proxy, or its tunnel. Empty for no mesh.
    pub proxies: Vec<ProxyUse>,
    /// The use of the whole machine, load and servers included.
    pub machine: MachineCpu,
    /// The part of it that programs outside the lab used, seconds.
    pub others_seconds: f64,
}

/// The result of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// The load.
    pub placed: Placed,
    /// The result.
    pub outcome: Outcome,
}

/// The use of one node's proxy or tunnel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProxyUse {
    /// Node.
    pub node: String,
    /// Processor time over the measured seconds.
    pub cpu: Cpu,
    /// Memory before any traffic.
    pub fresh: Memory,
    /// Memory before the step.
    pub before: Memory,
    /// Memory at the end of the measured seconds, under load.
    pub during: Memory,
    /// Memory afterwards. For idle connections: when it was given back, or when the time for that was over.
    pub after: Memory,
    /// For idle connections: seconds until memory was within 25 % of a fresh proxy's. `None` if it never was.
    pub given_back_seconds: Option<f64>,
}
