//! Conversion between routes and their message.
//!
//! A part that can't be read refuses the whole route: leaving a condition out would widen it.

use std::time::Duration;

use leno_model::Name;
use leno_model::http;

use super::fields::{known, port, service_name};
use crate::ConvertError;
use crate::waypoint as wire;

/// The name of a route's resource.
pub fn route_resource_name(id: &http::RouteName) -> String {
    format!("{}/{}/{}", id.kind, id.namespace, id.name)
}

/// The route whose resource has this name; `None` if no route's has.
pub fn route_of_resource(name: &str) -> Option<http::RouteName> {
    let mut parts = name.splitn(3, '/');
    let kind = match parts.next()? {
        "HTTPRoute" => http::RouteKind::Http,
        "GRPCRoute" => http::RouteKind::Grpc,
        "TLSRoute" => http::RouteKind::Tls,
        "TCPRoute" => http::RouteKind::Tcp,
        _ => return None,
    };
    Some(http::RouteName { kind, namespace: parts.next()?.into(), name: parts.next()?.into() })
}

/// Reads a route.
///
/// # Errors
/// If it has an enum value or a kind of match or filter that this version does not know, or lacks something.
pub fn route_from_proto(route: wire::Route) -> Result<http::Route, ConvertError> {
    if route.name.is_empty() {
        return Err(ConvertError::Missing { field: "name" });
    }
    Ok(http::Route {
        id: http::RouteName {
            kind: match known("kind", route.kind)? {
                wire::route::Kind::Http => http::RouteKind::Http,
                wire::route::Kind::Grpc => http::RouteKind::Grpc,
                wire::route::Kind::Tls => http::RouteKind::Tls,
                wire::route::Kind::Tcp => http::RouteKind::Tcp,
                wire::route::Kind::Unspecified => return Err(ConvertError::Missing { field: "kind" }),
            },
            namespace: route.namespace.into(),
            name: route.name.into(),
        },
        created: route.created,
        parents: route.parents.into_iter().map(parent).collect::<Result<_, _>>()?,
        hostnames: names(route.hostnames),
        rules: route.rules.into_iter().map(rule).collect::<Result<_, _>>()?,
        not_understood: None,
    })
}

/// The parents of a route, as far as they can be read: what is closed if the rest can't.
fn route_parents(route: wire::Route) -> Vec<http::Parent> {
    route.parents.into_iter().filter_map(|one| parent(one).ok()).collect()
}

fn names(texts: Vec<String>) -> Vec<Name> {
    texts.into_iter().map(Name::from).collect()
}

fn optional(text: String) -> Option<Name> {
    (!text.is_empty()).then(|| text.into())
}

fn parent(parent: wire::Parent) -> Result<http::Parent, ConvertError> {
    Ok(http::Parent {
        service: service_name("parent", &parent.service)?,
        port: match port("parent.port", parent.port)? {
            0 => None,
            port => Some(port),
        },
        consumer: optional(parent.consumer),
    })
}

fn rule(rule: wire::Rule) -> Result<http::Rule, ConvertError> {
    Ok(http::Rule {
        name: optional(rule.name),
        matches: rule.matches.into_iter().map(one_match).collect::<Result<_, _>>()?,
        filters: rule.filters.into_iter().map(filter).collect::<Result<_, _>>()?,
        backends: rule.backends.into_iter().map(backend).collect::<Result<_, _>>()?,
        timeouts: http::Timeouts {
            request: rule.request_timeout_ms.map(Duration::from_millis),
            backend_request: rule.backend_request_timeout_ms.map(Duration::from_millis),
        },
        retry: rule.retry.map(retry).transpose()?,
        session: rule.session.map(session).transpose()?,
        rate: rule.rate_limit.map(rate).transpose()?,
    })
}

fn one_match(one: wire::Match) -> Result<http::Match, ConvertError> {
    Ok(http::Match {
        path: match one.path.ok_or(ConvertError::Missing { field: "match.path" })? {
            wire::r#match::Path::Exact(path) => http::PathMatch::Exact(path.into()),
            wire::r#match::Path::Prefix(path) => http::PathMatch::Prefix(path.into()),
            wire::r#match::Path::Regex(path) => http::PathMatch::Regex(path.into()),
        },
        method: optional(one.method),
        headers: one.headers.into_iter().map(value_match).collect::<Result<_, _>>()?,
        query: one.query.into_iter().map(value_match).collect::<Result<_, _>>()?,
    })
}

