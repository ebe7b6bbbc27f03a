//! A generated mesh: its objects as an API server sends them, and what proxies must make of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::phase::{Kind, Shape};
use super::state::MARK;
use super::world::{Expected, Inventory};

/// The label with the number of the last change that touched the pod. Control planes pass it on as the workload's
/// revision.
pub(crate) const MARK_LABEL: &str = "version";
/// The first addresses of pods and of services.
const PODS: u32 = u32::from_be_bytes([10, 0, 0, 1]);
const SERVICES: u32 = u32::from_be_bytes([172, 16, 0, 1]);
/// The end of a ReplicaSet's name, after the Deployment's name.
const HASH: &str = "5d8f7c9b4";

/// A change of the mesh: objects as lines of a feed.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Its number.
    pub(super) number: u32,
    /// Lines for [`super::control`].
    pub(super) lines: String,
    /// Pods that carry its number afterwards.
    pub(super) pods: u32,
}

/// The mesh as it is now.
#[derive(Debug)]
pub(super) struct Mesh {
    shape: Shape,
    pods: Vec<Pod>,
    /// Changes so far.
    changes: u32,
    /// Addresses given so far. No address is given twice.
    addresses: u32,
    /// The position of the next change of each size.
    turns: BTreeMap<&'static str, usize>,
}

#[derive(Debug, Clone, Copy)]
struct Pod {
    /// How often the pod was replaced.
    generation: u32,
    address: u32,
    mark: u32,
}

impl Mesh {
    pub(super) fn new(shape: Shape) -> Self {
        let mut mesh = Self { shape, pods: Vec::new(), changes: 0, addresses: 0, turns: BTreeMap::new() };
        for _ in 0..shape.workloads() {
            let address = mesh.next_address();
            mesh.pods.push(Pod { generation: 0, address, mark: 0 });
        }
        mesh
    }

    /// All objects of the mesh, in batches.
    pub(super) fn objects(&self) -> impl Iterator<Item = String> {
        let nodes = (0..self.nodes()).map(|number| object("Node", &format!(
            r#"{{"metadata":{{"name":"{}","labels":{{"topology.kubernetes.io/region":"r","topology.kubernetes.io/zone":"z{}"}}}}}}"#,
            node_name(number), number % 3,
        )));
        let namespaces = (0..self.shape.services.div_ceil(self.shape.services_per_namespace())).map(|number| {
            object(
                "Namespace",
                &format!(
                    r#"{{"metadata":{{"name":"{}","labels":{{"istio.io/dataplane-mode":"ambient"}}}}}}"#,
                    namespace_name(number),
                ),
            )
        });
        let services = (0..self.shape.services).map(|number| {
            let (name, namespace) = (service_name(number), self.namespace_of(number));
            let address = Ipv4Addr::from(SERVICES + number as u32);
            object("ServiceAccount", &format!(r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}"}}}}"#))
                + &object("Service", &format!(
                    r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}"}},"spec":{{"clusterIP":"{address}","clusterIPs":["{address}"],"selector":{{"app":"{name}"}},"ports":[{{"name":"http-web","port":8080,"targetPort":8080,"protocol":"TCP"}}]}}}}"#,
                ))
        });
        let pods = (0..self.pods.len()).map(|index| self.pod(index));
        nodes.chain(namespaces).chain(services).chain(pods)
    }

    /// The number of the next change.
    pub(super) fn next(&self) -> u32 {
        self.changes + 1
    }

    /// Changes the mesh.
    pub(super) fn change(&mut self, kind: Kind) -> Change {
        self.changes += 1;
        let mut change = Change { number: self.changes, ..Change::default() };
        for index in self.touched(kind) {
            if matches!(kind, Kind::ReplacePod | Kind::ReplaceService) {
                let (name, namespace) = (self.pod_name(index), self.namespace_of(index / self.shape.pods));
                // Writing to a string cannot fail.
                let _ = writeln!(change.lines, "-Pod {namespace} {name}");
                let address = self.next_address();
                let pod = &mut self.pods[index];
                (pod.generation, pod.address) = (pod.generation + 1, address);
            }
            self.pods[index].mark = change.number;
            change.lines.push_str(&self.pod(index));
            change.pods += 1;
        }
        change
    }

    /// The pods of the next change. Every other pod has its turn before a pod is changed again, so no change is
    /// overtaken by the next one before it is seen.
    fn touched(&mut self, kind: Kind) -> std::ops::Range<usize> {
        let Shape { services, pods, .. } = self.shape;
        let (what, turns) = match kind {
            Kind::ReplacePod | Kind::RelabelPod => ("pod", services * pods),
            Kind::ReplaceService => ("service", services),
            // Only a cluster that an API server tells of is rescaled.
            Kind::Rescale => return 0..0,
            Kind::RelabelNamespace => ("namespace", services.div_ceil(self.shape.services_per_namespace())),
        };
        let turn = self.turns.entry(what).or_default();
        let number = *turn % turns.max(1);
        *turn += 1;
        match kind {
            Kind::ReplacePod | Kind::RelabelPod | Kind::Rescale => {
                // Move on from service to service.
                let index = number % services * pods + number / services;
                index..index + 1
            }
            Kind::ReplaceService => number * pods..(number + 1) * pods,
            Kind::RelabelNamespace => {
                let each = self.shape.services_per_namespace() * pods;
                number * each..((number + 1) * each).min(services * pods)
            }
        }
    }

