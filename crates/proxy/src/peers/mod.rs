//! Other proxies: how they are reached and prove who they are, what a tunnel to one runs over, and who does not answer.

mod failure;
mod handshake;
pub mod headers;
mod key;
mod link;
mod silent;
mod unproven;

pub use failure::Failure;
pub use handshake::{accept, connect};
pub use key::TunnelKey;
pub use link::{Link, Proof};
pub use silent::Silent;
pub use unproven::{AllUnproven, Place, Unproven};