fn value_match(one: wire::ValueMatch) -> Result<http::ValueMatch, ConvertError> {
    let value = match one.value.ok_or(ConvertError::Missing { field: "value" })? {
        wire::value_match::Value::Exact(value) => http::ValueTest::Exact(value.into()),
        wire::value_match::Value::Regex(value) => http::ValueTest::Regex(value.into()),
    };
    Ok(http::ValueMatch { name: one.name.into(), value })
}

fn filter(filter: wire::Filter) -> Result<http::Filter, ConvertError> {
    Ok(match filter.filter.ok_or(ConvertError::Missing { field: "filter" })? {
        wire::filter::Filter::RequestHeaders(changes) => http::Filter::RequestHeaders(header_changes(changes)),
        wire::filter::Filter::ResponseHeaders(changes) => http::Filter::ResponseHeaders(header_changes(changes)),
        wire::filter::Filter::Redirect(redirect) => http::Filter::Redirect(http::Redirect {
            scheme: optional(redirect.scheme),
            hostname: optional(redirect.hostname),
            path: redirect.path.map(path_change).transpose()?,
            port: match port("redirect.port", redirect.port)? {
                0 => None,
                port => Some(port),
            },
            status: port("redirect.status", redirect.status)?,
        }),
        wire::filter::Filter::Rewrite(rewrite) => http::Filter::Rewrite(http::Rewrite {
            hostname: optional(rewrite.hostname),
            path: rewrite.path.map(path_change).transpose()?,
        }),
        wire::filter::Filter::Mirror(mirror) => {
            if mirror.denominator == 0 {
                return Err(ConvertError::Missing { field: "mirror.denominator" });
            }
            http::Filter::Mirror(http::Mirror {
                target: target(mirror.target)?,
                numerator: mirror.numerator,
                denominator: mirror.denominator,
            })
        }
        wire::filter::Filter::Cors(cors) => http::Filter::Cors(http::Cors {
            allow_origins: names(cors.allow_origins),
            allow_credentials: cors.allow_credentials,
            allow_methods: names(cors.allow_methods),
            allow_headers: names(cors.allow_headers),
            expose_headers: names(cors.expose_headers),
            max_age: cors.max_age,
        }),
    })
}

fn header_changes(changes: wire::HeaderChanges) -> http::HeaderChanges {
    let pairs = |headers: Vec<wire::Header>| headers.into_iter().map(|h| (h.name.into(), h.value.into())).collect();
    http::HeaderChanges { set: pairs(changes.set), add: pairs(changes.add), remove: names(changes.remove) }
}

fn path_change(change: wire::PathChange) -> Result<http::PathChange, ConvertError> {
    Ok(match change.change.ok_or(ConvertError::Missing { field: "path change" })? {
        wire::path_change::Change::Full(path) => http::PathChange::Full(path.into()),
        wire::path_change::Change::Prefix(path) => http::PathChange::Prefix(path.into()),
    })
}

fn target(target: Option<wire::Target>) -> Result<http::BackendTarget, ConvertError> {
    Ok(match target.and_then(|target| target.target).ok_or(ConvertError::Missing { field: "target" })? {
        wire::target::Target::Service(to) => http::BackendTarget::Service {
            service: service_name("backend", &to.service)?,
            port: port("backend.port", to.port)?,
        },
        wire::target::Target::Invalid(why) => http::BackendTarget::Invalid(why.into()),
    })
}

fn backend(backend: wire::Backend) -> Result<http::Backend, ConvertError> {
    Ok(http::Backend {
        weight: backend.weight,
        target: target(backend.target)?,
        filters: backend.filters.into_iter().map(filter).collect::<Result<_, _>>()?,
    })
}

