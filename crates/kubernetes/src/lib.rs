//! The API server as feed and sink.
//!
//! * [`Client`]: requests to an API server, by kubeconfig or from within a pod.
//! * [`PodStream`], [`PodPage`], [`PodLog`]: connections to ports of pods, pages there, and what containers wrote.
//! * [`ClusterFeed`]: watches become the objects that a control plane understands.
//! * [`NodeFeed`]: what an agent of one node must know.
//! * [`mesh_config`]: the mesh's own configuration, from a file in the control plane's pod.
//! * [`TokenReviews`]: the API server says whose token it is.
//! * [`ClusterAuthority`]: the certificate authority's files are a Secret.
//! * [`Candidate`]: one of several replicas writes.
//! * [`GatewayKeeper`]: waypoints are made, and Gateways told what became of them.
//! * [`StatusWriter`]: findings about objects become conditions and Events.
//!
//! The client library finds the configuration, logs in and speaks HTTP. Objects are read by `leno-objects`, straight
//! into what is kept of them.

mod authority;
mod backoff;
mod client;
mod error;
mod feed;
mod forward;
mod gateways;
mod lease;
mod lines;
pub mod mesh_config;
mod named;
mod node_feed;
pub mod now;
mod pod_logs;
pub mod rbac;
mod reduce;
mod reflector;
mod resource;
mod status;
mod token_claims;
mod token_reviews;
mod wire;

pub use authority::{AuthorityError, ClusterAuthority};
pub use client::{Client, Cluster, Patch};
pub use error::Error;
pub use feed::{ClusterFeed, read_objects};
pub use forward::{PodPage, PodStream};
pub use gateways::{GatewayKeeper, WaypointTemplate};
pub use lease::Candidate;
pub use node_feed::{Listener, NodeFeed};
pub use pod_logs::{LogQuery, PodLog};
pub use resource::KINDS;
pub use status::{CONDITION, StatusWriter};
pub use token_reviews::TokenReviews;
