//! A test of one attribute, compiled once.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;
use leno_model::http::{Attribute, AttributeTest};
use leno_model::{Name, ServiceAccountMatch, StringMatch};

use super::conditions::header_name;
use super::error::RuleError;
use super::path_pattern::PathPattern;
use super::subject::{Subject, Values};
use super::token::Claims;

/// Patterns of which one must match, unless there are none, and patterns of which none may.
#[derive(Debug, Clone)]
pub(super) struct Wanted<T> {
    is: Vec<T>,
    not: Vec<T>,
}

impl<T> Wanted<T> {
    fn new(test: &AttributeTest, read: impl Fn(&Name) -> Result<T, RuleError>) -> Result<Self, RuleError> {
        let all = |names: &[Name]| names.iter().map(&read).collect::<Result<Vec<_>, _>>();
        Ok(Self { is: all(&test.values)?, not: all(&test.not_values)? })
    }

    fn passes(&self, matches: impl Fn(&T) -> bool) -> bool {
        (self.is.is_empty() || self.is.iter().any(&matches)) && !self.not.iter().any(&matches)
    }
}

/// A test of one attribute.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Principal(Wanted<StringMatch>),
    Namespace(Wanted<StringMatch>),
    ServiceAccount(Wanted<ServiceAccountMatch>),
    SourceIp(Wanted<IpNet>),
    RemoteIp(Wanted<IpNet>),
    DestinationIp(Wanted<IpNet>),
    DestinationPort(Wanted<u16>),
    /// Each pattern with whether it names a port.
    Host(Wanted<(StringMatch, bool)>),
    Method(Wanted<StringMatch>),
    Path(Wanted<PathPattern>),
    Header(HeaderName, Wanted<StringMatch>),
    RequestPrincipal(Wanted<StringMatch>),
    Audience(Wanted<StringMatch>),
    Presenter(Wanted<StringMatch>),
    Claim(Vec<Name>, Wanted<StringMatch>),
    ServerName(Wanted<StringMatch>),
}

impl Test {
    pub(super) fn new(test: &AttributeTest) -> Result<Self, RuleError> {
        let bad = |value: &Name| RuleError::Value { attribute: test.attribute.to_string(), value: value.clone() };
        let text = |value: &Name| Ok(pattern(value));
        let block = |value: &Name| block(value).ok_or_else(|| bad(value));
        Ok(match &test.attribute {
            Attribute::Principal => {
                let bare = |value: &Name| Ok(pattern(value.strip_prefix("spiffe://").unwrap_or(value)));
                Self::Principal(Wanted::new(test, bare)?)
            }
            Attribute::Namespace => Self::Namespace(Wanted::new(test, text)?),
            Attribute::ServiceAccount => Self::ServiceAccount(Wanted::new(test, |value| {
                let (namespace, account) = value.split_once('/').ok_or_else(|| bad(value))?;
                Ok(ServiceAccountMatch { namespace: namespace.into(), service_account: account.into() })
            })?),
            Attribute::SourceIp => Self::SourceIp(Wanted::new(test, block)?),
            Attribute::RemoteIp => Self::RemoteIp(Wanted::new(test, block)?),
            Attribute::DestinationIp => Self::DestinationIp(Wanted::new(test, block)?),
            Attribute::DestinationPort => {
                Self::DestinationPort(Wanted::new(test, |value| value.parse().map_err(|_| bad(value)))?)
            }
            Attribute::Host => Self::Host(Wanted::new(test, |value| Ok(host(value)))?),
            Attribute::Method => Self::Method(Wanted::new(test, text)?),
            Attribute::Path => Self::Path(Wanted::new(test, PathPattern::new)?),
            Attribute::Header(name) => match &**name {
                ":method" => Self::Method(Wanted::new(test, text)?),
                ":path" => Self::Path(Wanted::new(test, PathPattern::new)?),
                _ => match header_name(name)? {
                    http::header::HOST => Self::Host(Wanted::new(test, |value| Ok(host(value)))?),
                    name => Self::Header(name, Wanted::new(test, text)?),
                },
            },
            Attribute::RequestPrincipal => Self::RequestPrincipal(Wanted::new(test, text)?),
            Attribute::Audience => Self::Audience(Wanted::new(test, text)?),
            Attribute::Presenter => Self::Presenter(Wanted::new(test, text)?),
            Attribute::Claim(path) => Self::Claim(path.clone(), Wanted::new(test, text)?),
            Attribute::Sni => Self::ServerName(Wanted::new(test, |value| Ok(pattern(&value.to_ascii_lowercase())))?),
        })
    }

    /// Whether it is about the server name that a client of TLS asks for.
    pub(super) fn is_of_server_name(&self) -> bool {
        matches!(self, Self::ServerName(_))
    }