    /// What proxies must know.
    pub(super) fn inventory(&self) -> Inventory {
        Inventory {
            workloads: (0..self.pods.len()).map(|index| self.expected(index)).collect(),
            services: (0..self.shape.services).map(|number| self.host_name(number)).collect(),
        }
    }

    fn expected(&self, index: usize) -> (String, Expected) {
        let number = index / self.shape.pods;
        let (name, namespace) = (self.pod_name(index), self.namespace_of(number));
        let pod = &self.pods[index];
        (
            format!("Kubernetes//Pod/{namespace}/{name}"),
            Expected {
                address: Ipv4Addr::from(pod.address),
                revision: format!("{MARK}{}", pod.mark),
                node: node_name(index % self.nodes()),
                service_account: service_name(number),
                service: self.host_name(number),
                name,
                namespace,
            },
        )
    }

    fn pod(&self, index: usize) -> String {
        let (_, pod) = self.expected(index);
        let Expected { name, namespace, address, revision, node, service_account: app, .. } = pod;
        // All pods of a service have one owner.
        let number = index / self.shape.pods;
        object(
            "Pod",
            &format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"5f2d7a10-0000-4000-8000-{index:012}","labels":{{"app":"{app}","{MARK_LABEL}":"{revision}","pod-template-hash":"{HASH}"}},"annotations":{{"ambient.istio.io/redirection":"enabled"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"{app}-{HASH}","uid":"5f2d7a11-0000-4000-8000-{number:012}","controller":true}}]}},"spec":{{"nodeName":"{node}","serviceAccountName":"{app}","containers":[{{"name":"server","image":"example.com/server:1","ports":[{{"name":"http-web","containerPort":8080}}]}}]}},"status":{{"phase":"Running","podIP":"{address}","podIPs":[{{"ip":"{address}"}}],"conditions":[{{"type":"Ready","status":"True"}}]}}}}"#,
            ),
        )
    }

    fn pod_name(&self, index: usize) -> String {
        let (service, slot) = (index / self.shape.pods, index % self.shape.pods);
        format!("{}-{HASH}-{slot:03}-{}", service_name(service), self.pods[index].generation)
    }

    fn namespace_of(&self, service: usize) -> String {
        namespace_name(service / self.shape.services_per_namespace())
    }

    fn host_name(&self, service: usize) -> String {
        let namespace = self.namespace_of(service);
        format!("{namespace}/{}.{namespace}.svc.cluster.local", service_name(service))
    }

    fn nodes(&self) -> usize {
        self.shape.proxies.max(1)
    }

    fn next_address(&mut self) -> u32 {
        self.addresses += 1;
        PODS + self.addresses
    }
}

/// The node of a proxy.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:04}")
}

fn namespace_name(number: usize) -> String {
    format!("ns-{number:03}")
}

fn service_name(number: usize) -> String {
    format!("load-{number:03}")
}

/// A line that adds or replaces an object.
fn object(kind: &str, json: &str) -> String {
    format!("+{kind} {json}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::state::mark;
    use super::*;

    const SHAPE: Shape = Shape { services: 30, pods: 50, proxies: 3, changes: 1.0, arriving: 1 };

    #[test]
    fn a_change_touches_what_it_says() {
        let mut mesh = Mesh::new(SHAPE);
        assert_eq!(mesh.objects().count(), 3 + 2 + 30 + 1500, "nodes, namespaces, services with accounts, pods");
        let mut numbers = Vec::new();
        for (kind, pods) in [
            (Kind::ReplacePod, 1),
            (Kind::RelabelPod, 1),
            (Kind::ReplaceService, 50),
            (Kind::RelabelNamespace, 1000),
            (Kind::RelabelNamespace, 500),
            (Kind::RelabelNamespace, 1000),
        ] {
            let change = mesh.change(kind);
            let marked = mesh.pods.iter().filter(|pod| pod.mark == change.number).count();
            assert_eq!((change.pods, marked), (pods, pods as usize), "{kind:?}");
            let removed = change.lines.lines().filter(|line| line.starts_with("-Pod ns-0")).count();
            assert_eq!(removed, if matches!(kind, Kind::ReplacePod | Kind::ReplaceService) { marked } else { 0 });
            assert_eq!(change.lines.lines().filter(|line| line.starts_with("+Pod {")).count(), marked);
            numbers.push(change.number);
        }
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn every_pod_changes_once_before_any_changes_twice() {
        let mut mesh = Mesh::new(SHAPE);
        for _ in 0..1500 {
            mesh.change(Kind::ReplacePod);
        }
        let marks: BTreeSet<u32> = mesh.pods.iter().map(|pod| pod.mark).collect();
        assert_eq!(marks, (1..=1500).collect());
        let addresses: BTreeSet<u32> = mesh.pods.iter().map(|pod| pod.address).collect();
        assert_eq!(addresses.len(), 1500);
        assert!(mesh.pods.iter().all(|pod| pod.generation == 1));
    }

    #[test]
    fn marks_are_read() {
        assert_eq!(mark(b"change-17"), Some(17));
        assert_eq!((mark(b"latest"), mark(b"change-x"), mark(b"")), (None, None, None));
    }
}
