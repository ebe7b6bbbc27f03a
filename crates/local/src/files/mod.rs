//! Manifests from files: read as a whole, and again when one of them changes.

mod layout;
mod manifests;
mod mesh_config;
mod mistakes;
mod origin;
mod other_tools;
pub(crate) mod passed_over;
pub(crate) mod watch;

pub use manifests::{Manifests, Sourced, follow, parse, read};
pub use mesh_config::mesh_config;
pub use origin::Origin;
pub use passed_over::{Concerns, PassedOver};