    /// Whether the test passes. Where that can't be known, or depends on how a program reads the request, `strict` is the
    /// answer, or the way to read that leads to it: it passes for a policy that refuses what it matches, and fails for one that
    /// allows.
    pub(super) fn passes(&self, subject: &Subject<'_>, strict: bool) -> bool {
        let connection = &subject.connection;
        let within = |net: &IpNet, address: IpAddr| net.contains(&address.to_canonical());
        match self {
            Self::Principal(wanted) => texts(wanted, subject.principal(), strict),
            Self::Namespace(wanted) => texts(wanted, subject.namespace(), strict),
            Self::ServiceAccount(wanted) => wanted.passes(|want| {
                connection.source.is_some_and(|source| {
                    *source.namespace() == want.namespace && *source.service_account() == want.service_account
                })
            }),
            Self::SourceIp(wanted) => wanted.passes(|net| within(net, connection.source_ip)),
            Self::RemoteIp(_) if subject.is_forwarded() => strict,
            Self::RemoteIp(wanted) => wanted.passes(|net| within(net, connection.source_ip)),
            Self::DestinationIp(wanted) => wanted.passes(|net| within(net, connection.destination.ip())),
            Self::DestinationPort(wanted) => wanted.passes(|port| *port == connection.destination.port()),
            Self::Host(wanted) => {
                if subject.request.is_none() {
                    return strict;
                }
                wanted.passes(|(pattern, with_port)| match subject.host(*with_port) {
                    Values::One(host) => matches(pattern, host),
                    Values::Several(hosts) => hosts.iter().any(|host| matches(pattern, host)),
                    Values::Unknown | Values::Absent => strict,
                })
            }
            Self::Method(wanted) => texts(wanted, subject.method(), strict),
            Self::Path(wanted) => match subject.request {
                Some(request) => wanted.passes(|pattern| pattern.matches(request.path)),
                None => strict,
            },
            Self::Header(name, wanted) => texts(wanted, subject.header(name), strict),
            Self::RequestPrincipal(wanted) => of_token(wanted, subject, strict, |claims| {
                Some(claims.principal().into_iter().map(Cow::Owned).collect())
            }),
            Self::Audience(wanted) => of_token(wanted, subject, strict, |claims| {
                Some(claims.audiences().ok()?.into_iter().map(Cow::Owned).collect())
            }),
            Self::Presenter(wanted) => of_token(wanted, subject, strict, |claims| {
                Some(claims.presenter().into_iter().map(Cow::Borrowed).collect())
            }),
            Self::Claim(path, wanted) => of_token(wanted, subject, strict, |claims| {
                let names: Vec<&str> = path.iter().map(|name| &**name).collect();
                match claims.get(names.iter().copied()) {
                    None => Some(Vec::new()),
                    Some(_) => Some(claims.texts(&names)?.into_iter().map(Cow::Borrowed).collect()),
                }
            }),
            Self::ServerName(wanted) => texts(wanted, subject.server_name(), strict),
        }
    }
}

/// Tests what a token says. It may say several things at once, of which one has to match and none may. `None` stands for something
/// that no pattern can be compared with.
fn of_token<'s>(
    wanted: &Wanted<StringMatch>,
    subject: &Subject<'s>,
    strict: bool,
    said: impl Fn(&'s Claims) -> Option<Vec<Cow<'s, str>>>,
) -> bool {
    let Some(claims) = subject.claims() else { return strict };
    let values = match claims {
        None => Vec::new(),
        Some(claims) => match said(claims) {
            Some(values) => values,
            None => return strict,
        },
    };
    wanted.passes(|pattern| values.iter().any(|value| matches(pattern, value.as_bytes())))
}

fn texts(wanted: &Wanted<StringMatch>, values: Values<'_>, strict: bool) -> bool {
    match values {
        Values::Unknown => strict,
        Values::Absent => wanted.passes(|_| false),
        Values::One(value) => wanted.passes(|pattern| matches(pattern, value)),
        Values::Several(values) => {
            let mut readings = values.iter().map(|value| wanted.passes(|pattern| matches(pattern, value)));
            if strict { readings.any(|passes| passes) } else { readings.all(|passes| passes) }
        }
    }
}

fn matches(pattern: &StringMatch, value: &[u8]) -> bool {
    match pattern {
        StringMatch::Exact(want) => value == want.as_bytes(),
        StringMatch::Prefix(want) => value.starts_with(want.as_bytes()),
        StringMatch::Suffix(want) => value.ends_with(want.as_bytes()),
        StringMatch::Presence => !value.is_empty(),
    }
}

/// `*` matches anything, `*x` a suffix and `x*` a prefix; everything else is exact.
fn pattern(text: &str) -> StringMatch {
    match (text.strip_prefix('*'), text.strip_suffix('*')) {
        _ if text == "*" => StringMatch::Presence,
        (Some(suffix), _) => StringMatch::Suffix(suffix.into()),
        (_, Some(prefix)) => StringMatch::Prefix(prefix.into()),
        _ => StringMatch::Exact(text.into()),
    }
}

/// A pattern of hosts, which have no upper case, and whether it names a port.
fn host(text: &Name) -> (StringMatch, bool) {
    let text = text.to_ascii_lowercase();
    let with_port = text.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    // A dot at the end is no part of a request's host.
    let bare = text.strip_suffix('.').filter(|rest| !with_port && !["", "*"].contains(rest));
    let text = bare.unwrap_or(&text);
    (pattern(text), with_port)
}

/// An address, or a range of them.
fn block(text: &str) -> Option<IpNet> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(|address| address.to_canonical().into()));
    net.ok().map(|net| net.trunc())
}
