//! Manifests from files: read as a whole, and again when one of them changes.

mod layout;
mod manifests;
mod mistakes;
mod other_tools;
pub(crate) mod watch;

pub use manifests::{Manifests, Origin, Sourced, follow, parse, read};
