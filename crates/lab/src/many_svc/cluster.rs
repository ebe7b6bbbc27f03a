//! The cluster of the study, and its script: which service is rescaled next, and the events of each step.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use super::manifest::{self, ACCOUNT, PodFacts, SERVICE, Stage};
use super::objects::Objects;
use crate::churn::{Expected, Inventory, MARK, Shape, node_name};

/// First address of pods (the study's range), of services, and of nodes.
const PODS: u32 = u32::from_be_bytes([10, 128, 0, 1]);
const SERVICES: u32 = u32::from_be_bytes([172, 16, 0, 1]);
const NODES: u32 = u32::from_be_bytes([10, 0, 0, 4]);
/// Endpoints that the API server's controller puts into one slice.
const SLICE: usize = 100;
/// Namespaces that every cluster has, or that control planes of both sorts write to.
const SYSTEM: [&str; 4] = ["default", "kube-system", "istio-system", "leno-system"];
/// A part of the pods of a service that rescaling varies: 85 to 114 of 100, as in the study.
const RANGE: f64 = 0.3;
/// The script is the same for every control plane.
const SEED: u64 = 0x6c65_6e6f;

pub(super) const POD: &str = "/api/v1/pods";
pub(super) const ENDPOINT_SLICE: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(super) const NAMESPACE: &str = "/api/v1/namespaces";

/// The cluster as it is now.
#[derive(Debug)]
pub(super) struct Cluster {
    shape: Shape,
    services: Vec<Service>,
    /// Pods that there ever were.
    pods: u32,
    /// Changes so far.
    changes: u32,
    /// The services that were changed last. They have their turn when every other has had one more.
    recent: VecDeque<usize>,
    random: Random,
}

/// A service of a namespace of its own.
#[derive(Debug, Default)]
struct Service {
    /// Oldest first.
    pods: Vec<Pod>,
    slices: Vec<Slice>,
    policy_group: usize,
}

#[derive(Debug, Clone, Copy)]
struct Pod {
    number: u32,
    /// The change that it came with.
    mark: u32,
    stage: Stage,
}

#[derive(Debug, Default)]
struct Slice {
    /// The last letters of its name.
    number: usize,
    /// Numbers of pods.
    pods: Vec<u32>,
}

/// A service that is being rescaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rescale {
    /// The change's number.
    pub(super) number: u32,
    service: usize,
    /// Numbers of the pods that come, or go.
    pods: Vec<u32>,
    pub(super) grows: bool,
}

impl Rescale {
    /// The stages that its pods go through, each with the time when they reach it, as a part of the time between two changes.
    /// The last one is what proxies wait for. A real cluster takes longer for the same; what takes part in a change does so
    /// at the same time.
    pub(super) fn stages(&self) -> &'static [(Stage, f64)] {
        if self.grows {
            &[
                (Stage::Pending, 0.0),
                (Stage::Scheduled, 0.05),
                (Stage::Captured, 0.2),
                (Stage::Running, 0.25),
                (Stage::Ready, 0.5),
            ]
        } else {
            &[(Stage::Terminating, 0.0), (Stage::Ended, 0.25)]
        }
    }

    /// When pods that go are gone.
    pub(super) const GONE: f64 = 0.5;

    /// Pods that take part.
    pub(super) fn touched(&self) -> usize {
        self.pods.len()
    }
}

impl Cluster {
    /// With all its services at their average size.
    pub(super) fn new(shape: Shape) -> Self {
        let mut cluster =
            Self { shape, services: Vec::new(), pods: 0, changes: 0, recent: VecDeque::new(), random: Random(SEED) };
        for number in 0..shape.services {
            let mut service = Service { policy_group: number % 3, ..Service::default() };
            for _ in 0..shape.pods {
                let pod = Pod { number: cluster.pods, mark: 0, stage: Stage::Ready };
                cluster.pods += 1;
                service.pods.push(pod);
                service.place(pod.number);
            }
            cluster.services.push(service);
        }
        cluster
    }

    /// Puts all of it into an API server that has nothing yet.
    pub(super) fn put_all(&self, objects: &mut Objects) {
        for number in 0..self.nodes() {
            let address = address(NODES, number as u32);
            objects.put("/api/v1/nodes", |version| manifest::node(version, &node_name(number), number, &address));
        }
        for name in SYSTEM {
            objects.put(NAMESPACE, |version| manifest::namespace(version, name, None));
        }
        for (number, service) in self.services.iter().enumerate() {
            let namespace = namespace_name(number);
            objects.put(NAMESPACE, |version| manifest::namespace(version, &namespace, Some(service.policy_group)));
            objects.put("/api/v1/serviceaccounts", |version| manifest::service_account(version, &namespace));
            let address = address(SERVICES, number as u32);
            objects.put("/api/v1/services", |version| manifest::service(version, &namespace, &address));
            for pod in &service.pods {
                objects.put(POD, |version| manifest::pod(version, &self.facts(number, pod)));
            }
            for slice in &service.slices {
                self.put_slice(number, slice, objects);
            }
        }
    }

