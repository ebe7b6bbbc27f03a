//! Translates pods and EndpointSlice endpoints into workloads.

use std::collections::BTreeMap;
use std::net::IpAddr;

use leno_model::{
    Authorization, Health, Locality, Name, NetworkMode, PolicyName, Port, ServiceName, Transport, TunnelProtocol,
    Workload, WorkloadType, WorkloadUid,
};

use super::service::{app_protocol, has_manual_endpoints, is_in_mesh, ports};
use super::service_name::service_name;
use super::waypoint::{Addressed, GATEWAY_NAME, Required, required};
use super::without_waypoint::Ports;
use super::{Options, through_waypoint};
use leno_objects::{
    AddressType, EndpointSlice, IntOrString, Node, ObjectMeta, ObjectStore, Pod, PodPhase, Service, ServicePort,
    SliceEndpoint, is_captured, selects,
};

/// Label, with value `http`, of a pod that terminates HBONE itself.
const TUNNEL_LABEL: &str = "networking.istio.io/tunnel";

const REGION_LABEL: &str = "topology.kubernetes.io/region";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const SUBZONE_LABEL: &str = "topology.istio.io/subzone";

/// The UID of a pod's workload.
pub(super) fn pod_uid(options: &Options, namespace: &str, name: &str) -> WorkloadUid {
    format!("{}//Pod/{namespace}/{name}", options.cluster_id).into()
}

/// The other objects that a pod's workload depends on.
pub(super) struct Surroundings<'a> {
    /// The waypoint of what is addressed to it.
    pub(super) waypoint: Option<Required>,
    /// The Node that it runs on, if known.
    pub(super) node: Option<&'a Node>,
    /// Services of its namespace that may select it.
    pub(super) services: Vec<&'a Service>,
    /// EndpointSlices of its namespace that may name it, with their services.
    pub(super) slices: Vec<(&'a EndpointSlice, &'a Service)>,
    /// Selector policies that select it.
    pub(super) policies: Vec<PolicyName>,
}

/// The workload of a pod; `None` while it has no address, and after it has ended.
pub(super) fn pod(options: &Options, pod: &Pod, around: Surroundings<'_>) -> Option<Workload> {
    let addresses = pod.status.addresses();
    if addresses.is_empty() || matches!(pod.status.phase, PodPhase::Succeeded | PodPhase::Failed) {
        return None;
    }
    let metadata = &pod.metadata;
    let uid = pod_uid(options, &metadata.namespace, &metadata.name);
    let mut out = Workload::new(uid, metadata.namespace.clone(), metadata.name.clone());
    out.native_tunnel = metadata.label(TUNNEL_LABEL) == Some("http");
    out.tunnel_protocol =
        if is_captured(metadata) || out.native_tunnel { TunnelProtocol::Hbone } else { TunnelProtocol::None };
    out.network_mode = if pod.spec.host_network { NetworkMode::HostNetwork } else { NetworkMode::Standard };
    let takes_connections = pod.status.is_ready() && metadata.deletion_timestamp.is_none();
    out.health = if takes_connections { Health::Healthy } else { Health::Unhealthy };
    out.network = options.network.clone();
    out.cluster_id = options.cluster_id.clone();
    out.trust_domain = options.trust_domain.clone();
    out.service_account = pod.spec.account().into();
    out.node = pod.spec.node_name.clone();
    out.locality = around.node.map(locality).unwrap_or_default();
    // Whatever the owner is, as Istio's control plane does.
    out.workload_type = WorkloadType::Pod;
    let owner = owner_name(metadata);
    out.canonical_name = first_label(metadata, &["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"])
        .unwrap_or(owner)
        .into();
    out.canonical_revision =
        first_label(metadata, &["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"])
            .unwrap_or("latest")
            .into();
    out.workload_name = owner.into();
    out.services = services(options, pod, &around).into_iter().collect();
    out.waypoint = around.waypoint.map(|waypoint| Box::new(waypoint.address));
    out.authorization_policies = around.policies;
    out.addresses = addresses;
    Some(out)
}

