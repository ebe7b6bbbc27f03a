//! Gateway and GatewayClass of the Kubernetes Gateway API (v1.6), and what they mean to a mesh: waypoints.

pub(crate) mod rules;

use leno_model::HBONE_PORT;

use super::decode::{object, word};
use super::enrolment::{WAYPOINT_FOR, WAYPOINT_NODE_SELECTOR, WAYPOINT_REPLICAS};
use super::meta::{LabelSelector, Labels, ObjectMeta};
use super::scalars::PortNumber;

/// The class of Leno's own waypoints.
pub const WAYPOINT_CLASS: &str = "leno-waypoint";
/// Istio's class of waypoints, which Leno accepts unless a GatewayClass gives it to another controller.
pub const ISTIO_WAYPOINT_CLASS: &str = "istio-waypoint";
/// The `controllerName` of GatewayClasses whose Gateways are Leno's waypoints.
pub const WAYPOINT_CONTROLLER: &str = "leno.mesh/waypoint-controller";
/// The API group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";
/// The protocol of a listener that takes tunnels of the mesh.
pub const HBONE: &str = "HBONE";

object! {
    /// A gateway. The mesh knows those of a waypoint's class.
    pub struct Gateway {
        /// Name, namespace, and the label [`WAYPOINT_FOR`].
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What it should be.
        spec: GatewaySpec = "spec" (required check rules::gateway_spec),
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a gateway should be.
    pub struct GatewaySpec {
        /// Name of its GatewayClass.
        gateway_class_name: String = "gatewayClassName" (required check rules::class_name),
        /// Where it accepts traffic.
        listeners: Vec<Listener> = "listeners" (required check rules::listeners),
        /// Addresses that it asks for.
        addresses: Vec<RequestedAddress> = "addresses",
        /// What its pods and other parts are to be like.
        infrastructure: Infrastructure = "infrastructure",
    }
    ignored ["allowedListeners", "defaultScope", "tls"]
}

object! {
    /// An address that a gateway asks for.
    pub struct RequestedAddress {
        /// Type: `IPAddress`, `Hostname`, or one of an implementation's own.
        kind: String = "type" (default "IPAddress".to_owned()),
        /// The address; empty for any.
        value: String = "value",
    }
}

object! {
    /// What the parts of a gateway are to be like.
    pub struct Infrastructure {
        /// Labels of the parts.
        labels: Labels = "labels" (check crate::meta::rules::labels),
        /// Annotations of the parts.
        annotations: Labels = "annotations" (check crate::meta::rules::annotations),
        /// An object with parameters.
        parameters_ref: Option<Box<ParametersReference>> = "parametersRef",
    }
}

object! {
    /// An object with parameters of a gateway or of a class.
    pub struct ParametersReference {
        /// API group; empty for the core group.
        group: String = "group" (required),
        /// Kind.
        kind: String = "kind" (required),
        /// Name.
        name: String = "name" (required),
        /// Namespace, if the kind has any. Only a class names one.
        namespace: String = "namespace",
    }
}

object! {
    /// A place where a gateway accepts traffic.
    pub struct Listener {
        /// Name, unique in the gateway.
        name: String = "name" (required check rules::section_name),
        /// Host name; empty for all.
        hostname: String = "hostname",
        /// Port.
        port: PortNumber = "port" (required),
        /// Protocol, such as [`HBONE`].
        protocol: String = "protocol" (required check rules::protocol),
        /// Which routes, and which users of a waypoint, may attach themselves.
        allowed_routes: AllowedRoutes = "allowedRoutes",
    }
    ignored ["tls"]
}

object! {
    /// Which routes may attach themselves.
    pub struct AllowedRoutes {
        /// The namespaces from which.
        namespaces: RouteNamespaces = "namespaces" (check rules::route_namespaces),
        /// Their kinds; empty for all that fit the protocol.
        kinds: Vec<RouteGroupKind> = "kinds",
    }
}

object! {
    /// The namespaces whose objects may attach themselves.
    pub struct RouteNamespaces {
        /// How they are chosen.
        from: FromNamespaces = "from",
        /// Their labels, for [`FromNamespaces::Selector`].
        selector: Option<LabelSelector> = "selector",
    }
}

word! {
    /// How the namespaces are chosen whose objects may attach themselves.
    pub enum FromNamespaces {
        /// The gateway's own.
        #[default]
        Same = "Same",
        /// All.
        All = "All",
        /// Those with certain labels.
        Selector = "Selector",
        /// None.
        None = "None",
    }
}

object! {
    /// A kind of route.
    pub struct RouteGroupKind {
        /// API group.
        group: String = "group" (default GATEWAY_GROUP.to_owned()),
        /// Kind.
        kind: String = "kind" (required),
    }
}

object! {
    /// A class of gateways.
    pub struct GatewayClass {
        /// Name, and the label [`WAYPOINT_FOR`].
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// What it says.
        spec: GatewayClassSpec = "spec" (required),
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a class says.
    pub struct GatewayClassSpec {
        /// Who runs gateways of this class, as `domain/path`.
        controller_name: String = "controllerName" (required check rules::controller_name),
        /// An object with parameters.
        parameters_ref: Option<Box<ParametersReference>> = "parametersRef",
    }
    silent ["description"]
}

/// Which traffic passes a waypoint (the label [`WAYPOINT_FOR`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaypointFor {
    /// What is addressed to a service.
    Service,
    /// What is addressed to a workload itself.
    Workload,
    /// Both.
    All,
    /// Nothing.
    None,
}

impl WaypointFor {
    /// The words, as written in the label.
    pub const WORDS: [&str; 4] = ["service", "workload", "all", "none"];