fn retry(retry: wire::Retry) -> Result<http::Retry, ConvertError> {
    Ok(http::Retry {
        codes: retry.codes.into_iter().map(|code| port("retry.codes", code)).collect::<Result<_, _>>()?,
        attempts: retry.attempts,
        backoff: retry.backoff_ms.map(Duration::from_millis),
    })
}

fn rate(rate: wire::RateLimit) -> Result<http::RateLimit, ConvertError> {
    if rate.requests == 0 || rate.per_ms == 0 || rate.burst == 0 {
        return Err(ConvertError::Missing { field: "rate_limit" });
    }
    Ok(http::RateLimit { requests: rate.requests, per: Duration::from_millis(rate.per_ms), burst: rate.burst })
}

fn session(session: wire::Session) -> Result<http::SessionPersistence, ConvertError> {
    Ok(http::SessionPersistence {
        name: optional(session.name),
        token: match known("session.token", session.token)? {
            wire::session::Token::Cookie => http::SessionToken::Cookie { permanent: false },
            wire::session::Token::PermanentCookie => http::SessionToken::Cookie { permanent: true },
            wire::session::Token::Header => http::SessionToken::Header,
            wire::session::Token::Unspecified => return Err(ConvertError::Missing { field: "session.token" }),
        },
        absolute_timeout: session.absolute_timeout_ms.map(Duration::from_millis),
    })
}

/// Writes a route.
pub fn route_to_proto(route: &http::Route) -> wire::Route {
    wire::Route {
        kind: match route.id.kind {
            http::RouteKind::Http => wire::route::Kind::Http,
            http::RouteKind::Grpc => wire::route::Kind::Grpc,
            http::RouteKind::Tls => wire::route::Kind::Tls,
            http::RouteKind::Tcp => wire::route::Kind::Tcp,
        }
        .into(),
        namespace: route.id.namespace.to_string(),
        name: route.id.name.to_string(),
        created: route.created,
        parents: route
            .parents
            .iter()
            .map(|parent| wire::Parent {
                service: parent.service.to_string(),
                port: parent.port.unwrap_or_default().into(),
                consumer: text(parent.consumer.as_ref()),
            })
            .collect(),
        hostnames: texts(&route.hostnames),
        rules: route.rules.iter().map(rule_to_proto).collect(),
    }
}

fn text(name: Option<&Name>) -> String {
    name.map(ToString::to_string).unwrap_or_default()
}

fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn milliseconds(duration: Option<Duration>) -> Option<u64> {
    duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn rule_to_proto(rule: &http::Rule) -> wire::Rule {
    wire::Rule {
        name: text(rule.name.as_ref()),
        matches: rule.matches.iter().map(match_to_proto).collect(),
        filters: rule.filters.iter().map(filter_to_proto).collect(),
        backends: rule
            .backends
            .iter()
            .map(|backend| wire::Backend {
                weight: backend.weight,
                target: Some(target_to_proto(&backend.target)),
                filters: backend.filters.iter().map(filter_to_proto).collect(),
            })
            .collect(),
        request_timeout_ms: milliseconds(rule.timeouts.request),
        backend_request_timeout_ms: milliseconds(rule.timeouts.backend_request),
        retry: rule.retry.as_ref().map(|retry| wire::Retry {
            codes: retry.codes.iter().map(|code| u32::from(*code)).collect(),
            attempts: retry.attempts,
            backoff_ms: milliseconds(retry.backoff),
        }),
        session: rule.session.as_ref().map(|session| wire::Session {
            name: text(session.name.as_ref()),
            token: match session.token {
                http::SessionToken::Cookie { permanent: false } => wire::session::Token::Cookie,
                http::SessionToken::Cookie { permanent: true } => wire::session::Token::PermanentCookie,
                http::SessionToken::Header => wire::session::Token::Header,
            }
            .into(),
            absolute_timeout_ms: milliseconds(session.absolute_timeout),
        }),
        rate_limit: rule.rate.map(|rate| wire::RateLimit {
            requests: rate.requests,
            per_ms: milliseconds(Some(rate.per)).unwrap_or_default(),
            burst: rate.burst,
        }),
    }
}

fn match_to_proto(one: &http::Match) -> wire::Match {
    let path = match &one.path {
        http::PathMatch::Exact(path) => wire::r#match::Path::Exact(path.to_string()),
        http::PathMatch::Prefix(path) => wire::r#match::Path::Prefix(path.to_string()),
        http::PathMatch::Regex(path) => wire::r#match::Path::Regex(path.to_string()),
    };
    let values = |values: &[http::ValueMatch]| {
        let value = |one: &http::ValueMatch| wire::ValueMatch {
            name: one.name.to_string(),
            value: Some(match &one.value {
                http::ValueTest::Exact(value) => wire::value_match::Value::Exact(value.to_string()),
                http::ValueTest::Regex(value) => wire::value_match::Value::Regex(value.to_string()),
            }),
        };
        values.iter().map(value).collect()
    };
    wire::Match {
        path: Some(path),
        method: text(one.method.as_ref()),
        headers: values(&one.headers),
        query: values(&one.query),
    }
}

fn filter_to_proto(filter: &http::Filter) -> wire::Filter {
    let filter = match filter {
        http::Filter::RequestHeaders(changes) => wire::filter::Filter::RequestHeaders(changes_to_proto(changes)),
        http::Filter::ResponseHeaders(changes) => wire::filter::Filter::ResponseHeaders(changes_to_proto(changes)),
        http::Filter::Redirect(redirect) => wire::filter::Filter::Redirect(wire::Redirect {
            scheme: text(redirect.scheme.as_ref()),
            hostname: text(redirect.hostname.as_ref()),
            path: redirect.path.as_ref().map(path_to_proto),
            port: redirect.port.unwrap_or_default().into(),
            status: redirect.status.into(),
        }),
        http::Filter::Rewrite(rewrite) => wire::filter::Filter::Rewrite(wire::Rewrite {
            hostname: text(rewrite.hostname.as_ref()),
            path: rewrite.path.as_ref().map(path_to_proto),
        }),
        http::Filter::Mirror(mirror) => wire::filter::Filter::Mirror(wire::Mirror {
            target: Some(target_to_proto(&mirror.target)),
            numerator: mirror.numerator,
            denominator: mirror.denominator,
        }),
        http::Filter::Cors(cors) => wire::filter::Filter::Cors(wire::Cors {
            allow_origins: texts(&cors.allow_origins),
            allow_credentials: cors.allow_credentials,
            allow_methods: texts(&cors.allow_methods),
            allow_headers: texts(&cors.allow_headers),
            expose_headers: texts(&cors.expose_headers),
            max_age: cors.max_age,
        }),
    };
    wire::Filter { filter: Some(filter) }
}

fn changes_to_proto(changes: &http::HeaderChanges) -> wire::HeaderChanges {
    let headers = |pairs: &[(Name, Name)]| {
        pairs.iter().map(|(name, value)| wire::Header { name: name.to_string(), value: value.to_string() }).collect()
    };
    wire::HeaderChanges { set: headers(&changes.set), add: headers(&changes.add), remove: texts(&changes.remove) }
}

fn path_to_proto(change: &http::PathChange) -> wire::PathChange {
    let change = match change {
        http::PathChange::Full(path) => wire::path_change::Change::Full(path.to_string()),
        http::PathChange::Prefix(path) => wire::path_change::Change::Prefix(path.to_string()),
    };
    wire::PathChange { change: Some(change) }
}

fn target_to_proto(target: &http::BackendTarget) -> wire::Target {
    let target = match target {
        http::BackendTarget::Service { service, port } => {
            wire::target::Target::Service(wire::ServicePort { service: service.to_string(), port: (*port).into() })
        }
        http::BackendTarget::Invalid(why) => wire::target::Target::Invalid(why.to_string()),
    };
    wire::Target { target: Some(target) }
}

/// What stands for a route that was refused: its parents, as far as they can be read, are closed.
pub fn route_stand_in(name: &str, route: Option<wire::Route>, reason: &str) -> Option<http::Route> {
    Some(http::Route {
        id: route_of_resource(name)?,
        created: 0,
        parents: route.map(route_parents).unwrap_or_default(),
        hostnames: Vec::new(),
        rules: Vec::new(),
        not_understood: Some(reason.into()),
    })
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
