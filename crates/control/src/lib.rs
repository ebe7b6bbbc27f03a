//! The control plane: Kubernetes and Istio objects in, discovery and certificates out.
//!
//! It does not know where its objects come from. A feed decodes them ([`leno_objects::decode()`]) and
//! hands changes to a [`Controller`], which keeps them ([`leno_objects::ObjectStore`]), translates them to what
//! proxies understand ([`translate`]) and publishes the result; a [`ControlPlane`] serves it,
//! with certificates for whom [`CertificatePolicy`] allows.

pub mod authentication;
pub mod certificates;
pub mod controller;
mod feed;
pub mod lint;
pub mod lookup;
pub mod roots;
pub mod server;
pub mod status;
pub mod translate;

pub use authentication::StaticTokens;
pub use certificates::CertificatePolicy;
pub use controller::Controller;
pub use feed::Feed;
pub use leno_xds::server::{Limits, Memory};
pub use server::ControlPlane;

#[cfg(test)]
mod testing;
