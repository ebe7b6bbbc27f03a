//! Rules of routes, from the Gateway API's objects to the model. References are resolved by `Refs`.

use leno_model::Name;
use leno_model::http::{
    Backend, BackendTarget, Cors, Filter, HeaderChanges, Match, Mirror, PathChange, PathMatch, Redirect, Retry,
    Rewrite, Rule, SessionPersistence, SessionToken, Timeouts, ValueMatch, ValueTest,
};
use leno_objects::{
    BackendReference, ConnectionBackendRef, ConnectionRouteRule, CookieLifetime, GRPCRouteMatch, GRPCRouteRule,
    HTTPBackendRef, HTTPHeaderFilter, HTTPPathModifier, HTTPPathModifierType, HTTPRouteFilter, HTTPRouteFilterType,
    HTTPRouteMatch, HTTPRouteRule, HTTPValueMatch, PathMatchType, RouteSession, RouteSessionType, ValueMatchType,
};

/// Finds what a route refers to.
pub(super) trait Refs {
    /// The destination. If it can't be used, that is noted, and the answer says why.
    fn target(&mut self, to: &BackendReference) -> BackendTarget;

    /// Whether it keeps a client at one endpoint by itself (`sessionAffinity`).
    fn keeps_clients(&self, to: &BackendReference) -> bool;
}

/// Why a rule is not followed: the field, and what is wrong with it.
pub(super) type Unsupported = String;

pub(super) fn http_rule(rule: &HTTPRouteRule, refs: &mut dyn Refs) -> Result<Rule, Unsupported> {
    let timeouts = rule.timeouts.as_ref().map_or_else(Timeouts::default, |timeouts| Timeouts {
        request: timeouts.request.map(|limit| limit.0),
        backend_request: timeouts.backend_request.map(|limit| limit.0),
    });
    if let (Some(all), Some(one)) = (timeouts.request, timeouts.backend_request)
        && !all.is_zero()
        && one > all
    {
        return Err("timeouts.backendRequest is longer than timeouts.request".to_owned());
    }
    Ok(Rule {
        name: rule.name.as_deref().map(Name::from),
        matches: rule.matches.iter().map(http_match).collect(),
        filters: filters(&rule.filters, refs)?,
        backends: backends(&rule.backend_refs, refs)?,
        timeouts,
        retry: rule.retry.as_ref().map(|retry| Retry {
            codes: retry.codes.iter().filter_map(|code| u16::try_from(*code).ok()).collect(),
            attempts: retry.attempts,
            backoff: retry.backoff.map(|wait| wait.0),
        }),
        session: session(rule.session_persistence.as_ref(), &rule.backend_refs, refs)?,
        rate: None,
    })
}

pub(super) fn grpc_rule(rule: &GRPCRouteRule, refs: &mut dyn Refs) -> Result<Rule, Unsupported> {
    let of_http = |filter: &HTTPRouteFilter| {
        use HTTPRouteFilterType::{CORS, RequestRedirect, URLRewrite};
        matches!(filter.kind, RequestRedirect | URLRewrite | CORS)
    };
    let of_backends = rule.backend_refs.iter().flat_map(|backend| &backend.filters);
    if let Some(filter) = rule.filters.iter().chain(of_backends).find(|filter| of_http(filter)) {
        return Err(format!("a GRPCRoute can't have a filter of type {}", filter.kind));
    }
    Ok(Rule {
        name: rule.name.as_deref().map(Name::from),
        matches: rule.matches.iter().map(grpc_match).collect::<Result<_, _>>()?,
        filters: filters(&rule.filters, refs)?,
        backends: backends(&rule.backend_refs, refs)?,
        session: session(rule.session_persistence.as_ref(), &rule.backend_refs, refs)?,
        ..Rule::default()
    })
}

/// The rule of a TLSRoute or TCPRoute.
pub(super) fn connection_rule(rule: &ConnectionRouteRule, refs: &mut dyn Refs) -> Rule {
    let backend = |backend: &ConnectionBackendRef| Backend {
        weight: backend.weight,
        target: refs.target(&backend.reference()),
        filters: Vec::new(),
    };
    Rule {
        name: rule.name.as_deref().map(Name::from),
        backends: rule.backend_refs.iter().map(backend).collect(),
        ..Rule::default()
    }
}

