//! What becomes of a pod's connections where large packets vanish on the way and nobody says so?
//!
//! A router that can't pass on a packet tells its sender how large it may be. Where a firewall swallows that message, small packets
//! pass and large ones never do. Without a mesh, small requests would work there. With one, each connection begins with a handshake
//! that is larger than a packet (a post-quantum key share alone has 1 216 bytes), and would hang. TCP can find out by itself (RFC
//! 4821), but a new network namespace doesn't let it, whatever is set for the machine.

use crate::links;
use crate::netns::NetworkNamespace;

/// Of Linux: 0 never, 1 once large packets seem to vanish, 2 always begin with small ones. What is not 0 is somebody's choice.
const PROBING: &str = "net.ipv4.tcp_mtu_probing";

/// What else makes it work.
const WITH_PROBING: [(&str, &str); 2] = [
    // How often a segment is repeated before large packets seem to vanish. Linux's 3 comes to 6 s for each side. In a handshake both
    // sides send much, and it must end within 10 s; this way it takes 5.
    ("net.ipv4.tcp_retries1", "2"),
    // Bytes of data. Linux halves packets each time that a few repetitions are lost, down to 48 bytes. Where the network loses a fifth
    // of all packets, large or small, that happens within seconds and nothing gets on any more. With these, a packet is as small as
    // after the first step, which every link carries that carries IPv6 (1 280 bytes).
    ("net.ipv4.tcp_mtu_probe_floor", "1024"),
];

/// From now on, connections of this namespace find out how large their packets may be. Where `/proc/sys` is read-only, nothing changes.
pub fn find(namespace: &NetworkNamespace) {
    let set = || -> crate::Result<()> {
        if links::get_sysctl(namespace, PROBING)? != "0" {
            return Ok(());
        }
        for (name, value) in WITH_PROBING {
            links::set_sysctl(namespace, name, value)?;
        }
        links::set_sysctl(namespace, PROBING, "1")
    };
    if let Err(error) = set() {
        tracing::debug!(%namespace, %error, "where large packets vanish on the way, connections of this pod hang");
    }
}

#[cfg(test)]
#[path = "path_mtu_tests.rs"]
mod tests;
