//! Service and EndpointSlice.

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
        /// First virtual address. `None` (the word) for a headless service; empty until one is assigned.
        cluster_ip: String = "clusterIP",
        /// All virtual addresses.
        cluster_ips: Vec<String> = "clusterIPs",
        /// Address families.
        ip_families: Vec<IpFamily> = "ipFamilies",
        /// How many families it wants.
        ip_family_policy: Option<IpFamilyPolicy> = "ipFamilyPolicy",
        /// Ports.
        ports: Vec<ServicePort> = "ports" (check rules::service_ports),
        /// Labels of its pods. Empty if its endpoints come from EndpointSlices.
        selector: Labels = "selector" (check crate::meta::rules::labels),
        /// Preference among endpoints.
        traffic_distribution: Option<String> = "trafficDistribution" (check rules::traffic_distribution),
        /// Whether clients in the cluster may use endpoints on other nodes.
        internal_traffic_policy: TrafficPolicy = "internalTrafficPolicy",
        /// Whether unready endpoints count.
        publish_not_ready_addresses: bool = "publishNotReadyAddresses",
        /// Whether a client stays at one endpoint. It means nothing in the mesh but beside sessions of a route.
        session_affinity: SessionAffinity = "sessionAffinity",
    }
    ignored [
        "allocateLoadBalancerNodePorts", "externalIPs", "externalTrafficPolicy", "healthCheckNodePort",
        "loadBalancerClass", "loadBalancerIP", "loadBalancerSourceRanges", "sessionAffinityConfig",
    ]
    silent ["externalName"]
}

/// The value of `clusterIP` of a headless service.
pub const HEADLESS: &str = "None";

impl ServiceSpec {
    /// Whether it is headless: it has no virtual address on purpose.
    pub fn is_headless(&self) -> bool {
        self.cluster_ip == HEADLESS || self.cluster_ips.iter().any(|ip| ip == HEADLESS)
    }

    /// Its virtual addresses without duplicates, the primary one first. Empty if it is headless or none is assigned
    /// yet.
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
        /// Reachable inside the cluster only.
        #[default]
        ClusterIp = "ClusterIP",
        /// Also reachable on a port of each node.
        NodePort = "NodePort",
        /// Also reachable through an external load balancer.
        LoadBalancer = "LoadBalancer",
        /// A DNS alias for an external name.
        ExternalName = "ExternalName",
    }
}

word! {
    /// IP address family.
    pub enum IpFamily {
        /// IPv4.
        #[default]
        Ipv4 = "IPv4",
        /// IPv6.
        Ipv6 = "IPv6",
    }
}

word! {
    /// The number of address families that a service wants.
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
    /// Whether endpoints on other nodes may be used.
    pub enum TrafficPolicy {
        /// They may.
        #[default]
        Cluster = "Cluster",
        /// They may not.
        Local = "Local",
    }
}

word! {
    /// Whether a client stays at one endpoint, by its address.
    pub enum SessionAffinity {
        /// It does not.
        #[default]
        None = "None",
        /// It does.
        ClientIP = "ClientIP",
    }
}

object! {
    /// A port of a service.
    pub struct ServicePort {
        /// Name. Required if there are several ports.
        name: String = "name" (check validate::service_port_name_field),
        /// The port that clients connect to.
        port: PortNumber = "port" (required),
        /// The pods' port, as a number or as the name of a container's port. Equal to `port` if absent.
        target_port: Option<IntOrString> = "targetPort",
        /// Transport.
        protocol: Protocol = "protocol",
        /// Application protocol.
        app_protocol: Option<String> = "appProtocol",
    }
    ignored ["nodePort"]
}

object! {
    /// Endpoints of a service, written by a user or a controller.
    pub struct EndpointSlice {
        /// Name, namespace, and the label [`SERVICE_NAME_LABEL`].
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// Kind of the addresses.
        address_type: AddressType = "addressType" (required),
        /// The endpoints.
        endpoints: Vec<SliceEndpoint> = "endpoints",
        /// Ports of all its endpoints.
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
        /// Its addresses. All lead to the same endpoint; only the first one is used.
        addresses: Vec<String> = "addresses" (required check rules::slice_addresses),
        /// State.
        conditions: EndpointConditions = "conditions",
        /// The node that it runs on.
        node_name: String = "nodeName",
        /// The object behind it.
        target_ref: Option<ObjectReference> = "targetRef",
        /// The zone that it is in.
        zone: String = "zone",
    }
    ignored ["hints", "hostname", "deprecatedTopology"]
}

object! {
    /// State of an endpoint. If absent, `ready` and `serving` are true and `terminating` is false.
    pub struct EndpointConditions {
        /// Whether it takes new connections.
        ready: Option<bool> = "ready",
        /// Whether it answers, even if it is terminating.
        serving: Option<bool> = "serving",
        /// Whether it is terminating.
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
        /// Namespace. Empty means that of the referring object.
        namespace: String = "namespace",
        /// Unique id.
        uid: String = "uid",
    }
    silent ["apiVersion", "resourceVersion", "fieldPath"]
}

object! {
    /// A port of an EndpointSlice.
    pub struct SlicePort {
        /// Name of the service's port that it belongs to.
        name: String = "name" (check validate::service_port_name_field),
        /// The port on which the endpoints listen.
        port: Option<PortNumber> = "port",
        /// Transport.
        protocol: Protocol = "protocol",
        /// Application protocol.
        app_protocol: Option<String> = "appProtocol",
    }
}
