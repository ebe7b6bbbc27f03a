//! What a phase found.

use serde::{Deserialize, Serialize};

use super::phase::Shape;
use super::process::PlaneMemory;
use crate::load::Latency;
use crate::measure::{Cpu, MachineCpu};

/// The raw results of one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Step.
    pub step: String,
    /// Subject.
    pub subject: String,
    /// Round, from 1.
    pub round: usize,
    /// When the phase began: RFC 3339, UTC. Empty in reports of versions that did not record it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// The mesh and its proxies.
    pub shape: Shape,
    /// Seconds over which processor time was taken.
    pub seconds: f64,
    /// Changes in this time.
    pub changes: usize,
    /// The number of pods in these changes.
    pub touched: usize,
    /// Proxies connected at the end.
    pub proxies: usize,
    /// Processor time of the control plane.
    pub cpu: Cpu,
    /// Processor time of the lab, which contains the proxies.
    pub lab_cpu: Cpu,
    /// The control plane's memory before.
    pub before: PlaneMemory,
    /// The control plane's memory afterwards, once it is idle.
    pub after: PlaneMemory,
    /// Bytes of discovery sent to proxies, without the overhead of gRPC's transport.
    pub bytes: u64,
    /// Responses sent to proxies.
    pub responses: u64,
    /// How often proxies were refused, or got no answer, before they were in sync, and connected again.
    #[serde(default)]
    pub again: u64,
    /// For every change and proxy: the time from feeding the change until the proxy had all of it.
    pub latency: Option<Latency>,
    /// The use of the whole machine.
    pub machine: MachineCpu,
    /// The part of it that programs outside the lab used, seconds.
    pub others_seconds: f64,
}
