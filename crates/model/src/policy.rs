//! Authorisation policy in the form the data plane evaluates (`istio.security.Authorization`).
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
    /// Namespace; for a [`Scope::Global`] policy the root namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
}

/// Istio's name for the policy that is a PeerAuthentication's `STRICT`. No user's policy can have it: `_` is not allowed there.
const STATIC_STRICT: &str = "istio_converted_static_strict";
/// Start of the name of a policy that a PeerAuthentication with modes per port becomes.
const CONVERTED: &str = "converted_peer_authentication_";

impl PolicyName {
    /// Under which Istio's control plane sends that mutual TLS is required.
    pub fn static_strict(root_namespace: Name) -> Self {
        Self { namespace: root_namespace, name: STATIC_STRICT.into() }
    }

    /// Under which it sends a PeerAuthentication with modes per port.
    pub fn converted(namespace: &str, peer_authentication: &str) -> Self {
        Self { namespace: namespace.into(), name: format!("{CONVERTED}{peer_authentication}").into() }
    }

    /// Whether it says that mutual TLS is required, and nothing else.
    pub fn is_static_strict(&self) -> bool {
        &*self.name == STATIC_STRICT
    }

    /// The PeerAuthentication that became this policy, if one with modes per port did.
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
    /// All.
    Global,
    /// Those of its namespace.
    Namespace,
    /// Those that name it in `authorization_policies`.
    WorkloadSelector,
}

/// What a match does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Lets the connection pass; the presence of any such policy refuses what matches none.
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
    /// Any may match; an empty list never does.
    pub rules: Vec<Rule>,
    /// Told, not enforced.
    pub dry_run: bool,
    /// Set if the control plane described it in a way that was not understood: why. Whatever it
    /// says, nobody gets in where it applies.
    pub not_understood: Option<Name>,
}

/// All clauses must hold; an empty list holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Clauses.
    pub clauses: Vec<Clause>,
}

/// One match must hold; an empty list holds, a list of only empty matches does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clause {
    /// Matches.
    pub matches: Vec<Match>,
}

/// Every populated attribute must hold: of `x` one value must match, of `not_x` none.
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
    /// Whether no attribute is populated. Such a match contributes nothing to its clause.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A namespace and service account, trust domain ignored.
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
