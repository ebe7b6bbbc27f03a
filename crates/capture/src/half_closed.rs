//! How long does the kernel remember a pod's connection after one side has ended?
//!
//! A redirected connection lives by its entry in the kernel's table of connections: without it, the next packet goes nowhere. A program may
//! say that it has no more to say and wait for an answer for long. The kernel forgets such a connection after one or two
//! minutes without a packet; Linux's own TCP does not.

use crate::links;
use crate::netns::NetworkNamespace;

/// Longer than keepalive's two hours, after which a program finds that its peer is gone. A connection whose two sides
/// have ended is forgotten as quickly as before.
const SECONDS: &str = "10800";

/// From now on, in this namespace. Where the kernel refuses, a warning says so, and half-closed connections end early.
pub(crate) fn keep(namespace: &NetworkNamespace) {
    for state in ["close_wait", "fin_wait"] {
        let name = format!("net.netfilter.nf_conntrack_tcp_timeout_{state}");
        if let Err(error) = links::set_sysctl(namespace, &name, SECONDS) {
            tracing::warn!(
                %namespace,
                %error,
                "connections that one side has ended are cut after a minute or two without a byte; is /proc/sys writable?"
            );
            return;
        }
    }
}
