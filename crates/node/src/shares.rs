//! What the connections of one pod may take of the process's descriptors.
//!
//! Each connection holds sockets: one where the rest of its way is a tunnel, two in the clear; and so
//! does each tunnel that a peer has opened to the pod, one. A pod
//! that opens them without end, or is opened them by a peer, must leave room for the others. While
//! there is plenty, nobody is counted out; once there is not, those that have more than their share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nix::sys::resource::{Resource, getrlimit};

use crate::failure::Failure;

/// Assumed where the limit can't be read.
const USUAL: usize = 1024;

/// What all pods' connections may take together.
pub(crate) struct Shares {
    /// Sockets that connections take before pods are held to their shares; the rest of the
    /// descriptors is for tunnels to peers and for listeners, and for pods that have few.
    plenty: usize,
    taken: AtomicUsize,
    pods: AtomicUsize,
}

impl Shares {
    /// Of the descriptors that this process may open.
    pub(crate) fn of_this_process() -> Arc<Self> {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| soft as usize);
        Self::of(descriptors)
    }

    fn of(descriptors: usize) -> Arc<Self> {
        Arc::new(Self { plenty: descriptors / 4 * 3, taken: AtomicUsize::new(0), pods: AtomicUsize::new(0) })
    }

    /// A pod's share; it may take `most` sockets however many there are, 0 for no such limit.
    pub(crate) fn join(self: &Arc<Self>, pod: String, most: usize) -> Share {
        self.pods.fetch_add(1, Relaxed);
        Share { shares: self.clone(), pod, most, taken: AtomicUsize::new(0) }
    }
}

/// One pod's. To be dropped with the pod, when nothing of it is taken any more.
pub(crate) struct Share {
    shares: Arc<Shares>,
    pod: String,
    most: usize,
    taken: AtomicUsize,
}

impl Share {
    /// Takes one socket.
    ///
    /// # Errors
    /// If the pod has as many as it may have.
    pub(crate) fn take(&self) -> Result<(), Failure> {
        let taken = self.taken.load(Relaxed);
        if self.most > 0 && taken >= self.most {
            return Err(Failure::TooManySockets { pod: self.pod.clone(), most: self.most });
        }
        let (all, plenty) = (self.shares.taken.load(Relaxed), self.shares.plenty);
        if all >= plenty && taken >= plenty / self.shares.pods.load(Relaxed).max(1) {
            return Err(Failure::NoSockets { pod: self.pod.clone(), taken, all });
        }
        self.count();
        Ok(())
    }

    /// Counts one that is there anyway.
    pub(crate) fn count(&self) {
        self.taken.fetch_add(1, Relaxed);
        self.shares.taken.fetch_add(1, Relaxed);
    }

    pub(crate) fn give_back(&self, sockets: usize) {
        self.taken.fetch_sub(sockets, Relaxed);
        self.shares.taken.fetch_sub(sockets, Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.pods.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(share: &Share) -> usize {
        (0..).take_while(|_| share.take().is_ok()).count()
    }

    #[test]
    fn who_has_much_leaves_room_for_the_others() {
        let shares = Shares::of(400);
        let (greedy, second, third) =
            (shares.join("a/b".into(), 0), shares.join("a/c".into(), 0), shares.join("a/d".into(), 0));
        assert_eq!(taken(&greedy), 300, "alone, it may have what there is plenty of");
        let refused = greedy.take().unwrap_err().to_string();
        assert!(refused.contains("pod a/b") && refused.contains("300"), "{refused}");
        assert_eq!((taken(&second), taken(&third)), (100, 100), "a third each");
        greedy.give_back(250);
        assert!(greedy.take().is_ok());
        drop((second, third));
        assert_eq!(shares.pods.load(Relaxed), 1);
    }

    #[test]
    fn a_limit_of_its_own_holds_while_there_is_plenty() {
        let shares = Shares::of(400);
        let pod = shares.join("a/b".into(), 10);
        assert_eq!(taken(&pod), 10);
        assert!(matches!(pod.take(), Err(Failure::TooManySockets { most: 10, .. })));
        pod.give_back(1);
        assert!(pod.take().is_ok());
    }
}
