//! How things are reached: Service and EndpointSlice.

pub(crate) mod rules;

use std::net::IpAddr;

use super::decode::{object, word};
use super::meta::{Labels, ObjectMeta};
use super::scalars::{IntOrString, PortNumber};
use super::validate;
use super::workload::Protocol;

/// Label that ties an EndpointSlice to its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

object! {
    /// A service.
    pub struct Service {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What it should be.
        spec: ServiceSpec = "spec" (required check rules::service_spec),
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a service should be.
    pub struct ServiceSpec {
        /// How it is exposed. Inside the mesh all but `ExternalName` act as `ClusterIP`.
        kind: ServiceType = "type",
        /// First virtual address, or `None` for a headless service; empty until assigned.
        cluster_ip: String = "clusterIP",
        /// All virtual addresses.
        cluster_ips: Vec<String> = "clusterIPs",
        /// Families it has addresses of.
        ip_families: Vec<IpFamily> = "ipFamilies",
        /// How many families it wants.
        ip_family_policy: Option<IpFamilyPolicy> = "ipFamilyPolicy",
        /// Ports.
        ports: Vec<ServicePort> = "ports" (check rules::service_ports),
        /// Labels of its pods; empty when its endpoints are given by EndpointSlices.
        selector: Labels = "selector" (check crate::meta::rules::labels),
        /// Preference among endpoints.
        traffic_distribution: Option<String> = "trafficDistribution" (check rules::traffic_distribution),
        /// Whether endpoints of other nodes count for clients in the cluster.
        internal_traffic_policy: TrafficPolicy = "internalTrafficPolicy",
        /// Whether unready endpoints count.
        publish_not_ready_addresses: bool = "publishNotReadyAddresses",
    }
    ignored [
        "allocateLoadBalancerNodePorts", "externalIPs", "externalTrafficPolicy", "healthCheckNodePort",
        "loadBalancerClass", "loadBalancerIP", "loadBalancerSourceRanges", "sessionAffinityConfig",
    ]
    silent ["externalName", "sessionAffinity"]
}

/// What `clusterIP` says of a headless service.
pub const HEADLESS: &str = "None";

impl ServiceSpec {
    /// Whether it has, by intention, no virtual address.
    pub fn is_headless(&self) -> bool {
        self.cluster_ip == HEADLESS || self.cluster_ips.iter().any(|ip| ip == HEADLESS)
    }

    /// Its virtual addresses, the first one first, each once; empty when headless or none is
    /// assigned yet.
    pub fn virtual_addresses(&self) -> Vec<IpAddr> {
        let mut out: Vec<IpAddr> = Vec::new();
        for text in std::iter::once(&self.cluster_ip).chain(&self.cluster_ips) {
            if let Ok(ip) = text.parse::<IpAddr>()
                && !out.contains(&ip)
            {
                out.push(ip);
            }
        }
        out
    }
}

word! {
    /// How a service is exposed.
    pub enum ServiceType {
        /// Inside the cluster.
        #[default]
        ClusterIp = "ClusterIP",
        /// Also on a port of each node.
        NodePort = "NodePort",
        /// Also by a load balancer outside.
        LoadBalancer = "LoadBalancer",
        /// A DNS alias for a name outside.
        ExternalName = "ExternalName",
    }
}

word! {
    /// An address family.
    pub enum IpFamily {
        /// IPv4.
        #[default]
        Ipv4 = "IPv4",
        /// IPv6.
        Ipv6 = "IPv6",
    }
}

word! {
    /// How many families a service wants.
    pub enum IpFamilyPolicy {
        /// One.
        #[default]
        SingleStack = "SingleStack",
        /// Two where the cluster has two.
        PreferDualStack = "PreferDualStack",
        /// Two.
        RequireDualStack = "RequireDualStack",
    }
}

word! {
    /// Whether endpoints of other nodes count.
    pub enum TrafficPolicy {
        /// They do.
        #[default]
        Cluster = "Cluster",
        /// They don't.
        Local = "Local",
    }
}

object! {
    /// A port of a service.
    pub struct ServicePort {
        /// Name; needed when there are several ports.
        name: String = "name" (check validate::service_port_name_field),
        /// Number clients use.
        port: PortNumber = "port" (required),
        /// Port of the pods, by number or by the container's name for it; the same number if
        /// absent.
        target_port: Option<IntOrString> = "targetPort",
        /// Transport.
        protocol: Protocol = "protocol",
        /// What is spoken.
        app_protocol: Option<String> = "appProtocol",
    }
    ignored ["nodePort"]
}

object! {
    /// Endpoints of a service, given by hand or by a controller.
    pub struct EndpointSlice {
        /// Name, namespace, and the label [`SERVICE_NAME_LABEL`].
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// Kind of the addresses.
        address_type: AddressType = "addressType" (required),
        /// The endpoints.
        endpoints: Vec<SliceEndpoint> = "endpoints",
        /// Ports all of them serve.
        ports: Vec<SlicePort> = "ports",
    }
    silent ["apiVersion", "kind"]
}

impl EndpointSlice {
    /// The service it belongs to.
    pub fn service(&self) -> Option<&str> {
        self.metadata.label(SERVICE_NAME_LABEL)
    }
}

word! {
    /// Kind of an EndpointSlice's addresses.
    pub enum AddressType {
        /// IPv4 addresses.
        #[default]
        Ipv4 = "IPv4",
        /// IPv6 addresses.
        Ipv6 = "IPv6",
        /// Names.
        Fqdn = "FQDN",
    }
}

object! {
    /// One endpoint.
    pub struct SliceEndpoint {
        /// Its addresses; all lead to the same endpoint, and the first one counts.
        addresses: Vec<String> = "addresses" (required check rules::slice_addresses),
        /// State.
        conditions: EndpointConditions = "conditions",
        /// Node it is on.
        node_name: String = "nodeName",
        /// The object behind it.
        target_ref: Option<ObjectReference> = "targetRef",
        /// Zone it is in.
        zone: String = "zone",
    }
    ignored ["hints", "hostname", "deprecatedTopology"]
}

object! {
    /// State of an endpoint. Absent means yes for `ready` and `serving`, no for `terminating`.
    pub struct EndpointConditions {
        /// Takes new connections.
        ready: Option<bool> = "ready",
        /// Can answer, even if it is about to go.
        serving: Option<bool> = "serving",
        /// Is about to go.
        terminating: Option<bool> = "terminating",
    }
}

object! {
    /// A reference to an object.
    pub struct ObjectReference {
        /// Kind.
        kind: String = "kind",
        /// Name.
        name: String = "name",
        /// Namespace; empty for the referring object's own.
        namespace: String = "namespace",
        /// Unique id.
        uid: String = "uid",
    }
    silent ["apiVersion", "resourceVersion", "fieldPath"]
}

object! {
    /// A port of an EndpointSlice.
    pub struct SlicePort {
        /// Name: that of the service's port.
        name: String = "name" (check validate::service_port_name_field),
        /// Number the endpoints listen on.
        port: Option<PortNumber> = "port",
        /// Transport.
        protocol: Protocol = "protocol",
        /// What is spoken.
        app_protocol: Option<String> = "appProtocol",
    }
}