    /// What a label's value means; `None` if it means nothing.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "service" => Self::Service,
            "workload" => Self::Workload,
            "all" => Self::All,
            "none" => Self::None,
            _ => return None,
        })
    }

    /// Whether traffic to a service passes the waypoint.
    pub fn services(self) -> bool {
        matches!(self, Self::Service | Self::All)
    }

    /// Whether traffic to a workload itself passes the waypoint.
    pub fn workloads(self) -> bool {
        matches!(self, Self::Workload | Self::All)
    }
}

impl Gateway {
    /// Whether it is a waypoint of Leno, given the object of its class if there is one.
    ///
    /// No object is needed for the two classes that Leno knows by name. One that names another controller gives the
    /// class to that controller.
    pub fn is_waypoint(&self, class: Option<&GatewayClass>) -> bool {
        match class {
            Some(class) => class.is_of_waypoints(),
            None => [WAYPOINT_CLASS, ISTIO_WAYPOINT_CLASS].contains(&self.spec.gateway_class_name.as_str()),
        }
    }

    /// The listener through which the mesh uses it; `None` if it has none that a waypoint can serve.
    pub fn hbone_listener(&self) -> Option<&Listener> {
        self.spec.listeners.iter().find(|listener| listener.is_hbone())
    }

    /// The traffic that passes it: by its own label, else by its class's, else what is addressed to services.
    ///
    /// # Errors
    /// The label's value if it has no meaning.
    pub fn waypoint_for<'a>(&'a self, class: Option<&'a GatewayClass>) -> Result<WaypointFor, &'a str> {
        let of_class = || class.and_then(|class| class.metadata.label(WAYPOINT_FOR));
        match self.metadata.label(WAYPOINT_FOR).or_else(of_class) {
            Some(word) => WaypointFor::parse(word).ok_or(word),
            None => Ok(WaypointFor::Service),
        }
    }

    /// How many pods its waypoint is to have; `None` if it does not say.
    ///
    /// # Errors
    /// A sentence for people if the annotation is no number of pods.
    pub fn waypoint_replicas(&self) -> Result<Option<u16>, String> {
        let wanted = self.metadata.annotation(WAYPOINT_REPLICAS);
        let no_number = |text| format!("annotation {WAYPOINT_REPLICAS}={text} is no number of pods");
        wanted.map(|text| text.parse().map_err(|_| no_number(text))).transpose()
    }

    /// The labels, with their values, of the nodes that its waypoint's pods may run on; none if it does not say.
    ///
    /// # Errors
    /// A sentence for people if the annotation is no list of labels.
    pub fn waypoint_node_selector(&self) -> Result<Vec<(&str, &str)>, String> {
        let Some(text) = self.metadata.annotation(WAYPOINT_NODE_SELECTOR) else { return Ok(Vec::new()) };
        let no_list = || format!("annotation {WAYPOINT_NODE_SELECTOR}={text} is no list LABEL=VALUE,LABEL=VALUE");
        text.split(',').map(|part| label(part.trim())).collect::<Option<_>>().ok_or_else(no_list)
    }
}

fn label(text: &str) -> Option<(&str, &str)> {
    let (label, value) = text.split_once('=')?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!label.is_empty() && label.chars().all(is_word) && value.chars().all(is_word)).then_some((label, value))
}

impl GatewayClass {
    /// Whether its gateways are waypoints of Leno.
    pub fn is_of_waypoints(&self) -> bool {
        self.spec.controller_name == WAYPOINT_CONTROLLER
    }
}

impl Listener {
    /// Whether it takes tunnels of the mesh, on the port on which the mesh brings them.
    pub fn is_hbone(&self) -> bool {
        self.protocol == HBONE && self.port.0 == HBONE_PORT
    }
}

impl RouteNamespaces {
    /// Whether objects of `namespace`, which has these labels, may attach themselves to a gateway of `own`.
    pub fn allow(&self, own: &str, namespace: &str, labels: &Labels) -> bool {
        match self.from {
            FromNamespaces::Same => own == namespace,
            FromNamespaces::All => true,
            FromNamespaces::Selector => self.selector.as_ref().is_some_and(|selector| selector.matches(labels)),
            FromNamespaces::None => false,
        }
    }
}

#[cfg(test)]
#[path = "gateway/gateway_tests.rs"]
mod tests;
