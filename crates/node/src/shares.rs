//! What the connections of one pod may take of the process's descriptors, and of that, each who causes them.
//!
//! Each connection holds sockets: one where the rest of its way is a tunnel, two in the clear; and so
//! does each tunnel that a peer has opened to the pod, one. A pod
//! that opens them without end, or is opened them by a peer, must leave room for the others; and a peer
//! that opens them without end must leave room for the other peers of the same pod. While
//! there is plenty, nobody is counted out; once there is not, those that have more than their share.
//!
//! The shares are equal parts of equal parts: of kinds ([`Kind`]), so that strangers can't dilute the parts of the pod's own
//! programs and of those who have proved who they are, however many they are; then of identities, or of hosts; then of a host's
//! addresses, because whoever has one IPv6 address has a whole network of them, but a node's pods may share one as well.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use leno_model::Identity;
use leno_telemetry::{descriptor_limit, one_host};
use parking_lot::Mutex;

use crate::failure::Failure;

/// What the connections of all pods may take together.
pub(crate) struct Shares {
    /// The number of sockets above which pods are limited to their shares. The rest of the descriptors is for tunnels
    /// to peers, for listeners, and for pods that have few.
    plenty: usize,
    taken: AtomicUsize,
    pods: AtomicUsize,
}

impl Shares {
    /// For the descriptors that this process may open.
    pub(crate) fn of_this_process() -> Arc<Self> {
        Self::of(descriptor_limit() as usize)
    }

    fn of(descriptors: usize) -> Arc<Self> {
        Arc::new(Self { plenty: descriptors / 4 * 3, taken: AtomicUsize::new(0), pods: AtomicUsize::new(0) })
    }

    /// A pod's share. It may take at most `most` sockets however many are free; 0 for no such limit.
    pub(crate) fn join(self: &Arc<Self>, pod: String, most: usize) -> Arc<Share> {
        self.pods.fetch_add(1, Relaxed);
        Arc::new(Share { shares: self.clone(), pod, most, taken: Mutex::default() })
    }
}

/// Who causes a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The pod's own programs.
    Own,
    /// Somebody who has proved who they are.
    Peer(Identity),
    /// Somebody who is to prove it now.
    Unproven(IpAddr),
    /// Somebody in the clear.
    Address(IpAddr),
}

/// Those of a kind share what the kind gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    Peer,
    Unproven,
    Clear,
}

const KINDS: usize = 4;

impl Kind {
    /// The quarters that it may use of what remains once there is no plenty. The rest is for those that have proved more.
    fn quarters(self) -> usize {
        match self {
            Self::Own | Self::Peer => 4,
            Self::Unproven => 3,
            Self::Clear => 2,
        }
    }
}

impl Source {
    fn kind(&self) -> Kind {
        match self {
            Self::Own => Kind::Own,
            Self::Peer(_) => Kind::Peer,
            Self::Unproven(_) => Kind::Unproven,
            Self::Address(_) => Kind::Clear,
        }
    }

    /// Of a source that is one of a host's addresses, the host.
    fn party(&self) -> Cow<'_, Self> {
        match self {
            Self::Own | Self::Peer(_) => Cow::Borrowed(self),
            Self::Unproven(address) => Cow::Owned(Self::Unproven(one_host(*address))),
            Self::Address(address) => Cow::Owned(Self::Address(one_host(*address))),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the pod's own program"),
            Self::Unproven(address) | Self::Address(address) => address.fmt(f),
            Self::Peer(identity) => identity.fmt(f),
        }
    }
}

/// The share of one pod. Drop it with the pod, when it has no sockets any more.
pub(crate) struct Share {
    shares: Arc<Shares>,
    pod: String,
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Those that have any.
    sources: HashMap<Arc<Source>, usize>,
    /// Hosts, identities and the pod's own programs, if they have any.
    parties: HashMap<Source, Party>,
    /// How many parties there are of each kind.
    of_kind: [usize; KINDS],
    /// Sockets that addresses were given whose host had its share already.
    beyond: usize,
}

#[derive(Clone, Copy, Default)]
struct Party {
    taken: usize,
    /// Its sources that have any.
    sources: usize,
}

/// What is to be divided.
struct Divided {
    /// What everybody may have together; beyond that, only who has less than a fair share.
    plenty: usize,
    /// What is left beyond.
    rest: usize,
    /// What is taken of the rest.
    used: usize,
}

/// Sockets that one connection or tunnel has of its pod's share, and of what its source may have there. They are given
/// back when it is dropped.
pub(crate) struct Sockets {
    share: Arc<Share>,
    source: Arc<Source>,
    count: usize,
    /// One of them is beyond its host's share.
    beyond: bool,
}

impl Share {
    /// Takes one socket.
    ///
    /// # Errors
    /// If the pod has as many as it may have, or the source does.
    pub(crate) fn take(self: &Arc<Self>, source: Source) -> Result<Sockets, Failure> {
        let mut taken = self.taken.lock();
        let beyond = self.admit(&taken, &source)?;
        let source = taken.shared(source);
        taken.add(&source, beyond);
        self.shares.taken.fetch_add(1, Relaxed);
        drop(taken);
        Ok(Sockets { share: self.clone(), source, count: 1, beyond })
    }

