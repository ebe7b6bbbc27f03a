//! The control plane: Kubernetes and Istio objects in, discovery and certificates out.
//!
//! It does not know where its objects come from. A feed decodes them ([`leno_objects::decode()`]) and passes changes to
//! a [`Controller`]. The controller stores the objects ([`leno_objects::ObjectStore`]), translates them into what
//! proxies understand ([`translate`]) and publishes the result. A [`ControlPlane`] serves it, and signs certificates
//! for callers that [`CertificatePolicy`] allows.

pub mod authentication;
pub mod certificates;
pub mod controller;
pub mod endpoints;
pub mod explained;
mod feed;
pub mod gateway_status;
mod hint;
pub mod lint;
pub mod lookup;
pub mod roots;
pub mod server;
pub mod status;
pub mod translate;

pub use authentication::StaticTokens;
pub use certificates::CertificatePolicy;
pub use controller::Controller;
pub use endpoints::Endpoints;
pub use feed::Feed;
pub use leno_xds::server::{Authenticator, Limits, Memory};
pub use server::{ControlPlane, Follower, Followers};

#[cfg(test)]
mod testing;