    /// The number of the next change.
    pub(super) fn next(&self) -> u32 {
        self.changes + 1
    }

    /// Begins the next change: the pods that come are there, but no API server was told yet.
    pub(super) fn rescale(&mut self) -> Rescale {
        self.changes += 1;
        let service = self.pick();
        let now = self.services[service].pods.len();
        let (least, most) = replicas(self.shape.pods);
        // The study sometimes asks for what is there already, and nothing happens.
        let mut wanted = now;
        while wanted == now {
            wanted = least + self.random.below(most - least + 1);
        }
        let grows = wanted > now;
        let pods: Vec<u32> = if grows {
            (now..wanted).map(|_| self.add(service)).collect()
        } else {
            // The youngest go first, as a ReplicaSet chooses.
            self.services[service].pods[wanted..].iter().map(|pod| pod.number).collect()
        };
        Rescale { number: self.changes, service, pods, grows }
    }

    /// Brings the pods of a change to a stage, and tells the API server.
    pub(super) fn advance(&mut self, change: &Rescale, stage: Stage, objects: &mut Objects) {
        let service = &mut self.services[change.service];
        for pod in service.pods.iter_mut().filter(|pod| change.pods.contains(&pod.number)) {
            pod.stage = stage;
        }
        if stage == Stage::Running {
            change.pods.iter().for_each(|number| service.place(*number));
        }
        let service = &self.services[change.service];
        for pod in service.pods.iter().filter(|pod| change.pods.contains(&pod.number)) {
            objects.put(POD, |version| manifest::pod(version, &self.facts(change.service, pod)));
        }
        // Of pods without an address, and of what changes after they are no endpoints any more, slices say nothing.
        if matches!(stage, Stage::Running | Stage::Ready | Stage::Terminating) {
            self.put_slices_of(change, objects);
        }
        objects.tell(POD);
        objects.tell(ENDPOINT_SLICE);
    }

    /// Takes the pods of a change away, and tells the API server.
    pub(super) fn take_away(&mut self, change: &Rescale, objects: &mut Objects) {
        let service = &self.services[change.service];
        for pod in service.pods.iter().filter(|pod| change.pods.contains(&pod.number)) {
            objects.delete(POD, |version| manifest::pod(version, &self.facts(change.service, pod)));
        }
        let touched: Vec<usize> = service.slices_of(&change.pods).map(|slice| slice.number).collect();
        let service = &mut self.services[change.service];
        service.pods.retain(|pod| !change.pods.contains(&pod.number));
        for slice in &mut service.slices {
            slice.pods.retain(|number| !change.pods.contains(number));
        }
        let slices = std::mem::take(&mut service.slices).into_iter();
        let (empty, rest): (Vec<_>, _) = slices.partition(|slice| slice.pods.is_empty());
        service.slices = rest;
        for slice in &empty {
            objects.delete(ENDPOINT_SLICE, |version| self.slice(version, change.service, slice));
        }
        let service = &self.services[change.service];
        for slice in service.slices.iter().filter(|slice| touched.contains(&slice.number)) {
            self.put_slice(change.service, slice, objects);
        }
        objects.tell(POD);
        objects.tell(ENDPOINT_SLICE);
    }

    /// Gives a namespace another label. It means nothing to a mesh without policies that select by it, as in the study.
    pub(super) fn relabel(&mut self, objects: &mut Objects) {
        let number = self.random.below(self.services.len());
        let service = &mut self.services[number];
        service.policy_group = (service.policy_group + 1) % 3;
        let group = service.policy_group;
        objects.put(NAMESPACE, |version| manifest::namespace(version, &namespace_name(number), Some(group)));
        objects.tell(NAMESPACE);
    }

    /// The names of the workloads of a change.
    pub(super) fn names(&self, change: &Rescale) -> Vec<String> {
        let namespace = namespace_name(change.service);
        change.pods.iter().map(|number| workload(&namespace, &pod_name(*number))).collect()
    }

