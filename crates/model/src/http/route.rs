//! A route: which services it belongs to, and its rules.

use std::fmt;
use std::time::Duration;

use crate::http::{BackendTarget, Filter, Match};
use crate::{Name, ServiceName};

/// The kind of object that a route was written as. A kind that stands earlier wins where routes of several kinds belong
/// to the same port of a service (Gateway API, GEP-1294).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteKind {
    /// `GRPCRoute`.
    Grpc,
    /// `HTTPRoute`.
    Http,
    /// `TLSRoute`.
    Tls,
    /// `TCPRoute`.
    Tcp,
}

impl RouteKind {
    /// Whether it is about requests; the others are about connections that pass unread.
    pub fn is_of_requests(self) -> bool {
        matches!(self, Self::Grpc | Self::Http)
    }
}

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc => "GRPCRoute",
            Self::Http => "HTTPRoute",
            Self::Tls => "TLSRoute",
            Self::Tcp => "TCPRoute",
        })
    }
}

/// The key of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName {
    /// Kind of the object.
    pub kind: RouteKind,
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Key.
    pub id: RouteName,
    /// When the object was created, in seconds since the Unix epoch. The older of two routes wins where their matches
    /// are equal.
    pub created: u64,
    /// The services it belongs to.
    pub parents: Vec<Parent>,
    /// The host names that a request may be addressed to, in lower case; `*.` at the beginning stands for one or more
    /// labels. An empty list stands for all names, and is what the mesh has for requests: the Gateway API gives their host
    /// names no meaning where the parent is a Service. For a `TLSRoute`, these are the names of servers that clients ask for.
    pub hostnames: Vec<Name>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
    /// Why the control plane's description of the route was not understood; `None` if it was. Requests to its parents
    /// are refused then.
    pub not_understood: Option<Name>,
}

impl Route {
    /// The services to which its requests are sent, or copies of them; one may stand here several times.
    pub fn destinations(&self) -> impl Iterator<Item = &ServiceName> {
        self.rules.iter().flat_map(Rule::targets).filter_map(|target| match target {
            BackendTarget::Service { service, .. } => Some(service),
            BackendTarget::Invalid(_) => None,
        })
    }
}

/// A service that a route belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parent {
    /// The service.
    pub service: ServiceName,
    /// The one port of the service; `None` for all of them.
    pub port: Option<u16>,
    /// For a consumer route, the namespace whose requests it is for, which is the route's. `None` for a producer route,
    /// which is in the service's own namespace and is for all requests.
    pub consumer: Option<Name>,
}

/// A rule: what happens to the requests that one of its matches describes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Name, if it has one.
    pub name: Option<Name>,
    /// Alternatives. An empty list matches every request.
    pub matches: Vec<Match>,
    /// What is done to a request, in order.
    pub filters: Vec<Filter>,
    /// Where requests go, by weight.
    pub backends: Vec<Backend>,
    /// How long a request may take.
    pub timeouts: Timeouts,
    /// When a request is sent again; `None` for the mesh's own rule.
    pub retry: Option<Retry>,
    /// How the requests of a session stay at one endpoint.
    pub session: Option<SessionPersistence>,
    /// How many requests may follow the route; the same for all its rules, which share it.
    pub rate: Option<RateLimit>,
}

impl Rule {
    /// Where its requests go, and copies of them.
    fn targets(&self) -> impl Iterator<Item = &BackendTarget> {
        let filters = self.backends.iter().flat_map(|one| &one.filters).chain(&self.filters);
        let mirrors = filters.filter_map(|filter| match filter {
            Filter::Mirror(mirror) => Some(&mirror.target),
            _ => None,
        });
        self.backends.iter().map(|one| &one.target).chain(mirrors)
    }
}

/// A destination of a rule and its share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Share, relative to the sum.
    pub weight: u32,
    /// The destination.
    pub target: BackendTarget,
    /// What is done to the requests that go here, after the rule's own filters.
    pub filters: Vec<Filter>,
}

/// How long a request may take. `None` and zero stand for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// From the request's arrival to the end of the response, all attempts included.
    pub request: Option<Duration>,
    /// One attempt at a backend.
    pub backend_request: Option<Duration>,
}

/// When a request is sent again. Failed connections always count as a reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retry {
    /// Status codes of responses that are a reason.
    pub codes: Vec<u16>,
    /// Most attempts after the first; `None` for the mesh's own number.
    pub attempts: Option<u32>,
    /// Shortest wait between attempts; `None` for the mesh's own.
    pub backoff: Option<Duration>,
}

/// How many requests may come in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// So many; never 0.
    pub requests: u32,
    /// In this time; never 0.
    pub per: Duration,
    /// At once, if none came before; never 0.
    pub burst: u32,
}

/// How the requests of a session stay at one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPersistence {
    /// Name of the cookie or header; `None` for the mesh's own.
    pub name: Option<Name>,
    /// What carries the token.
    pub token: SessionToken,
    /// Age at which a session ends; `None` if it does not by age.
    pub absolute_timeout: Option<Duration>,
}

/// What carries the token of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionToken {
    /// A cookie.
    Cookie {
        /// Whether the client keeps it beyond its own session, for the absolute timeout.
        permanent: bool,
    },
    /// A header.
    Header,
}
