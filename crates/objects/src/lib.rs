//! What do users write? The Kubernetes and Istio objects that Leno understands, read from any serde format,
//! and a store of them.
//!
//! [`decode()`] is strict with files, where a slip would change what the mesh does: an unknown field is an error that
//! suggests the field that was probably meant. It is lenient with an API server, which may be newer than this program
//! ([`Mode`]). Fields that Kubernetes knows and Leno does not use are accepted with a warning. So manifests written for
//! a cluster can be used unchanged, and nobody believes that everything in them took effect.

mod config;
mod consequences;
mod controllers;
mod decode;
mod enrolment;
mod gateway;
mod meta;
mod network;
mod networking;
mod routes;
mod scalars;
mod security;
mod sharing;
mod store;
mod suggest;
mod validate;
mod virtual_service;
mod volumes;
mod workload;

use std::fmt;

use leno_model::Name;
use serde::Deserializer;
use serde::de::Error as _;

use decode::{Context, Field as _};

pub use config::{ConfigMap, EnvFromSource, KeySelector, NameReference, Secret};
pub use controllers::{ClaimTemplate, Job, JobSpec, Ordinals, PodManagementPolicy, StatefulSet, StatefulSetSpec};
pub use decode::{Mode, NotInForce};

pub use enrolment::{
    DATAPLANE_MODE, MIRROR, RATE_LIMIT, RATE_LIMIT_BURST, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED,
    UNINSTALLED_ANNOTATION, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE, WAYPOINT_BYPASS, WAYPOINT_CPU, WAYPOINT_FOR,
    WAYPOINT_FORWARD_CLIENT_CERT, WAYPOINT_MEMORY, WAYPOINT_NODE_SELECTOR, WAYPOINT_REPLICAS, allows_bypass,
    is_captured, is_enrolled, named_waypoint,
};
pub use gateway::{
    AllowedRoutes, FromNamespaces, GATEWAY_GROUP, Gateway, GatewayClass, GatewayClassSpec, GatewaySpec, HBONE,
    ISTIO_WAYPOINT_CLASS, Infrastructure, Listener, ParametersReference, RequestedAddress, RouteGroupKind,
    RouteNamespaces, WAYPOINT_CLASS, WAYPOINT_CONTROLLER, WaypointFor,
};
pub use meta::{Condition, LabelExpression, LabelOperator, LabelSelector, Labels, ObjectMeta, OwnerReference, selects};
pub use network::{
    AddressType, EndpointConditions, EndpointSlice, HEADLESS, IpFamily, IpFamilyPolicy, ObjectReference,
    SERVICE_NAME_LABEL, Service, ServicePort, ServiceSpec, ServiceType, SessionAffinity, SliceEndpoint, SlicePort,
    TrafficPolicy,
};
pub use networking::{
    Anything, ClientTlsMode, ClientTlsSettings, ConnectionPoolSettings, ConsistentHash, DestinationRule,
    DestinationRuleSpec, DestinationSubset, DestinationTrafficPolicy, GoDuration, HashCookie, HttpSettings,
    LoadBalancerSettings, LocalityLoadBalancer, OutlierDetection, Percent, PortSelector, PortTrafficPolicy,
    RetryBudget, SimpleLoadBalancer, TcpSettings,
};
pub use routes::{
    BackendReference, ConnectionBackendRef, ConnectionRouteRule, CookieConfig, CookieLifetime, Fraction,
    GRPCMethodMatch, GRPCRoute, GRPCRouteMatch, GRPCRouteRule, GRPCRouteSpec, HTTPBackendRef, HTTPCORSFilter,
    HTTPHeader, HTTPHeaderFilter, HTTPPathMatch, HTTPPathModifier, HTTPPathModifierType, HTTPRequestMirrorFilter,
    HTTPRequestRedirectFilter, HTTPRoute, HTTPRouteFilter, HTTPRouteFilterType, HTTPRouteMatch, HTTPRouteRule,
    HTTPRouteSpec, HTTPURLRewriteFilter, HTTPValueMatch, LocalObjectReference, ParentReference, PathMatchType,
    ReferenceGrant, ReferenceGrantFrom, ReferenceGrantSpec, ReferenceGrantTo, RouteDuration, RouteRetry, RouteSession,
    RouteSessionType, RouteTimeouts, TCPRoute, TCPRouteSpec, TLSRoute, TLSRouteSpec, ValueMatchType,
};
pub use scalars::{IntOrString, IpBlock, PortNumber, Timestamp};
pub use security::{
    AuthorizationPolicy, AuthorizationPolicySpec, ClaimToHeader, ExtensionProvider, From, JwtHeader, JwtRule,
    MutualTls, MutualTlsMode, Operation, PeerAuthentication, PeerAuthenticationSpec, PolicyAction,
    PolicyTargetReference, RequestAuthentication, RequestAuthenticationSpec, Rule, Source, To, When, WorkloadSelector,
};
pub use sharing::Sharing;
pub use store::{Change, ObjectStore};
pub use suggest::did_you_mean;
pub use virtual_service::{
    FaultPercent, HttpFaultAbort, HttpFaultDelay, HttpFaultInjection, HttpRetry, VirtualDestination,
    VirtualDestinationShare, VirtualHttpRoute, VirtualPort, VirtualService, VirtualServiceSpec,
};
pub use volumes::{
    ClaimVolume, ConfigMapVolume, EmptyDirVolume, HostPathVolume, KeyToPath, ProjectedReference, ProjectedSource,
    ProjectedVolume, SecretVolume, Volume, VolumeMount,
};
pub use workload::{
    Container, ContainerPort, Deployment, DeploymentSpec, EnvVar, EnvVarSource, ExecAction, HttpGetAction, HttpHeader,
    HttpScheme, Namespace, Node, NodeAddress, NodeStatus, ObjectFieldSelector, Pod, PodIp, PodPhase, PodSpec,
    PodStatus, PodTemplateSpec, Probe, Protocol, RestartPolicy, ServiceAccount, TcpSocketAction,
};

