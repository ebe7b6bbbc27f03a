//! The L4 proxy of a node. It carries the TCP traffic of every enrolled pod on its node, encrypts it to peers in the
//! mesh, authorises it on arrival, and answers the pods' DNS.
//!
//! ```text
//!  pod's program ─▶ 15001 outbound ══ HBONE/mTLS ══▶ 15008 inbound ─▶ program of another pod
//!                                      plain TCP ──▶ 15006 inbound ─▶
//!  pod's resolver ─▶ 15053 dns
//! ```
//!
//! All listeners are in the pod's own network namespace. `pods` opens them when the node agent hands the namespace
//! over. Threads, discovery and the other parts of every proxy come from [`leno_proxy`], for which this is a
//! [`leno_proxy::Carrier`].
//!
//! ```text
//!  node       the carrier, and how it starts
//!  pods       which pods there are; opening their listeners
//!  pod        one pod: its phase, its live connections, what they share
//!  outbound   what its programs open: routed, and carried to a peer
//!  inbound    what peers open by HBONE, and others in the clear: authorised, and carried to its program
//!  dns        its programs' questions
//!  dial       connections out of a pod's namespace
//!  report     what is told of a connection in metrics and the access log; failure: why it was not carried
//!  traffic    the facts of a connection and what it has carried, for whoever looks at what is open
//! ```
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
mod traffic;

pub use config::{Config, CongestionControl, OriginalSource, PodConfig};
pub use node::{run, start};
