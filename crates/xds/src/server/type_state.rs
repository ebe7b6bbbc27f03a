//! A proxy's progress with one type.

mod lacks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::Name;
use leno_proto::{AUTHORIZATION_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, REQUEST_POLICY_TYPE, ROUTE_TYPE};

use super::answer::{Answer, Body};
use super::delta::{Delta, Narrowing, Part, Removal};
use super::request::{Held, Request};
use super::sent::Sent;
use crate::catalogue::Catalogue;
use lacks::{Lacks, Pending};

/// How long workloads wait for the acknowledgement of policies. A proxy that never acknowledges gets the workloads all the
/// same; it was sent the policies before them. Removals of policies wait as long for the acknowledgement of workloads.
pub(super) const POLICY_GRACE: Duration = Duration::from_secs(2);
/// How long an unacknowledged response holds up the next one.
pub(super) const ACK_GRACE: Duration = Duration::from_secs(10);
/// What a waypoint must know of a service's requests before it knows the service.
pub(super) const OF_REQUESTS: [&str; 4] =
    [REQUEST_POLICY_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, ROUTE_TYPE];
const WILDCARD: &str = "*";
/// Longest kept message of a refusal, characters.
const MAX_WORDS: usize = 4096;

#[derive(Debug)]
pub(super) struct TypeState {
    pub(super) type_url: Name,
    wildcard: bool,
    pub(super) names: BTreeSet<Name>,
    /// The resources behind `names`, by their proper names, as found in the latest catalogue, if `names` have not
    /// changed since.
    wanted: BTreeSet<Name>,
    sought_in: Option<Arc<Catalogue>>,
    sent: Sent,
    /// What the proxy said it holds, until it is compared with what is published.
    told: Option<Held>,
    /// The reach of earlier versions that the proxy may still use, by name, if it is higher than that of the version in
    /// `sent`; until the proxy accepts the latter.
    reached: BTreeMap<Name, u8>,
    /// Whether an answer is due even if it is empty: to the first request, and for every new name.
    pub(super) owes_answer: bool,
    pub(super) requested_at: Instant,
    pub(super) pending: Pending,
    pub(super) waiting: Option<Waiting>,
    /// Since when there are policies that were sent and not acknowledged.
    pub(super) unacked_since: Option<Instant>,
    /// Since when there is something that must be sent last.
    pub(super) late_since: Option<Instant>,
    pub(super) sent_count: u64,
    acked: u64,
    pub(super) nacked: u64,
    last_nack: Option<Name>,
}

#[derive(Debug)]
pub(super) struct Waiting {
    nonce: u64,
    pub(super) since: Instant,
    /// Resources whose reach it narrows. Until the answer, the proxy may use the new version or the old one.
    narrows: BTreeSet<Name>,
}

/// A proxy's progress with one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeProgress {
    /// The type.
    pub type_url: Name,
    /// Resources the proxy was sent and not told to drop.
    pub resources: usize,
    /// Responses sent.
    pub sent: u64,
    /// Responses accepted.
    pub acked: u64,
    /// Responses refused in part.
    pub nacked: u64,
    /// Its message at the last refusal, unless it has accepted a later response.
    pub last_nack: Option<Name>,
    /// Whether everything published was sent and answered.
    pub in_sync: bool,
}

impl TypeState {
    pub(super) fn open(request: &Request, now: Instant) -> Self {
        let mut state = Self {
            type_url: request.type_url().into(),
            // Without any names, the client subscribes to everything (xDS protocol, "wildcard").
            wildcard: request.subscribe().is_empty() && request.unsubscribe().is_empty(),
            names: BTreeSet::new(),
            wanted: BTreeSet::new(),
            sought_in: None,
            sent: Sent::default(),
            told: None,
            reached: BTreeMap::new(),
            owes_answer: true,
            requested_at: now,
            pending: Pending::default(),
            waiting: None,
            unacked_since: None,
            late_since: None,
            sent_count: 0,
            acked: 0,
            nacked: 0,
            last_nack: None,
        };
        state.change(request);
        if !request.held().is_empty() {
            state.told = Some(request.held().clone());
        }
        state
    }

    pub(super) fn change(&mut self, request: &Request) {
        let (subscribe, unsubscribe) = (request.subscribe(), request.unsubscribe());
        if subscribe.is_empty() && unsubscribe.is_empty() {
            return;
        }
        if let Some(held) = self.told.take() {
            self.sent = Sent::told(&held, |name| self.wildcard || self.names.contains(name));
        }
        for name in subscribe {
            if name == WILDCARD {
                self.wildcard = true;
            } else {
                // A name that is requested again is sent again.
                self.sent.forget(name);
                self.names.insert(name.as_str().into());
            }
            self.owes_answer = true;
        }
        for name in unsubscribe {
            if name == WILDCARD {
                self.wildcard = false;
            } else {
                self.names.remove(&**name);
                if !self.wildcard {
                    self.sent.forget(name);
                }
            }
        }
        if !self.wildcard {
            self.sent.by_name();
        }
        self.pending.of = None;
        self.sought_in = None;
    }

