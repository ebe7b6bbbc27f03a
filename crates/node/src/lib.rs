//! The L4 proxy of a node: it carries the TCP of every enrolled pod on its node, encrypted to
//! peers in the mesh, authorised on arrival, and answers the pods' DNS.
//!
//! ```text
//!  pod's program ─▶ 15001 outbound ══ HBONE/mTLS ══▶ 15008 inbound ─▶ program of another pod
//!                                      plain TCP ──▶ 15006 inbound ─▶
//!  pod's resolver ─▶ 15053 dns
//! ```
//!
//! All listeners live in the pod's own network namespace; [`pods`] opens them when the node
//! agent hands the namespace over. Discovery ([`leno_proxy::mesh`]), certificates and the admin endpoint
//! run on one control thread; connections run on [`leno_proxy::threads`], which nothing else may use: a
//! metrics scrape or a burst of configuration must not move a connection's tail latency.
//!
//! It knows neither Kubernetes nor the waypoint: its world is a [`leno_model::Mesh`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

mod config;
mod context;
mod dial;
mod dns;
mod failure;
#[cfg(test)]
mod footprint_tests;
mod inbound;
mod lanes;
mod node;
mod outbound;
mod pod;
mod pods;
mod report;
mod shares;

pub use config::{Config, CongestionControl, OriginalSource, PodConfig};
pub use node::{run, start};
