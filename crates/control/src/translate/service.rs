//! Translates Service: names, virtual addresses, ports and the preference among endpoints.

use leno_model::{
    AppProtocol, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, NetworkAddress, Port, PortName,
    RoutingScope, Service, Transport,
};

use super::Options;
use super::service_name::service_name;
use super::waypoint::{Addressed, required};
use leno_objects::{
    IntOrString, IpFamily, Labels, ObjectMeta, ObjectStore, Protocol, ServicePort, ServiceType, TrafficPolicy,
};

/// Annotation on a Service or its Namespace, for clusters whose API server drops `trafficDistribution`.
const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";

/// Whether the service is part of the mesh. An `ExternalName` is not: it is only a DNS alias.
pub(super) fn is_in_mesh(service: &leno_objects::Service) -> bool {
    service.spec.kind != ServiceType::ExternalName
}

/// Whether its endpoints come from EndpointSlices.
pub(super) fn has_manual_endpoints(service: &leno_objects::Service) -> bool {
    service.spec.selector.is_empty()
}

/// The service as proxies see it; `None` if it is not for them. `namespace` is the metadata of its Namespace.
pub(super) fn service(
    options: &Options,
    store: &ObjectStore,
    service: &leno_objects::Service,
    namespace: Option<&ObjectMeta>,
) -> Option<Service> {
    if !is_in_mesh(service) {
        return None;
    }
    let metadata = &service.metadata;
    let id = service_name(options, &metadata.namespace, &metadata.name);
    let mut out = Service::new(id.namespace.clone(), metadata.name.clone(), id.hostname);
    out.addresses = service
        .spec
        .virtual_addresses()
        .into_iter()
        .map(|address| NetworkAddress { network: options.network.clone(), address })
        .collect();
    out.ports = ports(service)
        .map(|(port, transport)| Port {
            service_port: port.port.0,
            target_port: match &port.target_port {
                None => port.port.0,
                Some(IntOrString::Int(number)) => *number,
                Some(IntOrString::String(_)) => 0,
            },
            app_protocol: app_protocol(port),
            transport,
        })
        .collect();
    out.port_names = ports(service)
        .filter(|(port, _)| !port.name.is_empty())
        .map(|(port, transport)| PortName { name: port.name.as_str().into(), transport, service_port: port.port.0 })
        .collect();
    out.load_balancing = load_balancing(service, namespace.map(|namespace| &namespace.annotations));
    out.waypoint = required(options, store, metadata, Addressed::Service).map(|waypoint| waypoint.address);
    out.ip_families = match service.spec.ip_families[..] {
        [] => IpFamilies::Automatic,
        [IpFamily::Ipv4] => IpFamilies::Ipv4Only,
        [IpFamily::Ipv6] => IpFamilies::Ipv6Only,
        _ => IpFamilies::Dual,
    };
    out.canonical = true;
    Some(out)
}

/// The ports that the model can express. Proxies are told of the TCP ports only.
pub(super) fn ports(service: &leno_objects::Service) -> impl Iterator<Item = (&ServicePort, Transport)> {
    let transport = |port: &ServicePort| match port.protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    };
    service.spec.ports.iter().filter_map(move |port| Some((port, transport(port)?)))
}

/// The declared application protocol: `appProtocol`, or else the part of the port's name before the first `-` (Istio's
/// convention).
pub(super) fn app_protocol(port: &ServicePort) -> AppProtocol {
    let declared = match &port.app_protocol {
        Some(declared) => declared.as_str(),
        None => port.name.split('-').next().unwrap_or_default(),
    };
    match declared.to_ascii_lowercase().as_str() {
        "http" => AppProtocol::Http11,
        "http2" | "kubernetes.io/h2c" => AppProtocol::Http2,
        "grpc" => AppProtocol::Grpc,
        "tcp" => AppProtocol::Tcp,
        "tls" | "https" => AppProtocol::Tls,
        _ => AppProtocol::Unknown,
    }
}

fn load_balancing(service: &leno_objects::Service, namespace_annotations: Option<&Labels>) -> LoadBalancing {
    let health_policy =
        if service.spec.publish_not_ready_addresses { HealthPolicy::AllowAll } else { HealthPolicy::OnlyHealthy };
    let near = [RoutingScope::Network, RoutingScope::Region, RoutingScope::Zone];
    let nearest = [&near[..], &[RoutingScope::Subzone, RoutingScope::Node]].concat();
    let (mode, routing_preference) = if service.spec.internal_traffic_policy == TrafficPolicy::Local {
        (LoadBalancingMode::Strict, vec![RoutingScope::Node])
    } else {
        match distribution(service, namespace_annotations) {
            Distribution::Any => (LoadBalancingMode::Unspecified, Vec::new()),
            Distribution::SameZone => (LoadBalancingMode::Failover, near.to_vec()),
            Distribution::SameNode => (LoadBalancingMode::Failover, nearest),
        }
    };
    LoadBalancing { routing_preference, mode, health_policy }
}

enum Distribution {
    Any,
    SameZone,
    SameNode,
}

/// The value of the field, or else of the Service's annotation, or else of the Namespace's.
fn distribution(service: &leno_objects::Service, namespace_annotations: Option<&Labels>) -> Distribution {
    let said = [
        service.spec.traffic_distribution.as_deref(),
        service.metadata.annotation(TRAFFIC_DISTRIBUTION),
        namespace_annotations.and_then(|annotations| annotations.get(TRAFFIC_DISTRIBUTION)).map(|value| &**value),
    ];
    match said.into_iter().flatten().next().map(str::to_ascii_lowercase).as_deref() {
        Some("preferclose" | "prefersamezone") => Distribution::SameZone,
        Some("prefersamenode") => Distribution::SameNode,
        _ => Distribution::Any,
    }
}

/// Whether two versions of a Namespace prefer the same endpoints for its services.
pub(super) fn same_distribution(a: Option<&ObjectMeta>, b: Option<&ObjectMeta>) -> bool {
    let said =
        |namespace: Option<&ObjectMeta>| namespace.and_then(|all| all.annotations.get(TRAFFIC_DISTRIBUTION).cloned());
    said(a) == said(b)
}