/// The namespace of an object that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Declares [`Kind`] and [`Object`], one variant per kind, so that neither can forget one.
macro_rules! kinds {
    ($( $(#[$meta:meta])* $Kind:ident: [$($version:literal),+], $plural:literal, namespaced: $namespaced:literal; )*) => {
        /// A kind of object this control plane understands.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $( $(#[$meta])* $Kind ),* }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$Kind),*];

            /// The kind with this `apiVersion` and `kind`; `None` if it is not supported.
            pub fn from_api(api_version: &str, kind: &str) -> Option<Self> {
                match (kind, api_version) {
                    $( (stringify!($Kind), $($version)|+) => Some(Self::$Kind), )*
                    _ => None,
                }
            }

            /// `kind`, as written in a manifest.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$Kind => stringify!($Kind)),* }
            }

            /// The `apiVersion` to write.
            pub fn api_version(self) -> &'static str {
                match self { $(Self::$Kind => first(&[$($version),+])),* }
            }

            /// Lower-case plural, as in a resource path.
            pub fn plural(self) -> &'static str {
                match self { $(Self::$Kind => $plural),* }
            }

            /// Whether objects of this kind belong to a namespace.
            pub fn is_namespaced(self) -> bool {
                match self { $(Self::$Kind => $namespaced),* }
            }
        }

        /// An object of any kind.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "held behind an Arc")]
        pub enum Object { $( $(#[$meta])* $Kind($Kind) ),* }

        impl Object {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self { $(Self::$Kind(_) => Kind::$Kind),* }
            }

            /// Its metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self { $(Self::$Kind(object) => &object.metadata),* }
            }

            /// Its metadata, for changing it.
            pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
                match self { $(Self::$Kind(object) => &mut object.metadata),* }
            }
        }

        $(
            impl std::convert::From<$Kind> for Object {
                fn from(object: $Kind) -> Self { Self::$Kind(object) }
            }
        )*

        fn decode_kind<'de, D: Deserializer<'de>>(cx: &mut Context, from: D) -> Result<Object, D::Error> {
            match cx.kind { $(Kind::$Kind => $Kind::decode(from, cx).map(Object::$Kind)),* }
        }
    };
}

