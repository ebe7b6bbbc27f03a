//! One machine as feed and stage: manifests from a directory, pods as processes in network namespaces.
//!
//! Four rooms, each of which may use those before it: [`files`] reads Kubernetes manifests; `cluster` does with them what a
//! cluster's own controllers would; `stage` is the machine that plays them: each node and each pod is a network namespace, each
//! container a local process, each node has a proxy process, a DNS server and rules for services; `command` is what a person
//! calls, in the supervisor's process ([`up`]) or in one that talks to it ([`client`], [`down`]).
//!
//! Whatever happens to the supervisor, no process outlives it (`stage::spawn`), and everything else it makes is written down
//! before it is made (`run_dir::record`), and found again by that. It restarts what dies, and that is all the orchestration it
//! does.

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
pub use stage::listing::{Listing, NodeListing, PassedOverListing, PodListing};
pub use stage::pod::init;
pub use stage::publish::{NotAPublish, Publish, Published, PublishedListing};
pub use stage::{ProxyState, Stage, StageEvent, StageHandle, StageOptions};
