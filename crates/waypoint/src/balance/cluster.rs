//! The endpoints of a service's port in one snapshot of the mesh.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use leno_model::http::{Balancing, HashOf};
use leno_model::{Mesh, Service, Workload};
use leno_policy::balance::{self, By, START, Seen, State};
use leno_policy::{RouteError, addressed, beyond, reachable, route_to_reachable};
use leno_proxy::peers::Silent;

use super::endpoint::{Common, Endpoint};
use super::in_flight::InFlight;
use super::shared::{Limit, Overflow, Shared};
use super::vital::{Vital, milliseconds, ticks};

/// Endpoints that a request is sent to at most, one after the other, while none of them can be reached.
const MOST_TRIED: usize = 3;

/// Of a hundred endpoints, as many must be well for the others to be left out, where no rule says otherwise.
const PANIC: u32 = 50;

/// The endpoints of a service's port in one snapshot of the mesh.
pub(crate) struct Cluster {
    // Weak, because a cluster must not keep an old snapshot.
    mesh: Weak<Mesh>,
    of: Arc<Common>,
    endpoints: Vec<Arc<Endpoint>>,
    places: balance::Endpoints,
    /// Where clients connect to, if the service is behind another waypoint: it is not for this one to choose the endpoint.
    beyond: Vec<SocketAddr>,
}

/// An endpoint that was chosen.
pub(crate) struct Chosen<'c> {
    pub(crate) endpoint: &'c Arc<Endpoint>,
    /// Whether there are others, if it does not answer.
    pub(crate) others: bool,
}

/// What a request or a connection has that decides about its endpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    /// The number of the endpoint at which its session is.
    pub(crate) held: Option<u64>,
    /// The number of what decides where a rule says so.
    pub(crate) hash: Option<u64>,
}

/// The endpoints that a request was sent to.
#[derive(Default)]
pub(crate) struct Tried {
    places: [usize; MOST_TRIED],
    count: usize,
}

impl Tried {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn add(&mut self, place: usize) {
        if let Some(next) = self.places.get_mut(self.count) {
            *next = place;
            self.count += 1;
        }
    }

    fn all(&self) -> &[usize] {
        &self.places[..self.count]
    }
}

impl Cluster {
    /// The endpoints as `mesh` has them. What `before` has of the same is taken from there.
    pub(super) fn new(
        shared: &Arc<Shared>,
        mesh: &Arc<Mesh>,
        own: &Workload,
        service: &Arc<Service>,
        destination: SocketAddr,
        before: Option<&Self>,
    ) -> Result<Self, RouteError> {
        let beyond = beyond(mesh, own, service);
        let address = addressed(own, service, destination).filter(|_| beyond);
        let mut found = match address {
            // Which endpoints there are is not this waypoint's to know: its own routes may lead elsewhere.
            Some(_) => Vec::new(),
            None => reachable(mesh, own, service, destination)?,
        };
        let beyond = match (address, beyond) {
            (Some(address), _) => vec![address],
            (None, true) => found.iter().map(|pod| pod.target).collect(),
            (None, false) => Vec::new(),
        };
        let policy = mesh.endpoint_policy_of(&service.id);
        let rules = policy.map(|policy| policy.of_port(destination.port()).clone()).unwrap_or_default();
        if rules.anywhere {
            found.iter_mut().for_each(|one| one.rank = 0);
        }
        // In an order of its own, so that turns and hashes mean the same for every snapshot and waypoint.
        found.sort_by(|one, other| {
            (Reverse(one.rank), &one.workload.uid).cmp(&(Reverse(other.rank), &other.workload.uid))
        });
        let before = before.filter(|before| Arc::ptr_eq(&before.of.service, service) && before.of.rules == rules);
        let of = match before {
            Some(before) => before.of.clone(),
            None => Arc::new(Common { service: service.clone(), shared: shared.clone(), rules }),
        };
        let known: HashMap<&str, &Arc<Endpoint>, RandomState> =
            before.iter().flat_map(|before| &before.endpoints).filter_map(|one| Some((one.uid()?, one))).collect();
        let mut vitals = shared.vitals.lock();
        let mean = mean(vitals.values());
        let (mut endpoints, mut refused) = (Vec::with_capacity(found.len()), None);
        for one in found {
            match known.get(&*one.workload.uid).filter(|known| known.is(one)) {
                Some(known) => endpoints.push((*known).clone()),
                None => {
                    let route = match route_to_reachable(service, one) {
                        Ok(route) => route,
                        Err(error) => {
                            refused = Some(error);
                            continue;
                        }
                    };
                    let vital = vitals.entry(one.workload.uid.clone()).or_insert_with(|| Arc::new(Vital::new(mean)));
                    endpoints.push(Arc::new(Endpoint::new(one, route, vital.clone(), of.clone())));
                }
            }
        }
        if let (true, Some(error)) = (endpoints.is_empty(), refused) {
            return Err(error);
        }
        // A pod that comes back is another one; requests that it has open keep what they need.
        if vitals.len() > endpoints.len() {
            let there: HashSet<&str, RandomState> = endpoints.iter().filter_map(|one| one.uid()).collect();
            vitals.retain(|uid, _| there.contains(&**uid));
        }
        let place = |one: &Arc<Endpoint>| balance::Endpoint { rank: one.rank, weight: one.weight(), id: one.id() };
        let places = balance::Endpoints::new(endpoints.iter().map(place));
        Ok(Self { mesh: Arc::downgrade(mesh), of, endpoints, places, beyond })
    }

