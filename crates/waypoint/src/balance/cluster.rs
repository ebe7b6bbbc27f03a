//! The endpoints of a service's port in one snapshot of the mesh.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use leno_model::{Mesh, Service, Workload};
use leno_policy::balance::{self, By, START, Seen, State, mix};
use leno_policy::{Reachable, Route, RouteError, reachable, route_to_reachable};
use leno_proxy::peers::Silent;

use super::Shared;
use super::in_flight::InFlight;
use super::vital::{Vital, ticks};

/// Endpoints that a request is sent to at most, one after the other, while none of them can be reached.
const MOST_TRIED: usize = 3;

/// Of a hundred endpoints, as many must be well for ejections to count.
const PANIC: u32 = 50;

/// An endpoint.
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(super) vital: Arc<Vital>,
    rank: usize,
    target: SocketAddr,
    /// Where it is connected to.
    address: SocketAddr,
}

/// The endpoints of a service's port in one snapshot of the mesh.
pub(crate) struct Cluster {
    // Weak, because a cluster must not keep an old snapshot.
    mesh: Weak<Mesh>,
    service: Arc<Service>,
    endpoints: Vec<Arc<Endpoint>>,
    places: balance::Endpoints,
}

/// An endpoint that was chosen.
pub(crate) struct Chosen<'c> {
    pub(crate) endpoint: &'c Arc<Endpoint>,
    /// Whether there are others, if it does not answer.
    pub(crate) others: bool,
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
        shared: &Shared,
        mesh: &Arc<Mesh>,
        own: &Workload,
        service: &Arc<Service>,
        destination: SocketAddr,
        before: Option<&Self>,
    ) -> Result<Self, RouteError> {
        let mut found = reachable(mesh, own, service, destination)?;
        // In an order of its own, so that turns and hashes mean the same for every snapshot and waypoint.
        found.sort_by(|one, other| (Reverse(one.rank), &one.workload.uid).cmp(&(Reverse(other.rank), &other.workload.uid)));
        let before = before.filter(|before| Arc::ptr_eq(&before.service, service));
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
                    endpoints.push(Arc::new(Endpoint::new(one, route, vital.clone())));
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
        Ok(Self { mesh: Arc::downgrade(mesh), service: service.clone(), endpoints, places })
    }

    /// Whether it is of this snapshot.
    pub(super) fn is_of(&self, mesh: &Arc<Mesh>) -> bool {
        // While there is a weak reference, no other snapshot gets the address.
        std::ptr::eq(self.mesh.as_ptr(), Arc::as_ptr(mesh))
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The endpoint for a request that these were tried for; `None` if there is no other, or enough were tried.
    pub(crate) fn choose(&self, silent: &Silent, tried: &mut Tried) -> Option<Chosen<'_>> {
        if tried.count == MOST_TRIED {
            return None;
        }
        let seen = Moment { cluster: self, silent, at: ticks(Instant::now()) };
        let place = self.places.choose(By::Cost, &seen, tried.all(), PANIC, &mut rand::random::<u64>)?;
        tried.add(place);
        let others = tried.count < self.endpoints.len().min(MOST_TRIED);
        Some(Chosen { endpoint: &self.endpoints[place], others })
    }
}

impl Chosen<'_> {
    /// Counts a request there.
    pub(crate) fn begin(&self) -> InFlight {
        InFlight::new(self.endpoint)
    }
}

impl Endpoint {
    fn new(one: Reachable<'_>, route: Route, vital: Arc<Vital>) -> Self {
        let address = match &route {
            Route::Hbone { address, .. } | Route::Plain { address, .. } | Route::Passthrough { address } => *address,
        };
        Self { route, vital, rank: one.rank, target: one.target, address }
    }

    fn workload(&self) -> Option<&Arc<Workload>> {
        match &self.route {
            Route::Hbone { workload, .. } => Some(workload),
            Route::Plain { workload, .. } => workload.as_ref(),
            Route::Passthrough { .. } => None,
        }
    }

    fn uid(&self) -> Option<&str> {
        self.workload().map(|workload| &*workload.uid)
    }

    fn is(&self, one: Reachable<'_>) -> bool {
        self.workload().is_some_and(|own| Arc::ptr_eq(own, one.workload))
            && (self.target, self.rank) == (one.target, one.rank)
    }

    fn weight(&self) -> u32 {
        self.workload().map_or(1, |workload| workload.capacity)
    }

    /// The same wherever it is asked for.
    fn id(&self) -> u64 {
        // FNV-1a: a hash of the standard library may change.
        let bytes = self.uid().unwrap_or_default().bytes();
        mix(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
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
}

impl Seen for Moment<'_> {
    fn all_well(&self) -> bool {
        !self.silent.is_any()
    }

    fn state(&self, place: usize) -> State {
        match self.silent.is_avoided(self.cluster.endpoints[place].address) {
            true => State::Silent,
            false => State::Well,
        }
    }

    fn cost(&self, place: usize) -> f32 {
        self.cluster.endpoints[place].vital.cost(self.at)
    }
}
