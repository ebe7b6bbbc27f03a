//! Other proxies: how they prove who they are, and what a tunnel to one runs over.

mod link;
mod unproven;

pub use link::{Link, Proof};
pub use unproven::{Place, Unproven};