    /// Whether a source may have one more; `true` if it is one beyond its host's share.
    fn admit(&self, taken: &Taken, source: &Source) -> Result<bool, Failure> {
        let mut beyond = false;
        if self.most > 0 {
            if taken.all >= self.most {
                return Err(Failure::TooManySockets { pod: self.pod.clone(), most: self.most });
            }
            let rest = self.most / 4;
            let plenty = self.most - rest;
            if taken.all >= plenty {
                let divided = Divided { plenty, rest, used: taken.all - plenty };
                beyond = self.judge(taken, source, &divided)?;
            }
        }
        let (all, plenty) = (self.shares.taken.load(Relaxed), self.shares.plenty);
        let share = plenty / self.shares.pods.load(Relaxed).max(1);
        if all < plenty || taken.all < share {
            return Ok(beyond);
        }
        // Three quarters of the descriptors are plenty, so the rest is a third of that.
        let divided = Divided { plenty: share, rest: plenty / 3, used: all - plenty };
        Ok(beyond | self.judge(taken, source, &divided)?)
    }

    /// The same, where sockets run short.
    fn judge(&self, taken: &Taken, source: &Source, divided: &Divided) -> Result<bool, Failure> {
        let refused =
            |holder: String, taken, fair| Err(Failure::TooManyOfSource { holder, pod: self.pod.clone(), taken, fair });
        let party = source.party();
        let count = taken.sources.get(source).copied().unwrap_or_default();
        let Party { taken: of_all, sources } = taken.parties.get(&*party).copied().unwrap_or_default();
        // All with the one that asks.
        let sources = sources + usize::from(count == 0);
        let kind = source.kind();
        let parties = taken.of_kind[kind as usize] + usize::from(of_all == 0);
        let others = taken.of_kind.iter().enumerate().filter(|(other, count)| *other != kind as usize && **count > 0);
        // At least one: it is no use to a newcomer that there are few.
        let of_party = (divided.plenty / (1 + others.count()) / parties).max(1);
        let of_source = of_party / sources;
        if count >= of_source.max(1) {
            return refused(source.to_string(), count, of_source.max(1));
        }
        let beyond = of_all >= of_party;
        // Another pod behind the network of one that has much is let in as long as few are. Of addresses that are too many
        // for a socket each, none is.
        if beyond && (of_source == 0 || taken.beyond >= divided.rest / 4) {
            return refused(format!("the network {party}/64"), of_all, of_party);
        }
        if kind.quarters() < 4 && divided.used >= divided.rest * kind.quarters() / 4 {
            return Err(Failure::RestIsKept { holder: source.to_string(), pod: self.pod.clone(), taken: taken.all });
        }
        Ok(beyond)
    }
}

impl Taken {
    /// The one that those have who have any.
    fn shared(&self, source: Source) -> Arc<Source> {
        let held = self.sources.get_key_value(&source).map(|(source, _)| source.clone());
        held.unwrap_or_else(|| Arc::new(source))
    }

    fn add(&mut self, source: &Arc<Source>, beyond: bool) {
        self.all += 1;
        self.beyond += usize::from(beyond);
        let count = self.sources.entry(source.clone()).or_default();
        *count += 1;
        let is_new_source = *count == 1;
        let party = self.parties.entry(source.party().into_owned()).or_default();
        party.taken += 1;
        party.sources += usize::from(is_new_source);
        self.of_kind[source.kind() as usize] += usize::from(party.taken == 1);
    }

    fn remove(&mut self, source: &Source, count: usize, beyond: bool) {
        self.all -= count;
        self.beyond -= usize::from(beyond);
        let mut is_gone = false;
        if let Some(left) = self.sources.get_mut(source) {
            *left -= count;
            is_gone = *left == 0;
        }
        if is_gone {
            self.sources.remove(source);
            shrink(&mut self.sources);
        }
        let name = source.party();
        let Some(party) = self.parties.get_mut(&*name) else { return };
        party.taken -= count;
        party.sources -= usize::from(is_gone);
        if party.taken == 0 {
            self.parties.remove(&*name);
            shrink(&mut self.parties);
            self.of_kind[source.kind() as usize] -= 1;
        }
    }
}

/// A map does not shrink by itself.
fn shrink<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > ROOM && map.len() < map.capacity() / 8 {
        map.shrink_to(2 * map.len());
    }
}

/// Sources for which a pod keeps room.
const ROOM: usize = 256;

impl Sockets {
    /// Counts one more that is there anyway.
    pub(crate) fn count_another(&mut self) {
        self.share.taken.lock().add(&self.source, false);
        self.count += 1;
        self.share.shares.taken.fetch_add(1, Relaxed);
    }

    /// From now on `source` has them: whoever was to prove who they are has done so.
    ///
    /// # Errors
    /// If that source has as many as it may have. Nothing has changed then.
    pub(crate) fn give_to(&mut self, source: Source) -> Result<(), Failure> {
        let share = self.share.clone();
        let mut taken = share.taken.lock();
        // What is handed on is not there twice.
        taken.remove(&self.source, self.count, self.beyond);
        share.shares.taken.fetch_sub(self.count, Relaxed);
        let admitted = share.admit(&taken, &source);
        if let Ok(beyond) = admitted {
            self.source = taken.shared(source);
            self.beyond = beyond;
        }
        for number in 0..self.count {
            taken.add(&self.source, self.beyond && number == 0);
        }
        share.shares.taken.fetch_add(self.count, Relaxed);
        admitted.map(|_| ())
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.share.taken.lock().remove(&self.source, self.count, self.beyond);
        self.share.shares.taken.fetch_sub(self.count, Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.pods.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