/// The policy that keeps connections to a pod from going around a waypoint, if it needs one.
pub(super) fn keeping_to_waypoint(
    options: &Options,
    store: &ObjectStore,
    pod: &Pod,
    around: &Surroundings<'_>,
) -> Option<Authorization> {
    // A waypoint's own pods must be reached by everybody.
    if pod.metadata.label(GATEWAY_NAME).is_some() {
        return None;
    }
    let ports = services(options, pod, around);
    let all = around.services.iter().chain(around.slices.iter().map(|(_, service)| service));
    let all: BTreeMap<ServiceName, &ObjectMeta> =
        all.map(|service| &service.metadata).map(|it| (service_name(options, &it.namespace, &it.name), it)).collect();
    let services = ports
        .iter()
        .filter_map(|(id, ports)| Some((&ports[..], required(options, store, all.get(id)?, Addressed::Service))));
    through_waypoint::policy(options, &pod.metadata.namespace, services, around.waypoint.as_ref())
}

/// The services of a pod that have no waypoint, with the pod's ports to which each leads. Policies about requests that are
/// attached to such a service are the pod's proxy's to enforce, as far as it can.
pub(super) fn without_waypoint(
    options: &Options,
    store: &ObjectStore,
    pod: &Pod,
    around: &Surroundings<'_>,
) -> Vec<(ServiceName, Ports)> {
    let all = around.services.iter().copied().chain(around.slices.iter().map(|(_, service)| *service));
    let bare = all.filter(|service| required(options, store, &service.metadata, Addressed::Service).is_none());
    let bare: BTreeMap<ServiceName, bool> = bare
        .map(|service| {
            let metadata = &service.metadata;
            let has_ports = !service.spec.ports.is_empty();
            (service_name(options, &metadata.namespace, &metadata.name), has_ports)
        })
        .collect();
    let of_pod = services(options, pod, around).into_iter();
    of_pod
        .filter_map(|(id, ports)| bare.get(&id).map(|has_ports| (id.clone(), Ports::new(*has_ports, &ports))))
        .collect()
}

/// The location of a node.
pub(super) fn locality(node: &Node) -> Locality {
    let label = |key| node.metadata.label(key).unwrap_or_default().into();
    Locality { region: label(REGION_LABEL), zone: label(ZONE_LABEL), subzone: label(SUBZONE_LABEL) }
}

fn first_label<'a>(metadata: &'a ObjectMeta, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| metadata.label(key)).filter(|value| !value.is_empty())
}

/// The name of the pod's owner: the Deployment behind a ReplicaSet, another owner, or else the pod itself.
fn owner_name(metadata: &ObjectMeta) -> &str {
    let owner = metadata.owner_references.iter().find(|owner| owner.controller).or(metadata.owner_references.first());
    let Some(owner) = owner else { return &metadata.name };
    // A Deployment's ReplicaSet is named `<deployment>-<pod template hash>`.
    let deployment = metadata
        .label("pod-template-hash")
        .filter(|_| owner.kind == "ReplicaSet")
        .and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
    deployment.unwrap_or(&owner.name)
}

fn services(options: &Options, pod: &Pod, around: &Surroundings<'_>) -> BTreeMap<ServiceName, Vec<Port>> {
    let mut out: BTreeMap<ServiceName, Vec<Port>> = BTreeMap::new();
    let selecting = around.services.iter().filter(|service| {
        is_in_mesh(service) && !has_manual_endpoints(service) && selects(&service.spec.selector, &pod.metadata.labels)
    });
    for service in selecting {
        let name = service_name(options, &service.metadata.namespace, &service.metadata.name);
        out.insert(name, ports(service).filter_map(|(port, transport)| pod_port(pod, port, transport)).collect());
    }
    for (slice, service) in &around.slices {
        let named = slice.endpoints.iter().any(|endpoint| {
            let is_this = target_pod(slice, endpoint) == Some(&*pod.metadata.name);
            let counts = endpoint.conditions.ready != Some(false) || service.spec.publish_not_ready_addresses;
            is_this && counts
        });
        if named && is_in_mesh(service) && has_manual_endpoints(service) {
            let name = service_name(options, &service.metadata.namespace, &service.metadata.name);
            let known = out.entry(name).or_default();
            for port in slice_ports(slice, service) {
                let same = |known: &Port| (known.service_port, known.transport) == (port.service_port, port.transport);
                if !known.iter().any(same) {
                    known.push(port);
                }
            }
        }
    }
    out
}

