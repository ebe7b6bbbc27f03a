//! Fakes, clocks and builders for the other crates' tests.

pub mod busy;
pub mod certs;

#[cfg(feature = "mesh")]
pub mod control_plane;
#[cfg(feature = "mesh")]
pub mod flood;
#[cfg(feature = "mesh")]
pub mod frames;
#[cfg(feature = "mesh")]
pub mod hbone;
pub mod lines;
#[cfg(feature = "mesh")]
pub mod network;
pub mod skips;
#[cfg(feature = "mesh")]
pub mod steps;
#[cfg(feature = "mesh")]
pub mod syscalls;
