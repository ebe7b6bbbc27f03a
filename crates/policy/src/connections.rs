//! Which backend does a connection go to that passes a waypoint unread? TLSRoutes choose by the server name that the client
//! asks for, TCPRoutes choose for all.

use std::collections::HashMap;
use std::sync::Arc;

use leno_model::http::{Backend, BackendTarget, Route, RouteKind, RouteName};
use leno_model::{Name, ServiceName};

use crate::http::Destination;

/// The routes for connections to one port of a service, compiled once.
#[derive(Debug, Default)]
pub struct Connections {
    producer: Option<Group>,
    consumers: HashMap<Name, Group>,
}

/// A service's own routes, or those of one consumer's namespace.
#[derive(Debug)]
pub struct Group {
    kind: RouteKind,
    routes: Vec<RouteName>,
    /// The first route that can't be followed, and why.
    not_understood: Option<(RouteName, Name)>,
    hosts: HashMap<Name, Arc<ConnectionRule>>,
    /// By the name behind `*`, with its dot.
    wildcards: HashMap<Name, Arc<ConnectionRule>>,
    /// The rule for all connections.
    any: Option<Arc<ConnectionRule>>,
}

/// A rule that connections follow.
#[derive(Debug)]
pub struct ConnectionRule {
    route: RouteName,
    label: Name,
    backends: Vec<Backend>,
    total: u64,
}

/// Why a connection goes to no backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrouted {
    /// No route names the server.
    #[error("no TLSRoute of the service names the server {0:?}, which the client asks for")]
    NoRoute(String),
    /// The client names no server.
    #[error("the client names no server (SNI), and the TLSRoutes of the service choose by it")]
    NoName,
    /// What the client sends is no TLS.
    #[error("the client does not speak TLS, and the TLSRoutes of the service choose by its first message")]
    NotTls,
    /// The backend can't be used.
    #[error("{rule} sends this connection to a backend that can't be used: {problem}")]
    Backend {
        /// The rule.
        rule: Name,
        /// Why.
        problem: Name,
    },
    /// There is none.
    #[error("{0} has no backend for this connection: it names none, or all have weight 0")]
    NoBackend(Name),
    /// A route was not understood.
    #[error(
        "{route} can't be followed by this proxy ({problem}), so the connections it is for are refused; if the control \
         plane is newer than this proxy, upgrade the proxy"
    )]
    NotUnderstood {
        /// The route.
        route: RouteName,
        /// What was not understood.
        problem: Name,
    },
}

impl Unrouted {
    /// Whether the same connection may succeed later without a change of configuration. It may not.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

impl Connections {
    /// The table of `port` of `service`. Of `routes`, those of requests and those that belong to another service or port are
    /// left out. Where routes of both kinds belong to the port, the TLSRoutes count, as the Gateway API has it (GEP-1294).
    pub fn new<'a>(service: &ServiceName, port: u16, routes: impl IntoIterator<Item = &'a Route>) -> Self {
        let mut groups: HashMap<Option<Name>, Vec<&Route>> = HashMap::new();
        for route in routes.into_iter().filter(|route| !route.id.kind.is_of_requests()) {
            for parent in &route.parents {
                let here = parent.service == *service && parent.port.is_none_or(|only| only == port);
                let group = groups.entry(parent.consumer.clone()).or_default();
                if here && group.last().is_none_or(|last| last.id != route.id) {
                    group.push(route);
                }
            }
        }
        let mut table = Self::default();
        for (consumer, routes) in groups {
            let Some(group) = Group::new(routes) else { continue };
            match consumer {
                Some(namespace) => drop(table.consumers.insert(namespace, group)),
                None => table.producer = Some(group),
            }
        }
        table
    }

    /// Whether no route is about the port.
    pub fn is_empty(&self) -> bool {
        self.producer.is_none() && self.consumers.is_empty()
    }

    /// The routes for clients of a namespace: the namespace's own if there are any, else the service's.
    pub fn group(&self, source_namespace: Option<&str>) -> Option<&Group> {
        source_namespace.and_then(|namespace| self.consumers.get(namespace)).or(self.producer.as_ref())
    }
}

