//! The simplest implementation of [`Subscription`](super::super::Subscription)'s rules, which tests compare it with:
//! everything sent is remembered by name, and compared with everything published each time.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use leno_model::Name;
use leno_proto::discovery::{self, DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE};

use crate::Resources;
use crate::resource::reach_of;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plain {
    version: Name,
    body: Vec<u8>,
    aliases: Vec<String>,
}

impl Plain {
    fn version(&self) -> &Name {
        &self.version
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }
}

type ResourceMap = BTreeMap<Name, Plain>;

/// How long workloads wait for the acknowledgement of policies. A proxy that never gives one
/// gets them all the same; it has been sent the policies before them.
///
/// And how long removals of policies wait for the acknowledgement of workloads.
const POLICY_GRACE: Duration = Duration::from_secs(2);
/// How long the first workloads wait for the proxy to ask for policies at all. Proxies ask for
/// both in one breath.
const FIRST_GRACE: Duration = Duration::from_secs(1);
/// After this, a response that was never acknowledged holds up the next no longer.
const ACK_GRACE: Duration = Duration::from_secs(10);
const WILDCARD: &str = "*";

/// The state of one discovery stream.
#[derive(Debug, Default)]
pub(super) struct Naive {
    types: Vec<TypeState>,
    nonce: u64,
}

#[derive(Debug)]
struct TypeState {
    type_url: Name,
    wildcard: bool,
    names: BTreeSet<Name>,
    /// The version of each resource that the proxy has, by name; no version means that it was told there is no such resource.
    sent: HashMap<Name, Option<Name>>,
    /// The reach of versions sent earlier that the proxy may still use, if it is higher than that of the version in
    /// `sent`; until the proxy accepts the latter.
    reached: HashMap<Name, u8>,
    /// Whether an answer is due even if it is empty: to the first request, and for every new name.
    owes_answer: bool,
    requested_at: Instant,
    pending: Pending,
    waiting: Option<Waiting>,
    /// Since when policies are under way that were not acknowledged.
    unacked_since: Option<Instant>,
    /// Since when there is something to send last.
    late_since: Option<Instant>,
    sent_count: u64,
    acked: u64,
    nacked: u64,
}

/// What the proxy lacks of the snapshot `of`.
#[derive(Debug, Default)]
struct Pending {
    of: Option<ResourceMap>,
    upserts: Vec<Name>,
    /// Upserts with a lower reach than the version that the proxy has.
    narrowing: Vec<Name>,
    removals: Vec<Name>,
}

#[derive(Debug)]
struct Waiting {
    nonce: String,
    since: Instant,
    /// Resources whose reach it narrows. Until the answer, the proxy may use the new version or the old one.
    narrows: HashSet<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    /// Resources that must be there before workloads name them.
    Early,
    /// Resources that may go only when no workload needs them any more.
    Late,
}

impl Naive {
    /// Takes a request of the proxy's: a subscription, a change of one, an ACK or a NACK.
    pub(super) fn request(&mut self, request: DeltaDiscoveryRequest, now: Instant) {
        match self.types.iter_mut().find(|state| *state.type_url == *request.type_url) {
            Some(state) => {
                state.acknowledge(&request);
                state.change(request.resource_names_subscribe, request.resource_names_unsubscribe);
            }
            None => self.types.push(TypeState::open(request, now)),
        }
    }

    /// The next response to send, if there is one to send now. Call again until there is none,
    /// and again after every request, every new snapshot, and at [`Self::wake_at`].
    pub(super) fn next(&mut self, snapshot: &Resources, now: Instant) -> Option<DeltaDiscoveryResponse> {
        for state in &mut self.types {
            state.refresh(snapshot, now);
        }
        if let Some(policies) = self.index(AUTHORIZATION_TYPE)
            && let Some(response) = self.respond(policies, Part::Early, now)
        {
            return Some(response);
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
        let addresses_sent = self.index(ADDRESS_TYPE).is_none_or(|index| self.types[index].pending.is_empty());
        if addresses_sent && self.late_wait_until(now).is_none() {
            self.respond(policies, Part::Late, now)
        } else {
            None
        }
    }

    /// When to call [`Self::next`] again although nothing happens.
    pub(super) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let acks = self
            .types
            .iter()
            .filter(|state| state.owes_answer || !state.pending.is_empty())
            .filter_map(|state| Some(state.waiting.as_ref()?.since + state.ack_grace()));
        let addresses = self
            .index(ADDRESS_TYPE)
            .filter(|index| self.types[*index].owes_answer || !self.types[*index].pending.is_empty())
            .and_then(|_| self.addresses_wait_until(now));
        acks.chain(addresses).chain(self.late_wait_until(now)).filter(|at| *at > now).min()
    }