/// The pod's port for a port of a service; `None` if the target is a name that the pod does not have.
fn pod_port(pod: &Pod, port: &ServicePort, transport: Transport) -> Option<Port> {
    let target_port = match &port.target_port {
        None => port.port.0,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            let all = pod.spec.serving_containers().flat_map(|container| &container.ports);
            let mut named = all.filter(|own| own.name == *name && own.protocol == port.protocol);
            named.next()?.container_port.0
        }
    };
    Some(Port { service_port: port.port.0, target_port, app_protocol: app_protocol(port), transport })
}

/// The name of the pod that a slice's endpoint stands for. It must be in the slice's namespace: otherwise, whoever may
/// write slices in one namespace could add pods of another.
pub(super) fn target_pod<'a>(slice: &EndpointSlice, endpoint: &'a SliceEndpoint) -> Option<&'a str> {
    let target = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod")?;
    let here = target.namespace.is_empty() || *target.namespace == *slice.metadata.namespace;
    here.then_some(target.name.as_str())
}

/// The ports of a slice's endpoints for the service, matched by name, as in Kubernetes.
fn slice_ports(slice: &EndpointSlice, service: &Service) -> Vec<Port> {
    ports(service)
        .filter_map(|(port, transport)| {
            let own = slice.ports.iter().find(|own| own.name == port.name && own.protocol == port.protocol)?;
            // No number means every port.
            let target_port = own.port.map_or(port.port.0, |port| port.0);
            Some(Port { service_port: port.port.0, target_port, app_protocol: app_protocol(port), transport })
        })
        .collect()
}

/// The workloads of the slice's endpoints that are not pods. They get plain TCP, have no identity, and can't be found
/// by address, because a pod may have the same one.
pub(super) fn bare_endpoints(options: &Options, slice: &EndpointSlice, service: &Service) -> Vec<Workload> {
    if slice.address_type == AddressType::Fqdn || !is_in_mesh(service) || !has_manual_endpoints(service) {
        return Vec::new();
    }
    let metadata = &slice.metadata;
    let key = service_name(options, &service.metadata.namespace, &service.metadata.name);
    let ports = slice_ports(slice, service);
    let mut out: BTreeMap<IpAddr, Workload> = BTreeMap::new();
    for endpoint in slice.endpoints.iter().filter(|endpoint| target_pod(slice, endpoint).is_none()) {
        let Some(address) = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok()) else { continue };
        let uid = format!(
            "{}/discovery.k8s.io/EndpointSlice/{}/{}/{address}",
            options.cluster_id, metadata.namespace, metadata.name
        );
        let mut workload = Workload::new(uid, metadata.namespace.clone(), metadata.name.clone());
        workload.addresses = vec![address.to_canonical()];
        workload.network = options.network.clone();
        workload.network_mode = NetworkMode::HostNetwork;
        workload.cluster_id = options.cluster_id.clone();
        workload.trust_domain = options.trust_domain.clone();
        workload.workload_type = WorkloadType::Pod;
        workload.workload_name = metadata.name.clone();
        workload.canonical_name = service.metadata.name.clone();
        workload.canonical_revision = Name::from("latest");
        workload.node = endpoint.node_name.as_str().into();
        workload.locality.zone = endpoint.zone.as_str().into();
        let ready = endpoint.conditions.ready != Some(false);
        workload.health = if ready { Health::Healthy } else { Health::Unhealthy };
        workload.services.insert(key.clone(), ports.clone());
        out.insert(address, workload);
    }
    out.into_values().collect()
}