fn values(values: &[HTTPValueMatch], lower_case: bool) -> Vec<ValueMatch> {
    let value = |one: &HTTPValueMatch| ValueMatch {
        name: if lower_case { one.name.to_ascii_lowercase().into() } else { one.name.as_str().into() },
        value: match one.kind {
            ValueMatchType::Exact => ValueTest::Exact(one.value.as_str().into()),
            ValueMatchType::RegularExpression => ValueTest::Regex(one.value.as_str().into()),
        },
    };
    values.iter().map(value).collect()
}

fn http_match(one: &HTTPRouteMatch) -> Match {
    let path = one.path.clone().unwrap_or_default();
    let value: Name = path.value.as_deref().unwrap_or("/").into();
    Match {
        path: match path.kind {
            PathMatchType::PathPrefix => PathMatch::Prefix(value),
            PathMatchType::Exact => PathMatch::Exact(value),
            PathMatchType::RegularExpression => PathMatch::Regex(value),
        },
        method: one.method.as_deref().map(Name::from),
        headers: values(&one.headers, true),
        query: values(&one.query_params, false),
    }
}

/// A gRPC method as the path of its calls: `/service/method`.
fn grpc_match(one: &GRPCRouteMatch) -> Result<Match, Unsupported> {
    let headers = values(&one.headers, true);
    let Some(method) = &one.method else { return Ok(Match { headers, ..Match::all() }) };
    let part = |part: &Option<String>| part.as_deref().filter(|part| !part.is_empty()).map(str::to_owned);
    let (service, name) = (part(&method.service), part(&method.method));
    if method.kind == ValueMatchType::Exact
        && let Some(bad) = service.iter().chain(&name).find(|part| part.contains('/'))
    {
        return Err(format!("{bad:?} is no name of a gRPC service or method: it has a slash"));
    }
    let path = match (method.kind, service, name) {
        (_, None, None) => PathMatch::Prefix("/".into()),
        (ValueMatchType::Exact, Some(service), Some(name)) => PathMatch::Exact(format!("/{service}/{name}").into()),
        (ValueMatchType::Exact, Some(service), None) => PathMatch::Prefix(format!("/{service}").into()),
        (ValueMatchType::Exact, None, Some(name)) => {
            // All that a name may have besides letters and digits.
            let escaped = name.replace('.', "\\.");
            PathMatch::Regex(format!("/[^/]+/{escaped}").into())
        }
        (ValueMatchType::RegularExpression, service, name) => {
            let any = || "[^/]+".to_owned();
            PathMatch::Regex(format!("/(?:{})/(?:{})", service.unwrap_or_else(any), name.unwrap_or_else(any)).into())
        }
    };
    Ok(Match { path, headers, ..Match::all() })
}

fn backends(refs: &[HTTPBackendRef], to: &mut dyn Refs) -> Result<Vec<Backend>, Unsupported> {
    let backend = |backend: &HTTPBackendRef| {
        Ok(Backend {
            weight: backend.weight,
            target: to.target(&backend.reference()),
            filters: filters(&backend.filters, to)?,
        })
    };
    refs.iter().map(backend).collect()
}