const fn first(versions: &[&'static str]) -> &'static str {
    versions[0]
}

kinds! {
    /// A namespace.
    Namespace: ["v1"], "namespaces", namespaced: false;
    /// A service account.
    ServiceAccount: ["v1"], "serviceaccounts", namespaced: true;
    /// A node.
    Node: ["v1"], "nodes", namespaced: false;
    /// A pod.
    Pod: ["v1"], "pods", namespaced: true;
    /// A number of equal pods.
    Deployment: ["apps/v1"], "deployments", namespaced: true;
    /// A number of pods that keep their names and their data.
    StatefulSet: ["apps/v1"], "statefulsets", namespaced: true;
    /// Pods that are to end well.
    Job: ["batch/v1"], "jobs", namespaced: true;
    /// Texts that programs are configured with.
    ConfigMap: ["v1"], "configmaps", namespaced: true;
    /// Texts that are not for everybody's eyes.
    Secret: ["v1"], "secrets", namespaced: true;
    /// A service.
    Service: ["v1"], "services", namespaced: true;
    /// Endpoints of a service.
    EndpointSlice: ["discovery.k8s.io/v1"], "endpointslices", namespaced: true;
    /// Which connections are let in.
    AuthorizationPolicy: ["security.istio.io/v1", "security.istio.io/v1beta1"], "authorizationpolicies", namespaced: true;
    /// Whether plain connections are let in.
    PeerAuthentication: ["security.istio.io/v1", "security.istio.io/v1beta1"], "peerauthentications", namespaced: true;
    /// Which tokens requests may carry.
    RequestAuthentication: ["security.istio.io/v1", "security.istio.io/v1beta1"], "requestauthentications", namespaced: true;
    /// A gateway, such as a waypoint.
    Gateway: ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "gateways", namespaced: true;
    /// A class of gateways.
    GatewayClass: ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "gatewayclasses", namespaced: false;
    /// Where HTTP requests go.
    HTTPRoute: ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "httproutes", namespaced: true;
    /// Where gRPC calls go.
    GRPCRoute: ["gateway.networking.k8s.io/v1"], "grpcroutes", namespaced: true;
    /// Where TLS connections go.
    TLSRoute: ["gateway.networking.k8s.io/v1"], "tlsroutes", namespaced: true;
    /// Where TCP connections go.
    TCPRoute: ["gateway.networking.k8s.io/v1"], "tcproutes", namespaced: true;
    /// What happens to the requests of services.
    VirtualService: ["networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"], "virtualservices", namespaced: true;
    /// How requests are spread over the endpoints of a service.
    DestinationRule: ["networking.istio.io/v1", "networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"], "destinationrules", namespaced: true;
    /// Who may refer to objects of a namespace.
    ReferenceGrant: ["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"], "referencegrants", namespaced: true;
}

impl Kind {
    /// [`Self::OF_THE_MESH`], and what holds the mesh's own configuration where that is an object among the others: a ConfigMap.
    pub fn of_files() -> Vec<Self> {
        Self::OF_THE_MESH.iter().copied().chain([Self::ConfigMap]).collect()
    }

    /// The kinds that a control plane makes something of. What else there is concerns only who starts pods, and a
    /// control plane of a cluster should not even see its Secrets.
    pub const OF_THE_MESH: &[Self] = &[
        Self::Namespace,
        Self::ServiceAccount,
        Self::Node,
        Self::Pod,
        Self::Deployment,
        Self::StatefulSet,
        Self::Job,
        Self::Service,
        Self::EndpointSlice,
        Self::AuthorizationPolicy,
        Self::PeerAuthentication,
        Self::RequestAuthentication,
        Self::Gateway,
        Self::GatewayClass,
        Self::HTTPRoute,
        Self::GRPCRoute,
        Self::TLSRoute,
        Self::TCPRoute,
        Self::VirtualService,
        Self::DestinationRule,
        Self::ReferenceGrant,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Object {
    /// The key under which a store keeps it.
    pub fn key(&self) -> ObjectKey {
        let metadata = self.metadata();
        ObjectKey::new(self.kind(), metadata.namespace.clone(), metadata.name.clone())
    }
}

/// The key of an object in a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind.
    pub kind: Kind,
    /// Namespace; empty for kinds that have none.
    pub namespace: Name,
    /// Name.
    pub name: Name,
}

impl ObjectKey {
    /// The key of `name` in `namespace`.
    pub fn new(kind: Kind, namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// An object, with warnings for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The object; its namespace is set if its kind has one.
    pub object: Object,
    /// Sentences, each naming the field it is about.
    pub warnings: Vec<String>,
    /// Fields that nothing acts on although one would believe so. Files only: what a cluster holds was written for others,
    /// too.
    pub not_in_force: Vec<NotInForce>,
}

/// Reads an object of the given kind; `apiVersion` and `kind` may be among its fields.
/// # Errors
/// For values of the wrong type and for missing fields. In [`Mode::Strict`] also for unknown fields, and for values or
/// combinations that the API server would refuse. The text names the path of the field. If the format knows lines, the
/// error has the line of the field.
pub fn decode<'de, D: Deserializer<'de>>(kind: Kind, mode: Mode, from: D) -> Result<Decoded, D::Error> {
    decode_telling_where(kind, mode, from, &mut String::new())
}

/// The same, and says in `failed` the path of the value that could not be read, for whoever puts a format's error
/// into words: what a format says of a value of the wrong type names no path. Empty where no value failed, or
/// the object as a whole did.
///
/// # Errors
/// As [`decode`].
pub fn decode_telling_where<'de, D: Deserializer<'de>>(
    kind: Kind,
    mode: Mode,
    from: D,
    failed: &mut String,
) -> Result<Decoded, D::Error> {
    let mut cx = Context::new(kind, mode);
    let read = decode_kind(&mut cx, from);
    *failed = cx.failed.take().unwrap_or_default();
    let mut object = read?;
    let metadata = object.metadata_mut();
    if kind.is_namespaced() && metadata.namespace.is_empty() {
        metadata.namespace = DEFAULT_NAMESPACE.into();
    }
    if let Err(problem) = network::rules::object(&object).and_then(|()| gateway::rules::object(&object)) {
        let message = format!("{}: {}", problem.at, problem.message);
        cx.refuse(problem.at, message).map_err(D::Error::custom)?;
    }
    let left_out = || cx.not_understood.iter().filter(|what| what.path.starts_with("spec"));
    match &mut object {
        Object::AuthorizationPolicy(policy) => policy.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::HTTPRoute(route) => route.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::GRPCRoute(route) => route.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::VirtualService(it) => it.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::TLSRoute(route) => route.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::TCPRoute(route) => route.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::DestinationRule(rule) => rule.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::PeerAuthentication(peer) => peer.not_understood = left_out().map(|w| w.message.clone()).collect(),
        Object::RequestAuthentication(it) => it.not_understood = left_out().map(|w| w.message.clone()).collect(),
        _ => {}
    }
    let notes = cx.not_understood.into_iter().map(|what| what.message);
    if mode == Mode::Lenient
        && let Object::Pod(pod) = &mut object
    {
        pod.spec.forget_files();
    }
    let warnings = cx.warnings.into_iter().chain(notes).collect();
    Ok(Decoded { object, warnings, not_in_force: cx.not_in_force })
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