    /// What proxies must know.
    pub(super) fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::default();
        for (number, service) in self.services.iter().enumerate() {
            let namespace = namespace_name(number);
            let host = format!("{namespace}/{SERVICE}.{namespace}.svc.cluster.local");
            for pod in &service.pods {
                let name = pod_name(pod.number);
                let expected = Expected {
                    namespace: namespace.clone(),
                    address: Ipv4Addr::from(PODS + pod.number),
                    revision: format!("{MARK}{}", pod.mark),
                    node: node_name(self.node_of(pod.number)),
                    service_account: ACCOUNT.to_owned(),
                    service: host.clone(),
                    name: name.clone(),
                };
                inventory.workloads.insert(workload(&namespace, &name), expected);
            }
            inventory.services.push(host);
        }
        inventory
    }

    /// A service that was not changed for a while, so that no change is overtaken by another before it is seen.
    fn pick(&mut self) -> usize {
        let rested: Vec<usize> = (0..self.services.len()).filter(|number| !self.recent.contains(number)).collect();
        let service = rested[self.random.below(rested.len())];
        self.recent.push_back(service);
        if self.recent.len() > self.services.len() / 2 {
            self.recent.pop_front();
        }
        service
    }

    fn add(&mut self, service: usize) -> u32 {
        let number = self.pods;
        self.pods += 1;
        self.services[service].pods.push(Pod { number, mark: self.changes, stage: Stage::Pending });
        number
    }

    fn put_slices_of(&self, change: &Rescale, objects: &mut Objects) {
        for slice in self.services[change.service].slices_of(&change.pods) {
            self.put_slice(change.service, slice, objects);
        }
    }

    fn put_slice(&self, service: usize, slice: &Slice, objects: &mut Objects) {
        objects.put(ENDPOINT_SLICE, |version| self.slice(version, service, slice));
    }

    fn slice(&self, version: u64, service: usize, slice: &Slice) -> super::objects::Object {
        let pods = self.services[service].pods.iter().filter(|pod| slice.pods.contains(&pod.number));
        let pods: Vec<PodFacts> = pods.map(|pod| self.facts(service, pod)).collect();
        let name = format!("{SERVICE}-{}", letters(slice.number as u32));
        manifest::slice(version, &namespace_name(service), &name, &pods)
    }

    fn facts(&self, service: usize, pod: &Pod) -> PodFacts {
        let node = self.node_of(pod.number);
        PodFacts {
            namespace: namespace_name(service),
            name: pod_name(pod.number),
            uid: format!("5f2d7a10-0000-4000-8000-{:012}", pod.number),
            owner_uid: format!("5f2d7a11-0000-4000-8000-{service:012}"),
            address: address(PODS, pod.number),
            node: node_name(node),
            node_address: address(NODES, node as u32),
            revision: format!("{MARK}{}", pod.mark),
            stage: pod.stage,
        }
    }

    /// Each proxy has a node of its own.
    fn nodes(&self) -> usize {
        self.shape.proxies.max(1)
    }

    fn node_of(&self, pod: u32) -> usize {
        pod as usize % self.nodes()
    }
}

impl Service {
    /// Puts a pod into the first slice that has room, as the API server's controller does, or into a new one.
    fn place(&mut self, pod: u32) {
        if let Some(slice) = self.slices.iter_mut().find(|slice| slice.pods.len() < SLICE) {
            slice.pods.push(pod);
            return;
        }
        let number = self.slices.iter().map(|slice| slice.number + 1).max().unwrap_or_default();
        self.slices.push(Slice { number, pods: vec![pod] });
    }

    /// The slices that have one of these pods.
    fn slices_of(&self, pods: &[u32]) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(move |slice| slice.pods.iter().any(|number| pods.contains(number)))
    }
}

/// The fewest and the most pods of a service that has so many on average.
fn replicas(pods: usize) -> (usize, usize) {
    // At least two sizes, or nothing could change.
    let range = ((pods as f64 * RANGE).round() as usize).max(2);
    let least = pods.saturating_sub(range / 2).max(1);
    (least, least + range - 1)
}

fn namespace_name(number: usize) -> String {
    format!("ns-{number:03}")
}

fn pod_name(number: u32) -> String {
    manifest::pod_name(&letters(number))
}

/// The end of a generated name: five letters of those that Kubernetes uses, another for each number.
fn letters(number: u32) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    const ALL: u64 = 27_u64.pow(5);
    // Neighbours are to look different, and the factor has no divisor in common with 27.
    let mut rest = u64::from(number) * 7_368_787 % ALL;
    let mut name = String::new();
    for _ in 0..5 {
        name.push(char::from(LETTERS[(rest % 27) as usize]));
        rest /= 27;
    }
    name
}

fn address(first: u32, number: u32) -> String {
    Ipv4Addr::from(first + number).to_string()
}

fn workload(namespace: &str, name: &str) -> String {
    format!("Kubernetes//Pod/{namespace}/{name}")
}

/// A sequence of numbers that look random (SplitMix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
