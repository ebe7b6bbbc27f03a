//! How is traffic brought in? Network namespaces, nf_tables rules, pod sockets, the CNI-to-proxy protocol, and the
//! enrollment of a pod.
//!
//! Everything here talks to the kernel directly: no `ip`, `nft` or `iptables` needs to be installed.

mod congestion;
mod connections;
mod conntrack;
mod error;
mod gate;
mod half_closed;
mod listeners;
mod marks;
mod netlink;
mod netns;
mod netns_names;
mod rule_watch;
mod sys;
#[cfg(test)]
mod test_support;

pub mod enroll;
pub mod nft;
pub mod path_mtu;
pub mod pod_hold;
pub mod pod_rules;
pub mod probe_rules;
pub mod sniff;
pub mod sockets;
pub mod zds;

pub use congestion::ShortPath;
pub use error::{Error, Result};
pub use gate::{Gate, Stopped};
pub use listeners::others_listen;
pub use netlink::links;
pub use netns::{NamespaceId, NetworkNamespace};
pub use netns_names::NAMED_DIR;
pub use rule_watch::RuleWatch;
