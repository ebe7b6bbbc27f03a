//! One machine as feed and stage: manifests from a directory, pods as processes in network namespaces.
//!
//! It has four parts, each of which may use those before it. [`files`] reads Kubernetes manifests. `cluster` does what
//! a cluster's own controllers do. `stage` is the machine that plays the manifests: each node and each pod is a network
//! namespace, each container is a local process, and each node has a proxy process, a DNS server and service rules.
//! `command` is what a person calls, in the supervisor's process ([`up`]) or in one that talks to it ([`client`],
//! [`down`]).
//!
//! Whatever happens to the supervisor, no process outlives it (`stage::spawn`). Everything else that it makes is
//! recorded before it is made (`run_dir::record`), so that it can be found and removed. It restarts what dies, and that
//! is all the orchestration it does.

mod cluster;
mod command;
mod descriptors;
mod error;
pub mod files;
pub mod names;
pub mod privilege;
mod run_dir;
mod stable_hash;
mod stage;

pub use cluster::addresses;
pub use command::{client, detach, down, logs, stages, up};
pub use error::Error;
pub use stage::listing::{Listing, NodeListing, PassedOverListing, PodListing, WaypointListing};
pub use stage::pod::init;
pub use stage::publish::{NotAPublish, Publish, Published, PublishedListing};
pub use stage::{ProxyState, Stage, StageEvent, StageHandle, StageOptions, Upgraded};