    /// Whether it is of this snapshot.
    pub(super) fn is_of(&self, mesh: &Arc<Mesh>) -> bool {
        // While there is a weak reference, no other snapshot gets the address.
        std::ptr::eq(self.mesh.as_ptr(), Arc::as_ptr(mesh))
    }

    /// Where a client would connect to; `None` if the service is not behind another waypoint.
    pub(crate) fn beyond(&self) -> Option<SocketAddr> {
        match &*self.beyond {
            [] => None,
            [only] => Some(*only),
            several => several.get(rand::random::<u32>() as usize % several.len()).copied(),
        }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.of.service
    }

    /// What of a request decides about its endpoint, if anything does.
    pub(crate) fn hash_of(&self) -> Option<&HashOf> {
        match &self.of.rules.balancing {
            Some(Balancing::Hash(of)) => Some(of),
            _ => None,
        }
    }

    /// The number of an endpoint that is meant and well.
    pub(crate) fn find(&self, silent: &Silent, is_meant: impl Fn(u64) -> bool) -> Option<u64> {
        self.place(&self.moment(silent), is_meant).map(|place| self.places.id(place))
    }

    fn place(&self, seen: &Moment<'_>, is_meant: impl Fn(u64) -> bool) -> Option<usize> {
        (0..self.places.len()).find(|place| is_meant(self.places.id(*place)) && seen.state(*place) == State::Well)
    }

    fn moment<'m>(&'m self, silent: &'m Silent) -> Moment<'m> {
        let now = Instant::now();
        Moment { cluster: self, silent, at: ticks(now), now: milliseconds(now) }
    }

    /// The endpoint for a request that these were tried for; `None` if there is no other, or enough were tried. One at which its
    /// session is comes first, as long as it is well.
    pub(crate) fn choose(&self, silent: &Silent, tried: &mut Tried, wish: Wish) -> Option<Chosen<'_>> {
        if tried.count == MOST_TRIED {
            return None;
        }
        let (seen, rules) = (self.moment(silent), &self.of.rules);
        let held = wish.held.filter(|_| tried.count == 0).and_then(|held| self.place(&seen, |id| id == held));
        let by = match &rules.balancing {
            None | Some(Balancing::LeastRequest) => By::Cost,
            Some(Balancing::RoundRobin) => By::Turn(self.of.shared.turn()),
            Some(Balancing::Random) => By::Random,
            Some(Balancing::Hash(_)) => wish.hash.map_or(By::Cost, By::Hash),
        };
        let panic = rules.ejection.as_ref().map_or(PANIC, |ejection| ejection.min_health_percent);
        let place = match held {
            Some(held) => held,
            None => self.places.choose(by, &seen, tried.all(), panic, &mut rand::random::<u64>)?,
        };
        tried.add(place);
        let others = tried.count < self.endpoints.len().min(MOST_TRIED);
        Some(Chosen { endpoint: &self.endpoints[place], others })
    }
}

impl Chosen<'_> {
    /// Counts a request or a connection there.
    pub(crate) fn begin(&self, limit: Limit) -> Result<InFlight, Overflow> {
        InFlight::new(self.endpoint, limit)
    }
}

/// What a new endpoint is taken to need: as long as the others do.
fn mean<'v>(vitals: impl ExactSizeIterator<Item = &'v Arc<Vital>>) -> Duration {
    let at = ticks(Instant::now());
    let count = vitals.len();
    if count == 0 {
        return START;
    }
    let sum: f32 = vitals.map(|vital| vital.seconds(at)).sum();
    Duration::try_from_secs_f32(sum / count as f32).unwrap_or(START)
}

/// What is known of a cluster's endpoints at one moment.
struct Moment<'m> {
    cluster: &'m Cluster,
    silent: &'m Silent,
    at: u32,
    now: u64,
}

impl Seen for Moment<'_> {
    fn all_well(&self) -> bool {
        !self.silent.is_any() && self.cluster.of.shared.all_in(self.now)
    }

    fn state(&self, place: usize) -> State {
        let endpoint = &self.cluster.endpoints[place];
        if self.silent.is_avoided(endpoint.address) {
            State::Silent
        } else if endpoint.of.rules.ejection.is_some() && endpoint.vital.is_out(self.now) {
            State::Ejected
        } else {
            State::Well
        }
    }

    fn cost(&self, place: usize) -> f32 {
        self.cluster.endpoints[place].vital.cost(self.at)
    }
}
