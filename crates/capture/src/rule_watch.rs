//! Noticing that somebody changes the rules or routes of a network namespace. The kernel sends a message for each change, so
//! the rules need not be read at intervals.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType};
use tokio::io::unix::AsyncFd;

use crate::error::{Error, Result};
use crate::netns::NetworkNamespace;

/// The bit of a multicast group. Groups are numbered from 1 (linux/rtnetlink.h, linux/netfilter/nfnetlink.h).
const fn group(number: u32) -> u32 {
    1 << (number - 1)
}
/// IPv4 routes, IPv4 rules, IPv6 routes, IPv6 rules.
const RULES_AND_ROUTES: u32 = group(7) | group(8) | group(11) | group(19);
const NF_TABLES: u32 = group(7);

/// A watch over the rules of one namespace. It has two descriptors, and keeps the namespace alive.
#[derive(Debug)]
pub struct RuleWatch {
    routing: AsyncFd<OwnedFd>,
    filtering: AsyncFd<OwnedFd>,
}

impl RuleWatch {
    /// Watches from now on.
    ///
    /// # Errors
    /// When the namespace can't be entered, or the process is out of descriptors.
    pub fn new(namespace: &NetworkNamespace) -> Result<Self> {
        let routing = subscribe(namespace, SockProtocol::NetlinkRoute, RULES_AND_ROUTES)?;
        let filtering = subscribe(namespace, SockProtocol::NetlinkNetFilter, NF_TABLES)?;
        Ok(Self { routing, filtering })
    }

    /// Resolves when something was changed since the last time, whoever did it.
    pub async fn changed(&self) {
        tokio::select! {
            () = drained(&self.routing) => {}
            () = drained(&self.filtering) => {}
        }
    }
}

#[allow(unsafe_code)]
fn subscribe(namespace: &NetworkNamespace, protocol: SockProtocol, groups: u32) -> Result<AsyncFd<OwnedFd>> {
    let fail = |e: std::io::Error| Error::system(format!("watching the rules of {namespace}"), e);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let open = || socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol);
    let fd = namespace.run(open)?.map_err(|e| fail(e.into()))?;
    socket::bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(|e| fail(e.into()))?;
    // SAFETY: an `OwnedFd` names the same descriptor for as long as it lives, and closes it only when dropped, which is after
    // `AsyncFd` has deregistered it.
    unsafe { AsyncFd::register(fd) }.map_err(|failed| fail(failed.into_parts().1))
}

/// Waits for messages and takes all of them.
async fn drained(fd: &AsyncFd<OwnedFd>) {
    let Ok(mut ready) = fd.readable().await else { return std::future::pending().await };
    // The messages' content does not matter, nor that some did not fit the socket's queue: the caller reads the rules anyway.
    let mut buffer = [0; 64];
    let mut receive = || socket::recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC);
    while let Ok(_) | Err(nix::Error::ENOBUFS | nix::Error::EINTR) = receive() {}
    ready.clear_ready();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::pod_rules::{self, PodRules};
    use crate::test_support::may_run;

    #[tokio::test]
    async fn changes_are_told_and_rest_is_silence() {
        if !may_run("changes_are_told_and_rest_is_silence") {
            return;
        }
        let (namespace, elsewhere) = (NetworkNamespace::create().unwrap(), NetworkNamespace::create().unwrap());
        let watch = RuleWatch::new(&namespace).unwrap();
        let soon = async || timeout(Duration::from_secs(20), watch.changed()).await;
        let silent = async || timeout(Duration::from_millis(50), watch.changed()).await.is_err();
        pod_rules::install(&elsewhere, &PodRules::default()).unwrap();
        assert!(silent().await, "other namespaces are none of its business");
        pod_rules::install(&namespace, &PodRules::default()).unwrap();
        soon().await.unwrap();
        while !silent().await {}
        pod_rules::remove_redirect(&namespace).unwrap();
        soon().await.unwrap();
        while !silent().await {}
        let rules = crate::links::list_policy_rules(&namespace).unwrap();
        let ours = rules.iter().find(|rule| rule.mark.is_some()).unwrap();
        crate::links::delete_policy_rule(&namespace, ours).unwrap();
        soon().await.unwrap();
    }
}