    /// Whether the proxy has answered everything it was sent and lacks nothing of the snapshot
    /// [`Self::next`] was last called with.
    pub(super) fn in_sync(&self) -> bool {
        !self.types.is_empty() && self.types.iter().all(TypeState::in_sync)
    }

    /// Of each type: how many the proxy holds, how many responses it accepted and refused.
    pub(super) fn progress(&self) -> Vec<(Name, usize, u64, u64, bool)> {
        let of = |state: &TypeState| (state.type_url.clone(), state.held(), state.acked, state.nacked, state.in_sync());
        self.types.iter().map(of).collect()
    }

    fn index(&self, type_url: &str) -> Option<usize> {
        self.types.iter().position(|state| &*state.type_url == type_url)
    }

    /// Until when workloads must wait for policies; `None` if they need not.
    fn addresses_wait_until(&self, now: Instant) -> Option<Instant> {
        let until = match self.index(AUTHORIZATION_TYPE) {
            // It may be about to ask for policies.
            None => {
                let addresses = &self.types[self.index(ADDRESS_TYPE)?];
                (addresses.sent_count == 0).then(|| addresses.requested_at + FIRST_GRACE)?
            }
            Some(index) => {
                let policies = &self.types[index];
                // Policies not sent yet will be sent soon: they wait for the previous response,
                // no longer than this either.
                let unsent = !policies.pending.upserts.is_empty() || policies.owes_answer;
                match (&policies.waiting, unsent) {
                    (Some(waiting), true) => waiting.since + POLICY_GRACE,
                    _ => policies.unacked_since? + POLICY_GRACE,
                }
            }
        };
        (until > now).then_some(until)
    }

    /// Until when removal of policies must wait for workloads that were sent; `None` if it need
    /// not. Workloads that never stop changing are not waited for for ever.
    fn late_wait_until(&self, now: Instant) -> Option<Instant> {
        let late_since = self.types[self.index(AUTHORIZATION_TYPE)?].late_since?;
        let sent = self.types[self.index(ADDRESS_TYPE)?].waiting.as_ref()?.since;
        let until = (sent + POLICY_GRACE).min(late_since + ACK_GRACE);
        (until > now).then_some(until)
    }

    fn respond(&mut self, index: usize, part: Part, now: Instant) -> Option<DeltaDiscoveryResponse> {
        let nonce = self.nonce + 1;
        let response = self.types[index].respond(part, nonce, now)?;
        self.nonce = nonce;
        Some(response)
    }
}

impl TypeState {
    fn open(request: DeltaDiscoveryRequest, now: Instant) -> Self {
        let subscribe = request.resource_names_subscribe;
        // No names at all is how a client says everything (xDS protocol, "wildcard").
        let wildcard = subscribe.is_empty() && request.resource_names_unsubscribe.is_empty();
        let mut state = Self {
            type_url: request.type_url.into(),
            wildcard,
            names: BTreeSet::new(),
            sent: HashMap::new(),
            reached: HashMap::new(),
            owes_answer: true,
            requested_at: now,
            pending: Pending::default(),
            waiting: None,
            unacked_since: None,
            late_since: None,
            sent_count: 0,
            acked: 0,
            nacked: 0,
        };
        state.change(subscribe, request.resource_names_unsubscribe);
        state.sent = request
            .initial_resource_versions
            .into_iter()
            .map(|(name, version)| (Name::from(name), Some(Name::from(version))))
            .filter(|(name, _)| state.wildcard || state.names.contains(name))
            .collect();
        state
    }

