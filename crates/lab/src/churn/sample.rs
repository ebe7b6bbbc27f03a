//! Processor time and memory at one moment: a phase is what lies between two of them.

use std::time::Instant;

use super::crowd::Crowd;
use super::process::{PlaneMemory, Process};
use crate::Error;
use crate::measure::{self, Cpu, MachineCpu};

/// The state when a phase began.
pub(crate) struct Sampled {
    pub(super) at: Instant,
    /// `at`, RFC 3339, UTC.
    pub(super) time: String,
    pub(super) plane: Cpu,
    /// The lab with its children.
    pub(super) lab: Cpu,
    pub(super) machine: MachineCpu,
    pub(super) others: f64,
    pub(super) memory: PlaneMemory,
    pub(super) received: (u64, u64),
}

impl Sampled {
    /// Before the control plane runs.
    pub(crate) fn start() -> Result<Self, Error> {
        let own = std::process::id().cast_signed();
        let what = "cannot read /proc";
        Ok(Self {
            at: Instant::now(),
            time: measure::now(),
            plane: Cpu::default(),
            lab: measure::cpu(own).map_err(Error::io(what))?,
            machine: MachineCpu::now().map_err(Error::io(what))?,
            others: measure::others(own).map_err(Error::io(what))?,
            memory: PlaneMemory::default(),
            received: (0, 0),
        })
    }

    /// Now.
    pub(super) fn now(process: &Process, crowd: &Crowd) -> Result<Self, Error> {
        Ok(Self { plane: process.cpu()?, memory: process.memory()?, received: crowd.received(), ..Self::start()? })
    }
}
