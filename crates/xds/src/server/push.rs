//! What a proxy has, what it wants, and what it is sent next: delta discovery as a state machine without a network or a
//! clock.
//!
//! Differences are taken between the latest snapshot and what the proxy was sent. So a slow proxy skips intermediate
//! versions and needs no queue. What it was sent is an earlier snapshot, which shares with the latest one everything
//! that did not change. Proxies that were sent the same lack the same, so the difference is found and encoded once
//! (`delta`). One response per type is under way at a time.
//!
//! Policies and workloads are ordered, because a proxy must never know a workload without a policy that the workload
//! names, not even for a moment (ztunnel would allow connections). The order is: new policies; workloads, when the
//! policies were acknowledged; removals of policies, when the workloads were acknowledged. A policy whose scope narrows
//! to workloads that name it is in part a removal, and is sent with those.
//!
//! Likewise a waypoint must never know a service without what is to happen to its requests. What says so goes before the
//! services, and services wait for it.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use leno_model::Name;
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE};

use super::answer::Answer;
use super::delta::{Deltas, Part};
use super::request::Request;
use super::type_state::{ACK_GRACE, OF_REQUESTS, POLICY_GRACE, TypeProgress, TypeState};
use crate::Resources;
use crate::catalogue::Catalogue;

/// How long the first workloads wait for the proxy to subscribe to policies. Proxies subscribe to both at once.
const FIRST_GRACE: Duration = Duration::from_secs(1);
/// Types one stream may ask for; there are three in use.
const MAX_TYPES: usize = 16;
/// Most names that one stream may subscribe to individually.
const MAX_NAMES: usize = 100_000;

static NOTHING: LazyLock<Arc<Catalogue>> = LazyLock::new(Arc::default);

/// A request that no well-behaved client sends. The stream must end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The request has no type.
    #[error("a discovery request has no type_url")]
    NoType,
    /// Too many types on one stream.
    #[error("the proxy subscribes to more than {MAX_TYPES} types on one stream; a proxy needs three")]
    TooManyTypes,
    /// Too many names.
    #[error("the proxy subscribes to more than {MAX_NAMES} names one by one; subscribe to everything instead")]
    TooManyNames,
}

/// The state of one discovery stream.
#[derive(Debug, Default)]
pub struct Subscription {
    types: Vec<TypeState>,
    nonce: u64,
    deltas: Arc<Deltas>,
    /// Who reads, where a resource is for one reader only.
    reader: Option<Name>,
}

impl Subscription {
    /// A new stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Self::new`], for this reader (`namespace/service account`, proved), with differences that are shared with other
    /// streams.
    pub(super) fn sharing(deltas: Arc<Deltas>, reader: Name) -> Self {
        Self { deltas, reader: Some(reader), ..Self::default() }
    }

    /// Takes a request: a subscription, a change of one, an ACK or a NACK.
    ///
    /// # Errors
    /// If the stream must end.
    pub fn request(&mut self, request: &Request, now: Instant) -> Result<(), ProtocolError> {
        if request.type_url().is_empty() {
            return Err(ProtocolError::NoType);
        }
        let state = match self.types.iter().position(|state| *state.type_url == *request.type_url()) {
            Some(index) => {
                let state = &mut self.types[index];
                state.acknowledge(request);
                state.change(request);
                state
            }
            None if self.types.len() == MAX_TYPES => return Err(ProtocolError::TooManyTypes),
            None => {
                self.types.push(TypeState::open(request, now));
                // It was pushed just now.
                let last = self.types.len() - 1;
                &mut self.types[last]
            }
        };
        if state.names.len() > MAX_NAMES { Err(ProtocolError::TooManyNames) } else { Ok(()) }
    }

    /// The next response to send now, if there is one. Call it again until it returns `None`, and after every request,
    /// every new snapshot, and at [`Self::wake_at`].
    pub fn next(&mut self, snapshot: &Resources, now: Instant) -> Option<Answer> {
        for state in &mut self.types {
            let latest = snapshot.seen_by(&state.type_url, self.reader.as_ref()).unwrap_or(&NOTHING);
            state.refresh(latest, &self.deltas, now);
        }
        if let Some(policies) = self.index(AUTHORIZATION_TYPE)
            && let Some(response) = self.respond(policies, Part::Early, now)
        {
            return Some(response);
        }
        for type_url in OF_REQUESTS {
            if let Some(index) = self.index(type_url)
                && let Some(response) = self.respond(index, Part::All, now)
            {
                return Some(response);
            }
        }
        for index in 0..self.types.len() {
            let held_back = match &*self.types[index].type_url {
                AUTHORIZATION_TYPE => true,
                ADDRESS_TYPE => self.addresses_wait_until(now).is_some(),
                _ => false,
            };
            if !held_back && let Some(response) = self.respond(index, Part::All, now) {
                return Some(response);
            }
        }
        let policies = self.index(AUTHORIZATION_TYPE)?;
        let addresses_sent = self.index(ADDRESS_TYPE).is_none_or(|index| self.types[index].pending.is_empty(Part::All));
        if addresses_sent && self.late_wait_until(now).is_none() {
            self.respond(policies, Part::Late, now)
        } else {
            None
        }
    }

