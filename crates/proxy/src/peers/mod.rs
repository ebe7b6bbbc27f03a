//! Peers: how they are reached and prove their identity, the connection under a tunnel, and endpoints that don't
//! answer.

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
