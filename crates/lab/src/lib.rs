//! How fast, how safe? Load generation, scenarios, subjects, reports.
//!
//! A *scenario* is a load and a topology; a *subject* is what carries the traffic; a *run* interleaves subjects and reports
//! medians with their spread, next to what others published. Nothing in here is linked into a role of the mesh.

mod error;

pub mod load;

pub use error::Error;