fn filters(filters: &[HTTPRouteFilter], refs: &mut dyn Refs) -> Result<Vec<Filter>, Unsupported> {
    let mut out: Vec<Filter> = Vec::with_capacity(filters.len());
    for (at, filter) in filters.iter().enumerate() {
        // Several mirrors are one of the API's features; all else may stand once.
        let twice = filters[..at].iter().any(|before| before.kind == filter.kind);
        if twice && filter.kind != HTTPRouteFilterType::RequestMirror {
            return Err(format!("filter {} stands twice", filter.kind));
        }
        let missing = || format!("a filter of type {} lacks the field of this name", filter.kind);
        out.push(match filter.kind {
            HTTPRouteFilterType::RequestHeaderModifier => {
                Filter::RequestHeaders(changes(filter.request_header_modifier.as_ref().ok_or_else(missing)?))
            }
            HTTPRouteFilterType::ResponseHeaderModifier => {
                Filter::ResponseHeaders(changes(filter.response_header_modifier.as_ref().ok_or_else(missing)?))
            }
            HTTPRouteFilterType::RequestMirror => {
                let mirror = filter.request_mirror.as_ref().ok_or_else(missing)?;
                let (numerator, denominator) = match (mirror.percent, &mirror.fraction) {
                    (Some(_), Some(_)) => return Err("a mirror has a percent or a fraction, not both".to_owned()),
                    (Some(percent), None) => (percent, 100),
                    (None, Some(fraction)) => (fraction.numerator, fraction.denominator),
                    (None, None) => (1, 1),
                };
                Filter::Mirror(Mirror { target: refs.target(&mirror.backend_ref), numerator, denominator })
            }
            HTTPRouteFilterType::RequestRedirect => {
                let redirect = filter.request_redirect.as_ref().ok_or_else(missing)?;
                Filter::Redirect(Redirect {
                    scheme: redirect.scheme.as_deref().map(Name::from),
                    hostname: redirect.hostname.as_deref().map(Name::from),
                    path: redirect.path.as_ref().map(path),
                    port: redirect.port.map(|port| port.0),
                    status: u16::try_from(redirect.status_code).unwrap_or_default(),
                })
            }
            HTTPRouteFilterType::URLRewrite => {
                let rewrite = filter.url_rewrite.as_ref().ok_or_else(missing)?;
                Filter::Rewrite(Rewrite {
                    hostname: rewrite.hostname.as_deref().map(Name::from),
                    path: rewrite.path.as_ref().map(path),
                })
            }
            HTTPRouteFilterType::CORS => {
                let cors = filter.cors.as_ref().ok_or_else(missing)?;
                let names = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
                Filter::Cors(Cors {
                    allow_origins: names(&cors.allow_origins),
                    allow_credentials: cors.allow_credentials,
                    allow_methods: names(&cors.allow_methods),
                    allow_headers: names(&cors.allow_headers),
                    expose_headers: names(&cors.expose_headers),
                    max_age: cors.max_age,
                })
            }
            HTTPRouteFilterType::ExternalAuth | HTTPRouteFilterType::ExtensionRef => {
                return Err(format!("a filter of type {} is not supported", filter.kind));
            }
        });
    }
    Ok(out)
}

fn changes(filter: &HTTPHeaderFilter) -> HeaderChanges {
    let name = |name: &str| Name::from(name.to_ascii_lowercase());
    let pairs = |headers: &[leno_objects::HTTPHeader]| {
        headers.iter().map(|header| (name(&header.name), header.value.as_str().into())).collect()
    };
    HeaderChanges {
        set: pairs(&filter.set),
        add: pairs(&filter.add),
        remove: filter.remove.iter().map(|header| name(header)).collect(),
    }
}

fn path(path: &HTTPPathModifier) -> PathChange {
    let value = |value: &Option<String>| value.as_deref().unwrap_or_default().into();
    match path.kind {
        HTTPPathModifierType::ReplaceFullPath => PathChange::Full(value(&path.replace_full_path)),
        HTTPPathModifierType::ReplacePrefixMatch => PathChange::Prefix(value(&path.replace_prefix_match)),
    }
}

fn session(
    session: Option<&RouteSession>,
    backends: &[HTTPBackendRef],
    refs: &dyn Refs,
) -> Result<Option<SessionPersistence>, Unsupported> {
    let Some(session) = session else { return Ok(None) };
    // The Gateway API wants such a route refused (GEP-1619).
    if let Some(backend) = backends.iter().find(|backend| refs.keeps_clients(&backend.reference())) {
        return Err(format!(
            "sessionPersistence and the sessionAffinity of Service {} say different things; take one of them away",
            backend.name
        ));
    }
    if session.kind == RouteSessionType::Header && session.cookie_config.is_some() {
        return Err("sessionPersistence.cookieConfig is for type Cookie".to_owned());
    }
    let lifetime = session.cookie_config.as_ref().map(|cookie| cookie.lifetime_type);
    let permanent = lifetime == Some(CookieLifetime::Permanent);
    if permanent && session.absolute_timeout.is_none() {
        return Err("a permanent cookie needs sessionPersistence.absoluteTimeout".to_owned());
    }
    Ok(Some(SessionPersistence {
        name: session.session_name.as_deref().map(Name::from),
        token: match session.kind {
            RouteSessionType::Cookie => SessionToken::Cookie { permanent },
            RouteSessionType::Header => SessionToken::Header,
        },
        absolute_timeout: session.absolute_timeout.map(|age| age.0),
    }))
}
