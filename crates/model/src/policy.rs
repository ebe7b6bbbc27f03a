//! Authorisation policies in the form that the data plane evaluates (`istio.security.Authorization`).
//!
//! A policy is a disjunction of rules, a rule a conjunction of clauses, a clause a disjunction
//! of matches, a match a conjunction of attributes. What an empty list means at each level is
//! part of the protocol (§6.3) and decided in the `policy` crate.

use std::fmt;

use ipnet::IpNet;

use crate::Name;

/// `namespace/name` of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyName {
    /// Namespace. For a [`Scope::Global`] policy, the root namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
}

/// Istio's name for the policy that stands for a PeerAuthentication with mode `STRICT`. It contains `_`, which no
/// user's policy may.
const STATIC_STRICT: &str = "istio_converted_static_strict";
/// Prefix of the policy names that stand for a PeerAuthentication with modes for single ports.
const CONVERTED: &str = "converted_peer_authentication_";
/// Prefix of the policy names that keep connections from going around a waypoint.
const THROUGH_WAYPOINT: &str = "through_waypoint_";
/// Prefix of the policy names that stand in for policies about requests where there is no waypoint.
const WITHOUT_WAYPOINT: &str = "without_waypoint_";
/// Prefix of the policy names that stand for RequestAuthentications.
const AUTHENTICATION: &str = "request_authentication_";

impl PolicyName {
    /// The name under which Istio's control plane sends the policy "mutual TLS is required".
    pub fn static_strict(root_namespace: Name) -> Self {
        Self { namespace: root_namespace, name: STATIC_STRICT.into() }
    }

    /// The name under which Istio's control plane sends a PeerAuthentication with modes for single ports.
    pub fn converted(namespace: &str, peer_authentication: &str) -> Self {
        Self { namespace: namespace.into(), name: format!("{CONVERTED}{peer_authentication}").into() }
    }

    /// Whether this is the policy "mutual TLS is required".
    pub fn is_static_strict(&self) -> bool {
        &*self.name == STATIC_STRICT
    }

    /// The name of a policy that keeps connections from going around a waypoint. `what` says which waypoint and which
    /// ports; equal words are equal policies.
    pub fn through_waypoint(namespace: Name, what: &str) -> Self {
        Self { namespace, name: format!("{THROUGH_WAYPOINT}{what}").into() }
    }

    /// Whether this policy keeps connections from going around a waypoint.
    pub fn is_through_waypoint(&self) -> bool {
        self.name.starts_with(THROUGH_WAYPOINT)
    }

    /// The name of the policy that a RequestAuthentication is.
    pub fn authentication(namespace: Name, name: &str) -> Self {
        Self { namespace, name: format!("{AUTHENTICATION}{name}").into() }
    }

    /// The name of the RequestAuthentication that this policy is; `None` for other policies.
    pub fn authentication_from(&self) -> Option<&str> {
        self.name.strip_prefix(AUTHENTICATION)
    }

    /// The name of what stands in, at a service's pods, for the service's policies about requests while it has no waypoint.
    /// `ports` says which ports of the pods; for one service, equal words are equal policies.
    pub fn without_waypoint(namespace: Name, service: &str, ports: &str) -> Self {
        Self { namespace, name: format!("{WITHOUT_WAYPOINT}{service}_{ports}").into() }
    }

    /// The name of the service for whose policies about requests this policy stands in; `None` for other policies.
    pub fn stands_in_for(&self) -> Option<&str> {
        self.name.strip_prefix(WITHOUT_WAYPOINT)?.split('_').next()
    }

    /// The name of the PeerAuthentication that this policy stands for; `None` for other policies and for
    /// [`PolicyName::static_strict`].
    pub fn converted_from(&self) -> Option<&str> {
        self.name.strip_prefix(CONVERTED)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which workloads a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All workloads.
    Global,
    /// The workloads of the policy's namespace.
    Namespace,
    /// The workloads that name it in `authorization_policies`.
    WorkloadSelector,
}

/// What a match does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Allows the connection. Where an ALLOW policy applies, a connection that none of them matches is refused.
    Allow,
    /// Refuses the connection.
    Deny,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization {
    /// Key.
    pub id: PolicyName,
    /// Which workloads it applies to.
    pub scope: Scope,
    /// What a match does.
    pub action: Action,
    /// Alternatives: the policy matches if one of its rules does. An empty list never matches.
    pub rules: Vec<Rule>,
    /// Whether a match is only logged, not enforced.
    pub dry_run: bool,
    /// Why the control plane's description of the policy was not understood; `None` if it was. Such a policy lets
    /// nobody in wherever it applies.
    pub not_understood: Option<Name>,
}

/// A rule matches if all of its clauses do. An empty list matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Clauses.
    pub clauses: Vec<Clause>,
}

/// A clause matches if one of its matches does. An empty list matches; a list that holds only empty matches does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clause {
    /// Matches.
    pub matches: Vec<Match>,
}

/// All attributes that are set must hold: for `x`, one of its values must match; for `not_x`, none may.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names are the attributes of istio.security.Match")]
pub struct Match {
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub source_ips: Vec<IpNet>,
    pub not_source_ips: Vec<IpNet>,
    pub destination_ips: Vec<IpNet>,
    pub not_destination_ips: Vec<IpNet>,
    pub destination_ports: Vec<u16>,
    pub not_destination_ports: Vec<u16>,
    pub service_accounts: Vec<ServiceAccountMatch>,
    pub not_service_accounts: Vec<ServiceAccountMatch>,
}

impl Match {
    /// Whether no attribute is set. Such a match is ignored in its clause.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A namespace and a service account. The trust domain is not compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceAccountMatch {
    /// Namespace.
    pub namespace: Name,
    /// Service account.
    pub service_account: Name,
}

/// A case-sensitive test of one string.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StringMatch {
    /// Equal.
    Exact(Name),
    /// Starts with.
    Prefix(Name),
    /// Ends with.
    Suffix(Name),
    /// Not empty.
    Presence,
}

impl StringMatch {
    /// Whether `value` passes.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(want) => value == &**want,
            Self::Prefix(want) => value.starts_with(&**want),
            Self::Suffix(want) => value.ends_with(&**want),
            Self::Presence => !value.is_empty(),
        }
    }
}

impl fmt::Display for StringMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(want) => f.write_str(want),
            Self::Prefix(want) => write!(f, "{want}*"),
            Self::Suffix(want) => write!(f, "*{want}"),
            Self::Presence => f.write_str("*"),
        }
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
