//! A workload: one pod, or one endpoint outside the cluster (`istio.workload.Workload`).

use std::net::IpAddr;

use crate::{DEFAULT_TRUST_DOMAIN, GatewayAddress, Identity, Map, Name, Port, ServiceName, settings};

/// Opaque primary key of a workload, unique in the mesh, such as `Kubernetes//Pod/ns/name`.
pub type WorkloadUid = Name;

/// How to reach a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TunnelProtocol {
    /// Plain TCP.
    #[default]
    None,
    /// HTTP/2 CONNECT over mutual TLS on port 15008.
    Hbone,
}

/// Whether new connections should be sent to a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Health {
    /// Ready.
    #[default]
    Healthy,
    /// Not ready or being deleted.
    Unhealthy,
}

/// Whether a workload owns its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NetworkMode {
    /// Its own network namespace.
    #[default]
    Standard,
    /// Shares its node's addresses, so it can't be found by address.
    HostNetwork,
}

/// Kind of the workload's owner. Used only in telemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WorkloadType {
    /// A Deployment (the protocol's zero value).
    #[default]
    Deployment,
    /// A CronJob.
    CronJob,
    /// A bare Pod. Istio's control plane sends this kind for all workloads.
    Pod,
    /// A Job.
    Job,
}

impl WorkloadType {
    /// Lower-case name, as in the `baggage` key `k8s.<type>.name`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::CronJob => "cronjob",
            Self::Pod => "pod",
            Self::Job => "job",
        }
    }
}

/// Where a workload runs, from its node's topology labels. Empty means unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Locality {
    /// `topology.kubernetes.io/region`.
    pub region: Name,
    /// `topology.kubernetes.io/zone`.
    pub zone: Name,
    /// `topology.istio.io/subzone`.
    pub subzone: Name,
}

/// How the destination's proxy talks to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ApplicationTunnel {
    /// Bytes as they are, or behind a PROXY header.
    pub protocol: ApplicationProtocol,
    /// Port that replaces the destination port; `None` keeps it.
    pub port: Option<u16>,
}

/// Framing towards the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApplicationProtocol {
    /// Raw bytes.
    None,
    /// PROXY protocol version 2, then raw bytes.
    Proxy,
}

/// One pod or external endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Primary key.
    pub uid: WorkloadUid,
    /// Pod name.
    pub name: Name,
    /// Namespace.
    pub namespace: Name,
    /// IP addresses. IPv4-mapped IPv6 addresses are stored as IPv4.
    pub addresses: Vec<IpAddr>,
    /// DNS name to resolve when there is no address; empty for none.
    pub hostname: Name,
    /// Network id; empty for the default.
    pub network: Name,
    /// How to reach it.
    pub tunnel_protocol: TunnelProtocol,
    /// Trust domain. Never empty: [`DEFAULT_TRUST_DOMAIN`] stands for the wire format's empty string.
    pub trust_domain: Name,
    /// Service account. Never empty: `default` stands for the wire format's empty string.
    pub service_account: Name,
    /// Waypoint for traffic addressed to this workload itself.
    pub waypoint: Option<Box<GatewayAddress>>,
    /// How other networks reach it.
    pub network_gateway: Option<Box<GatewayAddress>>,
    /// Node name.
    pub node: Name,
    /// Canonical service, for telemetry.
    pub canonical_name: Name,
    /// Canonical revision, for telemetry.
    pub canonical_revision: Name,
    /// Kind of owner, for telemetry.
    pub workload_type: WorkloadType,
    /// Owner's name, for telemetry.
    pub workload_name: Name,
    /// Whether the workload speaks HBONE itself.
    pub native_tunnel: bool,
    /// Framing towards the application.
    pub application_tunnel: Option<ApplicationTunnel>,
    /// The policies with a selector that apply to it.
    pub authorization_policies: Vec<crate::PolicyName>,
    /// Whether it takes new connections.
    pub health: Health,
    /// Cluster id.
    pub cluster_id: Name,
    /// The services it is an endpoint of, with its ports for each: a service port and the port on which this workload
    /// listens.
    pub services: Map<ServiceName, Vec<Port>>,
    /// Where it runs.
    pub locality: Locality,
    /// Whether its addresses are its own.
    pub network_mode: NetworkMode,
    /// Load-balancing weight; 1 unless set.
    pub capacity: u32,
    /// Why the control plane's description of the workload was not understood; `None` if it was. The other fields then
    /// hold what could be read. They tell whose the addresses are; nothing may pass to the workload, from it or through
    /// it.
    pub not_understood: Option<Name>,
}

impl Workload {
    /// Whether others reach it by HBONE, through a node proxy in front of it or natively.
    pub fn takes_hbone(&self) -> bool {
        self.tunnel_protocol == TunnelProtocol::Hbone || self.native_tunnel
    }

    /// Whether it must be treated as part of the mesh. One that was not understood must, because it might be.
    pub fn may_be_in_mesh(&self) -> bool {
        self.tunnel_protocol == TunnelProtocol::Hbone || self.not_understood.is_some()
    }

    /// A healthy, plain-TCP workload with no services: the base that builders and decoders fill.
    pub fn new(uid: impl Into<Name>, namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        let empty: Name = "".into();
        Self {
            uid: uid.into(),
            name: name.into(),
            namespace: namespace.into(),
            addresses: Vec::new(),
            hostname: empty.clone(),
            network: empty.clone(),
            tunnel_protocol: TunnelProtocol::None,
            trust_domain: DEFAULT_TRUST_DOMAIN.into(),
            service_account: "default".into(),
            waypoint: None,
            network_gateway: None,
            node: empty.clone(),
            canonical_name: empty.clone(),
            canonical_revision: empty.clone(),
            workload_type: WorkloadType::default(),
            workload_name: empty.clone(),
            native_tunnel: false,
            application_tunnel: None,
            authorization_policies: Vec::new(),
            health: Health::Healthy,
            cluster_id: settings::DEFAULT_CLUSTER_ID.into(),
            services: Map::new(),
            locality: Locality::default(),
            network_mode: NetworkMode::Standard,
            capacity: 1,
            not_understood: None,
        }
    }

    /// The identity its certificate must carry, or `None` if its names don't form one (then
    /// nothing may be encrypted to it and it must be refused).
    pub fn identity(&self) -> Option<Identity> {
        Identity::new(self.trust_domain.clone(), self.namespace.clone(), self.service_account.clone()).ok()
    }

    /// Pods beat everything else when two workloads claim one address, as ztunnel does.
    pub(crate) fn is_pod(&self) -> bool {
        self.uid.contains("//Pod/")
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
