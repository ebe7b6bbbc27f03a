//! One pod on the stage: its plan, its first process, its containers, and the actor that leads it from its network to
//! its last process.

pub(crate) mod actor;
mod confine;
mod container;
mod containers;
mod environment;
pub mod init;
pub(crate) mod init_protocol;
mod mounts;
pub(crate) mod plan;
mod probes;
pub(crate) mod report;
pub(crate) mod sandbox;
mod sequence;
pub(crate) mod volumes;
