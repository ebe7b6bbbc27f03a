//! What the parts of a cluster do that a mesh builds on: its API server's defaults, the controllers of Deployments, StatefulSets, Jobs,
//! Pods and Nodes, addresses, service rules, DNS.
//!
//! *Never* knows who plays it: what there is of pods and nodes is handed in.

pub mod addresses;
pub(crate) mod admission;
pub(crate) mod config;
pub(crate) mod deployments;
pub(crate) mod dns;
pub(crate) mod jobs;
pub(crate) mod objects;
pub(crate) mod services;
pub(crate) mod stateful_sets;
pub(crate) mod waypoints;