    pub(super) fn acknowledge(&mut self, request: &Request) {
        let answers = |waiting: &mut Waiting| request.nonce() == waiting.nonce.to_string();
        // Any other nonce answers an older response, or none.
        let Some(answered) = self.waiting.take_if(answers) else { return };
        self.unacked_since = None;
        if !answered.narrows.is_empty() {
            // Which resources have a lower reach than the proxy's versions must be found again.
            self.pending.of = None;
        }
        match request.error() {
            None => {
                self.acked += 1;
                self.last_nack = None;
                for name in &answered.narrows {
                    self.reached.remove(name);
                }
            }
            Some(words) => {
                self.nacked += 1;
                self.last_nack = Some(words.chars().take(MAX_WORDS).collect::<String>().into());
            }
        }
    }

    pub(super) fn respond(&mut self, part: Part, nonce: u64, now: Instant) -> Option<Answer> {
        if self.waiting.as_ref().is_some_and(|waiting| now < waiting.since + self.ack_grace()) {
            return None;
        }
        if self.pending.is_empty(part) && (!self.owes_answer || part == Part::Late) {
            return None;
        }
        let latest = self.pending.of.clone()?;
        if part != Part::Late {
            self.owes_answer = false;
            if !self.pending.is_empty(Part::Early) && self.unacked_since.is_none() {
                self.unacked_since = Some(now);
            }
        }
        if part != Part::Early {
            self.late_since = None;
        }
        let lacks = std::mem::take(&mut self.pending.lacks);
        let mut narrows = BTreeSet::new();
        let (length, body) = match (lacks, part) {
            (Lacks::Nothing, _) => (0, Body::Nothing),
            (Lacks::Everything, _) => {
                self.has_all_of(&latest, None);
                (latest.bytes(), Body::everything(&latest))
            }
            (Lacks::Late(delta), Part::Early) => {
                self.pending.lacks = Lacks::Late(delta);
                (0, Body::Nothing)
            }
            (Lacks::Late(delta), _) => self.send(&latest, delta, Part::Late, &mut narrows),
            (Lacks::Some(delta), part) => self.send(&latest, delta, part, &mut narrows),
        };
        self.waiting = Some(Waiting { nonce, since: now, narrows });
        self.sent_count += 1;
        Some(Answer::new(&self.type_url, nonce, length, body))
    }

    /// Records what the proxy will have, and returns the length and body of the response.
    fn send(
        &mut self,
        latest: &Arc<Catalogue>,
        delta: Arc<Delta>,
        part: Part,
        narrows: &mut BTreeSet<Name>,
    ) -> (usize, Body) {
        if part != Part::Early {
            for Narrowing { new, .. } in &delta.narrowing {
                if let Some(reach) = self.reach(new.name()) {
                    self.reached.insert(new.name().clone(), reach);
                }
                narrows.insert(new.name().clone());
            }
        }
        if self.wildcard {
            self.has_all_of(latest, (part == Part::Early).then_some(&*delta));
        } else {
            delta.resources(part).for_each(|resource| self.sent.upsert(resource));
        }
        for Removal { name, .. } in delta.removed(part) {
            self.reached.remove(name);
            self.sent.remove(name);
            if self.names.contains(name) {
                self.sent.is_missing(name.clone());
            }
        }
        if part == Part::Early && !delta.is_empty(Part::Late) {
            self.pending.lacks = Lacks::Late(delta.clone());
        }
        (delta.length(part), Body::part(delta, part))
    }

    /// The proxy has everything, except the part of `delta` that is sent last.
    fn has_all_of(&mut self, latest: &Arc<Catalogue>, delta: Option<&Delta>) {
        let narrowing = delta.into_iter().flat_map(|delta| &delta.narrowing);
        let removals = delta.into_iter().flat_map(|delta| &delta.removals);
        let but = narrowing.map(|narrowing| (narrowing.new.name().clone(), narrowing.old.clone()));
        let but = but.chain(removals.map(|removal| (removal.name.clone(), removal.old.clone()))).collect();
        self.sent.become_all_of(latest.clone(), but);
    }

    pub(super) fn ack_grace(&self) -> Duration {
        // Workloads wait for policies only that long, and must not overtake unsent policies.
        let waited_for = &*self.type_url == AUTHORIZATION_TYPE || OF_REQUESTS.contains(&&*self.type_url);
        if waited_for { POLICY_GRACE } else { ACK_GRACE }
    }

    pub(super) fn in_sync(&self) -> bool {
        self.waiting.is_none() && !self.owes_answer && self.pending.of.is_some() && self.pending.is_empty(Part::All)
    }

    #[cfg(test)]
    pub(super) fn sent(&self) -> &Sent {
        &self.sent
    }

    pub(super) fn progress(&self) -> TypeProgress {
        TypeProgress {
            type_url: self.type_url.clone(),
            resources: self.sent.len(),
            sent: self.sent_count,
            acked: self.acked,
            nacked: self.nacked,
            last_nack: self.last_nack.clone(),
            in_sync: self.in_sync(),
        }
    }
}
