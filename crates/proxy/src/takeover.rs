//! Handing over to the next proxy.
//!
//! A proxy that is told to end keeps accepting a pod's new connections until another proxy listens there too. The
//! kernel then gives each its share of new connections, and all of them to the new one once this one has closed its
//! listeners. The new proxy learns of the pods from the node agent and need not know of this one, so it may be a
//! ztunnel or another version.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use leno_capture::{NetworkNamespace, others_listen};
use tokio::time::{Instant, sleep_until};

/// Shortest time between two checks of who listens in a pod. The longer it is, the more new connections go to a proxy
/// that ends. One check costs about a tenth of a millisecond.
const LOOK: Duration = Duration::from_millis(25);

/// The pods that are checked, all on one thread that has other work as well.
#[derive(Default)]
pub struct Looked(AtomicUsize);

impl Looked {
    fn another(&self) -> Looking<'_> {
        self.0.fetch_add(1, Relaxed);
        Looking(self)
    }

    /// The pause after a check that took `took`, so that the checks of all pods together take at most a tenth of the
    /// thread.
    fn pause(&self, took: Duration) -> Duration {
        let pods = u32::try_from(self.0.load(Relaxed)).unwrap_or(u32::MAX);
        took.saturating_mul(pods).saturating_mul(10).max(LOOK)
    }
}

/// One of the checked pods. Dropping it removes it from the count.
struct Looking<'a>(&'a Looked);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// The places where a proxy listens in one network namespace: its TCP ports and its sockets' inodes. A socket with
/// another inode belongs to another proxy.
#[derive(Debug)]
pub struct Listeners {
    netns: NetworkNamespace,
    ports: BTreeSet<u16>,
    inodes: BTreeSet<u64>,
}

impl Listeners {
    /// Begins an empty set for the pod with this network namespace.
    pub fn new(netns: NetworkNamespace) -> Self {
        Self { netns, ports: BTreeSet::new(), inodes: BTreeSet::new() }
    }

    /// Adds a socket that listens on `port`.
    ///
    /// # Errors
    /// If the kernel does not tell the socket's inode.
    pub fn note(&mut self, port: u16, socket: &impl AsFd) -> io::Result<()> {
        self.inodes.insert(nix::sys::stat::fstat(socket)?.st_ino);
        self.ports.insert(port);
        Ok(())
    }

    /// The namespace.
    pub fn netns(&self) -> &NetworkNamespace {
        &self.netns
    }

    /// Resolves when another proxy listens there as well, or when waiting longer is useless: at `until`, or when `moot`
    /// resolves. `name` is the pod's name for the log.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub async fn taken_over(&self, name: &str, until: Instant, looked: &Looked, moot: impl Fn() -> bool) {
        let _looking = looked.another();
        while !moot() && Instant::now() < until {
            let begun = std::time::Instant::now();
            match others_listen(&self.netns, &self.ports, &self.inodes) {
                Ok(true) => {
                    tracing::info!(pod = name, "another proxy has taken over the pod");
                    return;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, pod = name, "can't tell whether another proxy serves the pod; letting go of it");
                    return;
                }
            }
            sleep_until(until.min(Instant::now() + looked.pause(begun.elapsed()))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_pods_the_longer_between_two_looks_at_one() {
        let looked = Looked::default();
        let one = looked.another();
        let took = Duration::from_micros(100);
        assert_eq!(looked.pause(took), LOOK);
        assert_eq!(looked.pause(10 * LOOK), 100 * LOOK, "a slow look");
        let others = (0..249).map(|_| looked.another()).collect::<Vec<_>>();
        assert_eq!(looked.pause(took), Duration::from_millis(250), "250 looks take 25 of them");
        drop(others);
        assert_eq!(looked.pause(took), LOOK, "those that were taken over need no more");
        drop(one);
        assert_eq!(looked.0.load(Relaxed), 0);
    }
}