impl Group {
    fn new(mut routes: Vec<&Route>) -> Option<Self> {
        let kind = routes.iter().map(|route| route.id.kind).min()?;
        routes.retain(|route| route.id.kind == kind);
        // The oldest wins, and of equally old ones the first by name.
        routes.sort_by_key(|route| (route.created, route.id.clone()));
        let problem = |route: &&Route| Some((route.id.clone(), route.not_understood.clone()?));
        let mut group = Self {
            kind,
            routes: routes.iter().map(|route| route.id.clone()).collect(),
            not_understood: routes.iter().find_map(problem),
            hosts: HashMap::new(),
            wildcards: HashMap::new(),
            any: None,
        };
        for route in routes {
            // Nothing tells a second rule's connections from the first one's.
            let Some(rule) = route.rules.first() else { continue };
            let label = match &rule.name {
                Some(name) => format!("rule {name} of {}", route.id),
                None => format!("rule 1 of {}", route.id),
            };
            let rule = Arc::new(ConnectionRule {
                route: route.id.clone(),
                label: label.into(),
                backends: rule.backends.clone(),
                total: rule.backends.iter().map(|backend| u64::from(backend.weight)).sum(),
            });
            if kind == RouteKind::Tcp || route.hostnames.is_empty() {
                group.any.get_or_insert_with(|| rule.clone());
                continue;
            }
            for host in &route.hostnames {
                let (names, host) = match host.strip_prefix('*') {
                    Some(suffix) => (&mut group.wildcards, suffix.into()),
                    None => (&mut group.hosts, host.clone()),
                };
                names.entry(host).or_insert_with(|| rule.clone());
            }
        }
        Some(group)
    }

    /// Whether the choice needs the server name that the client asks for.
    pub fn needs_name(&self) -> bool {
        self.kind == RouteKind::Tls && self.not_understood.is_none()
    }

    /// Where it may send connections.
    pub fn destinations(&self) -> impl Iterator<Item = Destination> {
        let rules = self.hosts.values().chain(self.wildcards.values()).chain(&self.any);
        rules.flat_map(|rule| &rule.backends).filter_map(|backend| match &backend.target {
            BackendTarget::Service { service, port } => Some(Destination { service: service.clone(), port: *port }),
            BackendTarget::Invalid(_) => None,
        })
    }

    /// The routes.
    pub fn routes(&self) -> &[RouteName] {
        &self.routes
    }

    /// The rule for a connection that asks for this server. A name that is written out goes before one by `*`, and of those
    /// the longest first.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(&self, name: Option<&str>) -> Result<&Arc<ConnectionRule>, Unrouted> {
        if let Some((route, problem)) = &self.not_understood {
            return Err(Unrouted::NotUnderstood { route: route.clone(), problem: problem.clone() });
        }
        let lower = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let named = lower.as_deref().and_then(|name| {
            let mut dots = name.match_indices('.').filter(|(dot, _)| *dot > 0);
            self.hosts.get(name).or_else(|| dots.find_map(|(dot, _)| self.wildcards.get(&name[dot..])))
        });
        named.or(self.any.as_ref()).ok_or_else(|| match name {
            Some(name) => Unrouted::NoRoute(name.to_owned()),
            None => Unrouted::NoName,
        })
    }
}

impl ConnectionRule {
    /// The route.
    pub fn route(&self) -> &RouteName {
        &self.route
    }

    /// How a log, a refusal and `leno explain` name the rule.
    pub fn label(&self) -> &Name {
        &self.label
    }

    /// Its backends in order, each with its weight.
    pub fn backends(&self) -> impl Iterator<Item = (u32, &BackendTarget)> {
        self.backends.iter().map(|backend| (backend.weight, &backend.target))
    }

    /// Chooses a backend by weight.
    ///
    /// # Errors
    /// If the one that is chosen can't be used, or there is none.
    pub fn choose(&self, random: &mut dyn FnMut() -> u64) -> Result<Destination, Unrouted> {
        let mut share = ((u128::from(random()) * u128::from(self.total)) >> 64) as u64;
        for backend in &self.backends {
            if share < u64::from(backend.weight) {
                return match &backend.target {
                    BackendTarget::Service { service, port } => {
                        Ok(Destination { service: service.clone(), port: *port })
                    }
                    BackendTarget::Invalid(problem) => {
                        Err(Unrouted::Backend { rule: self.label.clone(), problem: problem.clone() })
                    }
                };
            }
            share -= u64::from(backend.weight);
        }
        Err(Unrouted::NoBackend(self.label.clone()))
    }
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
