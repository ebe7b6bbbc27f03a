//! How a waypoint treats the endpoints of services: one for each DestinationRule that counts for a service.

use std::time::Duration;

use crate::{Name, PolicyName, ServiceName};

/// How the endpoints of services are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPolicy {
    /// Key.
    pub id: PolicyName,
    /// The services that it counts for.
    pub services: Vec<ServiceName>,
    /// For all ports that have no rules of their own.
    pub rules: EndpointRules,
    /// For single ports of the services. What these leave out is not taken from the others.
    pub ports: Vec<(u16, EndpointRules)>,
}

impl EndpointPolicy {
    /// The rules for a port.
    pub fn of_port(&self, port: u16) -> &EndpointRules {
        self.ports.iter().find(|(own, _)| *own == port).map_or(&self.rules, |(_, rules)| rules)
    }
}

/// How the endpoints of a port are treated. What is `None` has no limit, or the waypoint's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndpointRules {
    /// How an endpoint is chosen; `None` for the waypoint's own way.
    pub balancing: Option<Balancing>,
    /// Endpoints that are near come first only if the service says so; this says that they don't.
    pub anywhere: bool,
    /// Connections to all endpoints.
    pub max_connections: Option<u32>,
    /// How long a connect may take.
    pub connect_timeout: Option<Duration>,
    /// How long an HTTP connection is kept without a request.
    pub idle_timeout: Option<Duration>,
    /// Requests that wait for a connection.
    pub max_pending: Option<u32>,
    /// Requests that are open.
    pub max_requests: Option<u32>,
    /// Requests on one connection, one after the other.
    pub max_requests_per_connection: Option<u32>,
    /// Requests that are being sent again.
    pub max_retries: Option<u32>,
    /// When an endpoint is left out.
    pub ejection: Option<Ejection>,
    /// How many requests may be sent again; `None` for the waypoint's own number.
    pub retry_budget: Option<RetryBudget>,
}

/// How an endpoint is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balancing {
    /// The one that will probably answer sooner, of two.
    LeastRequest,
    /// One after the other.
    RoundRobin,
    /// At random.
    Random,
    /// The same for the same value.
    Hash(HashOf),
}

/// The value that decides about the endpoint. A request without it goes where the waypoint's own way leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashOf {
    /// All values of a header, by its name in lower case.
    Header(Name),
    /// A cookie, by its name.
    Cookie(Name),
    /// The client's address.
    SourceIp,
    /// A parameter of the query, by its name.
    Query(Name),
}

/// When an endpoint is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ejection {
    /// Answers 5xx in a row; `None` if they don't count.
    pub consecutive_5xx: Option<u32>,
    /// Answers 502, 503 and 504 in a row.
    pub consecutive_gateway: Option<u32>,
    /// Failures before an answer, in a row. Without it, they count as answers 503 and 504.
    pub consecutive_local: Option<u32>,
    /// Whether `consecutive_local` counts what happens before an answer.
    pub split_local: bool,
    /// Each of these that an endpoint stays in takes one from the times that it was left out.
    pub interval: Duration,
    /// How long one is left out, times the times that it was left out.
    pub base: Duration,
    /// Of a hundred endpoints, how many may be left out.
    pub max_percent: u32,
    /// Of a hundred endpoints, how many must be well for any to be left out.
    pub min_health_percent: u32,
}

/// How many requests may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudget {
    /// Of a million open requests.
    pub per_million: u32,
    /// As many always.
    pub at_least: u32,
}