    fn change(&mut self, subscribe: Vec<String>, unsubscribe: Vec<String>) {
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return;
        }
        for name in subscribe {
            if name == WILDCARD {
                self.wildcard = true;
            } else {
                let name = Name::from(name);
                // Asked for again means: send it again.
                self.sent.remove(&name);
                self.names.insert(name);
            }
            self.owes_answer = true;
        }
        for name in unsubscribe {
            if name == WILDCARD {
                self.wildcard = false;
            } else {
                self.names.remove(&*name);
                if !self.wildcard {
                    self.sent.remove(&*name);
                }
            }
        }
        self.pending.of = None;
    }

    fn acknowledge(&mut self, request: &DeltaDiscoveryRequest) {
        // Any other nonce answers something older, or nothing.
        let Some(answered) = self.waiting.take_if(|waiting| waiting.nonce == request.response_nonce) else { return };
        self.unacked_since = None;
        if !answered.narrows.is_empty() {
            // What reaches less far than what the proxy has is known again.
            self.pending.of = None;
        }
        match &request.error_detail {
            None => {
                self.acked += 1;
                for name in &answered.narrows {
                    self.reached.remove(name);
                }
            }
            Some(_) => self.nacked += 1,
        }
    }

    /// Finds what the proxy lacks, unless that is known.
    fn refresh(&mut self, snapshot: &Resources, now: Instant) {
        let plain = |resource: &crate::Published| Plain {
            version: resource.version().into(),
            body: resource.body().to_vec(),
            aliases: resource.aliases().into_iter().map(str::to_owned).collect(),
        };
        let all = snapshot.of(&self.type_url).into_iter().flat_map(|all| all.iter());
        let latest = &all.map(|(name, resource)| (name.clone(), plain(resource))).collect();
        if self.pending.of.as_ref() == Some(latest) {
            return;
        }
        let mut upserts = Vec::new();
        let mut removals = Vec::new();
        if self.wildcard {
            for (name, resource) in latest {
                if self.sent.get(name).and_then(Option::as_ref) != Some(resource.version()) {
                    upserts.push(name.clone());
                }
            }
            let gone = self.sent.iter().filter(|(name, version)| version.is_some() && !latest.contains_key(*name));
            removals.extend(gone.map(|(name, _)| name.clone()));
        } else {
            let wanted = self.wanted(latest);
            for name in &wanted {
                let Some(resource) = latest.get(name) else { continue };
                if self.sent.get(name).and_then(Option::as_ref) != Some(resource.version()) {
                    upserts.push(name.clone());
                }
            }
            let gone = self.sent.iter().filter(|(name, version)| version.is_some() && !wanted.contains(*name));
            removals.extend(gone.map(|(name, _)| name.clone()));
            // Whoever asks for a name waits to hear that there is none.
            let answered: HashSet<&str> = wanted
                .iter()
                .filter_map(|name| latest.get_key_value(name))
                .flat_map(|(name, r)| std::iter::once(&**name).chain(r.aliases().iter().map(String::as_str)))
                .collect();
            for name in &self.names {
                let told = matches!(self.sent.get(name), Some(None));
                if !told && !answered.contains(&**name) && !removals.contains(name) {
                    removals.push(name.clone());
                }
            }
        }
        removals.sort_unstable();
        let (narrowing, upserts): (Vec<_>, _) = upserts.into_iter().partition(|name| self.narrows(name, latest));
        if narrowing.is_empty() && removals.is_empty() {
            self.late_since = None;
        } else {
            self.late_since.get_or_insert(now);
        }
        self.pending = Pending { of: Some(latest.clone()), upserts, narrowing, removals };
    }

    /// Whether the latest version reaches less far than what the proxy may go by.
    fn narrows(&self, name: &Name, latest: &ResourceMap) -> bool {
        let Some(new) = latest.get(name).and_then(|resource| reach_of(resource.version())) else { return false };
        let in_doubt = self.waiting.as_ref().is_some_and(|waiting| waiting.narrows.contains(name));
        // It may be wider than what was sent last, which then must not be missed; the answer
        // will tell before anything else is sent.
        !(in_doubt && self.reach_sent(name) < Some(new)) && self.reach(name) > Some(new)
    }

    /// How far what the proxy may go by reaches.
    fn reach(&self, name: &Name) -> Option<u8> {
        self.reach_sent(name).max(self.reached.get(name).copied())
    }

    fn reach_sent(&self, name: &Name) -> Option<u8> {
        self.sent.get(name).and_then(Option::as_ref).and_then(|version| reach_of(version))
    }

    /// The resources behind the names asked for, by their proper names.
    fn wanted(&self, latest: &ResourceMap) -> BTreeSet<Name> {
        let mut wanted: BTreeSet<Name> = self.names.iter().filter(|name| latest.contains_key(*name)).cloned().collect();
        let by_alias = latest.iter().filter(|(_, r)| r.aliases().iter().any(|alias| self.names.contains(&**alias)));
        wanted.extend(by_alias.map(|(name, _)| name.clone()));
        wanted
    }

    fn respond(&mut self, part: Part, nonce: u64, now: Instant) -> Option<DeltaDiscoveryResponse> {
        if self.waiting.as_ref().is_some_and(|waiting| now < waiting.since + self.ack_grace()) {
            return None;
        }
        let nothing = match part {
            Part::All => self.pending.is_empty(),
            Part::Early => self.pending.upserts.is_empty(),
            Part::Late => self.pending.narrowing.is_empty() && self.pending.removals.is_empty(),
        };
        if nothing && (!self.owes_answer || part == Part::Late) {
            return None;
        }
        let latest = self.pending.of.clone()?;
        let mut upserts = if part == Part::Late { Vec::new() } else { std::mem::take(&mut self.pending.upserts) };
        if part != Part::Late {
            self.owes_answer = false;
        }
        if !upserts.is_empty() && self.unacked_since.is_none() {
            self.unacked_since = Some(now);
        }
        let (mut narrows, mut removals) = (Vec::new(), Vec::new());
        if part != Part::Early {
            narrows = std::mem::take(&mut self.pending.narrowing);
            removals = std::mem::take(&mut self.pending.removals);
            self.late_since = None;
        }
        for name in &narrows {
            if let Some(reach) = self.reach(name) {
                self.reached.insert(name.clone(), reach);
            }
        }
        upserts.extend_from_slice(&narrows);
        let mut resources = Vec::with_capacity(upserts.len());
        for name in upserts {
            let Some(resource) = latest.get(&name) else { continue };
            resources.push(discovery::Resource {
                version: resource.version().to_string(),
                resource: Some(prost_types::Any { type_url: self.type_url.to_string(), value: resource.body.clone() }),
                name: name.to_string(),
                aliases: resource.aliases().to_vec(),
            });
            self.sent.insert(name, Some(resource.version().clone()));
        }
        for name in &removals {
            self.reached.remove(name);
            if self.names.contains(name) {
                self.sent.insert(name.clone(), None);
            } else {
                self.sent.remove(name);
            }
        }
        let nonce = nonce.to_string();
        self.waiting = Some(Waiting { nonce: nonce.clone(), since: now, narrows: narrows.into_iter().collect() });
        self.sent_count += 1;
        Some(DeltaDiscoveryResponse {
            resources,
            type_url: self.type_url.to_string(),
            nonce,
            removed_resources: removals.iter().map(ToString::to_string).collect(),
            ..Default::default()
        })
    }

    fn ack_grace(&self) -> Duration {
        // Workloads wait for policies only so long, and must not overtake those still unsent.
        if &*self.type_url == AUTHORIZATION_TYPE { POLICY_GRACE } else { ACK_GRACE }
    }

    fn held(&self) -> usize {
        self.sent.values().flatten().count()
    }

    fn in_sync(&self) -> bool {
        self.waiting.is_none() && !self.owes_answer && self.pending.of.is_some() && self.pending.is_empty()
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.narrowing.is_empty() && self.removals.is_empty()
    }
}
