//! A policy about requests, as a waypoint enforces it: one for each AuthorizationPolicy or RequestAuthentication that is attached
//! to a service or to a waypoint.
//!
//! A policy is a disjunction of rules, a rule a conjunction of clauses, a clause a disjunction of alternatives, an
//! alternative a conjunction of tests. What the tests mean is decided in the `policy` crate.

use std::fmt;
use std::sync::Arc;

use crate::http::{Authorizer, TokenRule};
use crate::{Name, PolicyName, ServiceName};

/// A policy about requests, and about connections that are passed on unread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Key.
    pub id: PolicyName,
    /// What a match does.
    pub action: PolicyAction,
    /// What it is attached to.
    pub targets: Vec<PolicyTarget>,
    /// Alternatives: the policy matches if one of its rules does. An empty list never matches.
    pub rules: Vec<PolicyRule>,
    /// Whether a match is only logged, not enforced.
    pub dry_run: bool,
    /// With [`PolicyAction::Authenticate`]: whose tokens are accepted.
    pub tokens: Vec<TokenRule>,
    /// With [`PolicyAction::Custom`]: who is asked.
    pub authorizer: Option<Arc<Authorizer>>,
    /// With [`PolicyAction::Deny`], if the object says something else: why what matches is denied.
    pub denied_because: Option<Name>,
    /// Why the policy can't be enforced to the letter; `None` if it can. Such a policy lets nobody in.
    pub not_understood: Option<Name>,
}

impl Policy {
    /// One that is attached to nothing yet, and matches nothing.
    pub fn new(id: PolicyName, action: PolicyAction) -> Self {
        Self {
            id,
            action,
            targets: Vec::new(),
            rules: Vec::new(),
            dry_run: false,
            tokens: Vec::new(),
            authorizer: None,
            denied_because: None,
            not_understood: None,
        }
    }
}

/// What a match does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyAction {
    /// Allows. Where an ALLOW policy applies, what none of them matches is refused.
    Allow,
    /// Refuses.
    Deny,
    /// Is logged.
    Audit,
    /// Refuses requests with a token that none of the policy's rules for tokens accepts. It has no other rules.
    Authenticate,
    /// Has the policy's authoriser asked. What it does not let pass is refused.
    Custom,
}

/// What a policy is attached to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyTarget {
    /// A service.
    Service(ServiceName),
    /// Everything that passes the waypoint whose own service this is.
    Waypoint(ServiceName),
    /// Everything, because what it is attached to was not understood.
    All,
}

/// A rule matches if all of its clauses do. An empty list matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyRule {
    /// Clauses.
    pub clauses: Vec<PolicyClause>,
}

/// A clause matches if all tests of one of its alternatives pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyClause {
    /// Alternatives, each a list of tests.
    pub alternatives: Vec<Vec<AttributeTest>>,
}

/// A test of one attribute: one of `values` must match unless there are none, and none of `not_values` may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeTest {
    /// The attribute.
    pub attribute: Attribute,
    /// Patterns, as Istio writes them.
    pub values: Vec<Name>,
    /// Patterns, as Istio writes them.
    pub not_values: Vec<Name>,
}

/// What a policy can ask about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// The caller's identity, without `spiffe://`.
    Principal,
    /// The namespace of the caller's identity.
    Namespace,
    /// `namespace/account` of the caller's identity.
    ServiceAccount,
    /// The address that the connection comes from.
    SourceIp,
    /// The address of the first client, before proxies.
    RemoteIp,
    /// The address that the connection was asked for.
    DestinationIp,
    /// The port of the service.
    DestinationPort,
    /// The host that the request names.
    Host,
    /// The request's method.
    Method,
    /// The request's path, without its query.
    Path,
    /// A header of the request.
    Header(Name),
    /// The server name in the TLS handshake that passes.
    Sni,
    /// `issuer/subject` of the request's token.
    RequestPrincipal,
    /// Audiences of the request's token.
    Audience,
    /// Authorised party of the request's token.
    Presenter,
    /// A claim of the request's token, by the names that lead to it.
    Claim(Vec<Name>),
}

impl fmt::Display for Attribute {
    /// As a condition of a policy names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Principal => "source.principal",
            Self::Namespace => "source.namespace",
            Self::ServiceAccount => "source.serviceAccount",
            Self::SourceIp => "source.ip",
            Self::RemoteIp => "remote.ip",
            Self::DestinationIp => "destination.ip",
            Self::DestinationPort => "destination.port",
            Self::Host => "hosts",
            Self::Method => "methods",
            Self::Path => "paths",
            Self::Sni => "connection.sni",
            Self::RequestPrincipal => "request.auth.principal",
            Self::Audience => "request.auth.audiences",
            Self::Presenter => "request.auth.presenter",
            Self::Header(name) => return write!(f, "request.headers[{name}]"),
            Self::Claim(path) => {
                f.write_str("request.auth.claims")?;
                return path.iter().try_for_each(|name| write!(f, "[{name}]"));
            }
        })
    }
}
