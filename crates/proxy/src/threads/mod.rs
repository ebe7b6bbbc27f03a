//! The threads that connections run on, and what belongs to each.

pub(crate) mod memory;
mod workers;

pub use memory::Lives;
pub use workers::{Worker, Workers};