    /// When to call [`Self::next`] again if nothing happens.
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        let acks = self
            .types
            .iter()
            .filter(|state| state.owes_answer || !state.pending.is_empty(Part::All))
            .filter_map(|state| Some(state.waiting.as_ref()?.since + state.ack_grace()));
        let addresses = self
            .index(ADDRESS_TYPE)
            .filter(|index| self.types[*index].owes_answer || !self.types[*index].pending.is_empty(Part::All))
            .and_then(|_| self.addresses_wait_until(now));
        acks.chain(addresses).chain(self.late_wait_until(now)).filter(|at| *at > now).min()
    }

    /// Whether the proxy has answered everything it was sent, and lacks nothing of the snapshot that [`Self::next`] was
    /// last called with.
    pub fn in_sync(&self) -> bool {
        !self.types.is_empty() && self.types.iter().all(TypeState::in_sync)
    }

    /// How many responses of a type the proxy refused at least one resource of.
    pub(super) fn nacked(&self, type_url: &str) -> u64 {
        self.index(type_url).map_or(0, |index| self.types[index].nacked)
    }

    /// The proxy's progress with each type that it subscribed to.
    pub fn progress(&self) -> Vec<TypeProgress> {
        self.types.iter().map(TypeState::progress).collect()
    }

    /// Updates an earlier result of [`Self::progress`]. Returns whether that changed anything.
    pub(super) fn update(&self, progress: &mut Vec<TypeProgress>) -> bool {
        let mut changed = false;
        for (at, state) in self.types.iter().enumerate() {
            let now = state.progress();
            match progress.get_mut(at) {
                Some(before) if *before == now => continue,
                Some(before) => *before = now,
                None => progress.push(now),
            }
            changed = true;
        }
        changed
    }

    fn index(&self, type_url: &str) -> Option<usize> {
        self.types.iter().position(|state| &*state.type_url == type_url)
    }

    /// Until when workloads and services must wait for policies and for what is to happen to requests; `None` if they need
    /// not.
    fn addresses_wait_until(&self, now: Instant) -> Option<Instant> {
        let of_requests = OF_REQUESTS.into_iter().filter_map(|type_url| {
            let state = &self.types[self.index(type_url)?];
            // It can't be sent before the previous response is answered.
            let unsent = !state.pending.is_empty(Part::All) || state.owes_answer;
            state.waiting.as_ref().filter(|_| unsent).map(|waiting| waiting.since + POLICY_GRACE)
        });
        of_requests.chain(self.wait_for_policies()).filter(|until| *until > now).max()
    }

    fn wait_for_policies(&self) -> Option<Instant> {
        let until = match self.index(AUTHORIZATION_TYPE) {
            // It may be about to subscribe to policies.
            None => {
                let addresses = &self.types[self.index(ADDRESS_TYPE)?];
                (addresses.sent_count == 0).then(|| addresses.requested_at + FIRST_GRACE)?
            }
            Some(index) => {
                let policies = &self.types[index];
                // Policies not sent yet will be sent soon: they wait for the previous response, and no longer than this
                // either.
                let unsent = !policies.pending.is_empty(Part::Early) || policies.owes_answer;
                match (&policies.waiting, unsent) {
                    (Some(waiting), true) => waiting.since + POLICY_GRACE,
                    _ => policies.unacked_since? + POLICY_GRACE,
                }
            }
        };
        Some(until)
    }

    /// Until when removals of policies must wait for workloads that were sent; `None` if they need not. Workloads that
    /// change all the time are not waited for for ever.
    fn late_wait_until(&self, now: Instant) -> Option<Instant> {
        let late_since = self.types[self.index(AUTHORIZATION_TYPE)?].late_since?;
        let sent = self.types[self.index(ADDRESS_TYPE)?].waiting.as_ref()?.since;
        let until = (sent + POLICY_GRACE).min(late_since + ACK_GRACE);
        (until > now).then_some(until)
    }

    fn respond(&mut self, index: usize, part: Part, now: Instant) -> Option<Answer> {
        let nonce = self.nonce + 1;
        let response = self.types[index].respond(part, nonce, now)?;
        self.nonce = nonce;
        Some(response)
    }
}

#[cfg(test)]
#[path = "naive.rs"]
mod naive;
#[cfg(test)]
#[path = "oracle_tests.rs"]
mod oracle_tests;
#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
