//! The installation in a cluster: putting it there, waiting for it, finding it, taking it away.

mod apply;
mod error;
mod find;
pub(crate) mod meshes;
mod record;
mod removal;
mod remove;
mod requests;
mod resource;
mod rollout;
mod statuses;
mod turn;

pub(crate) use apply::missing_version;
pub use apply::{Applied, apply};
pub use error::ClusterError;
pub use find::{Installer, installer};
pub use record::{Record, is_ending, refuse_other_choices};
pub use removal::{Kept, Removal};
pub use remove::remove;
pub use rollout::{Rollout, rollouts};
pub use turn::Turns;

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
