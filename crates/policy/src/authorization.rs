//! May this connection reach this workload? Layer 4 authorisation as Istio's ambient data plane evaluates it, with one
//! difference: a policy that a workload names and that has not arrived denies.

use std::cell::OnceCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{Action, Authorization, Clause, Identity, Match, Mesh, Name, PolicyName, Rule, Scope, Workload};

use crate::understood::NotUnderstood;

/// The properties of an incoming connection that policies look at.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// The identity that the peer proved in the handshake; `None` for plaintext.
    pub source: Option<&'a Identity>,
    /// The peer's address on the TCP connection. Addresses that it claims in headers don't count.
    pub source_ip: IpAddr,
    /// The workload's own address, and the port that is finally connected to.
    pub destination: SocketAddr,
}

/// The decision about one connection. Displayed as its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The enforced verdict.
    pub verdict: Verdict,
    /// The effect that dry-run policies would have had.
    pub dry_run: Vec<DryRun>,
}

impl Decision {
    /// Whether the connection may pass.
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allow(_))
    }
}

/// Allowed or denied, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The connection is allowed.
    Allow(AllowReason),
    /// The connection is denied.
    Deny(DenyReason),
}

/// Why a connection is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowReason {
    /// No ALLOW policy applies to the workload, and no DENY policy matched.
    NoAllowPolicy,
    /// This ALLOW policy matched.
    Policy(PolicyName),
}

/// Why a connection is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DenyReason {
    /// A DENY policy matched.
    Policy {
        /// The policy.
        policy: PolicyName,
        /// The peer that was denied.
        peer: Peer,
    },
    /// ALLOW policies apply and none matched.
    NoAllowMatched {
        /// Namespace of the workload.
        namespace: Name,
        /// Name of the workload.
        workload: Name,
        /// The enforced ALLOW policies that were checked.
        checked: Vec<PolicyName>,
        /// The peer that was denied.
        peer: Peer,
    },
    /// The workload names a policy that this mesh does not hold. Its content is unknown, so nobody is allowed until it
    /// arrives.
    UnknownPolicy {
        /// The policy.
        policy: PolicyName,
        /// Namespace of the workload.
        namespace: Name,
        /// Name of the workload.
        workload: Name,
        /// The peer that was denied.
        peer: Peer,
    },
    /// A policy that applies to the workload was not understood. Its content is unknown, so nobody is allowed.
    PolicyNotUnderstood {
        /// The policy.
        policy: PolicyName,
        /// What was not understood.
        reason: Name,
        /// The peer that was denied.
        peer: Peer,
    },
    /// The workload itself was not understood, so it is unknown which policies apply to it.
    NotUnderstood(NotUnderstood),
}

/// The other end of a connection, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer(pub Option<Identity>);

/// The effect that a dry-run policy would have had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun {
    /// The policy.
    pub policy: PolicyName,
    /// The effect.
    pub effect: DryRunEffect,
}

/// The effect that a dry-run policy would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRunEffect {
    /// A DENY policy matches.
    WouldDeny,
    /// An ALLOW policy matches.
    WouldAllow,
    /// An ALLOW policy does not match, and no enforced one does either.
    WouldNotAllow,
}

/// One policy that was checked for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The policy.
    pub policy: PolicyName,
    /// Its action; `None` if it is unknown.
    pub action: Option<Action>,
    /// Whether the control plane has sent it, understood or not.
    pub arrived: bool,
    /// Whether it is only logged, not enforced.
    pub dry_run: bool,
    /// Whether it matched.
    pub matched: bool,
}

/// Decides whether a connection may reach `destination`.
///
/// The order is Istio's. If a DENY policy matches, the connection is denied. If no ALLOW policy applies, it is allowed.
/// Otherwise one ALLOW policy must match.
pub fn authorize(mesh: &Mesh, destination: &Workload, connection: &Connection<'_>) -> Decision {
    decide(mesh.policies_for(destination), destination, connection, |_, _, _| {})
}

/// As [`authorize`], for a proxy on its own behalf: only policies that select its workload by labels count. Those of its
/// namespace or of the mesh are about what it stands before.
pub fn authorize_selected(mesh: &Mesh, own: &Workload, connection: &Connection<'_>) -> Decision {
    let selecting = |found: &Result<&Arc<Authorization>, _>| {
        found.as_ref().map_or(true, |policy| policy.scope == Scope::WorkloadSelector)
    };
    decide(mesh.policies_for(own).filter(selecting), own, connection, |_, _, _| {})
}

/// As [`authorize`], and also lists every policy that was checked.
pub fn examine(mesh: &Mesh, destination: &Workload, connection: &Connection<'_>) -> (Decision, Vec<Checked>) {
    let mut checked = Vec::new();
    let decision = decide(mesh.policies_for(destination), destination, connection, |id, policy, matched| {
        checked.push(Checked {
            policy: id.clone(),
            action: policy.filter(|p| p.not_understood.is_none()).map(|p| p.action),
            arrived: policy.is_some(),
            dry_run: policy.is_some_and(|p| p.dry_run),
            matched,
        });
    });
    (decision, checked)
}

fn decide<'m>(
    policies: impl Iterator<Item = Result<&'m Arc<Authorization>, &'m PolicyName>>,
    destination: &Workload,
    connection: &Connection<'_>,
    mut asked: impl FnMut(&PolicyName, Option<&Authorization>, bool),
) -> Decision {
    if let Err(error) = NotUnderstood::workload(destination) {
        return Decision { verdict: Verdict::Deny(DenyReason::NotUnderstood(error)), dry_run: Vec::new() };
    }
    let subject = Subject::new(connection);
    let mut denied = None;
    let mut unknown = None;
    let mut not_understood = None;
    let mut allowed = None;
    let mut refusing: Vec<&PolicyName> = Vec::new();
    let mut would_deny = Vec::new();
    let mut allow_notes = Vec::new();
    for found in policies {
        let policy = match found {
            Ok(policy) => policy,
            Err(id) => {
                asked(id, None, false);
                unknown.get_or_insert(id);
                continue;
            }
        };
        if let Some(reason) = &policy.not_understood {
            asked(&policy.id, Some(policy), false);
            if !policy.dry_run {
                not_understood.get_or_insert((&policy.id, reason));
            }
            continue;
        }
        let matched = subject.matches(policy);
        asked(&policy.id, Some(policy), matched);
        match (policy.action, policy.dry_run, matched) {
            (Action::Deny, false, true) => {
                denied.get_or_insert(&policy.id);
            }
            (Action::Deny, true, true) => would_deny.push(&policy.id),
            (Action::Deny, _, false) => {}
            (Action::Allow, false, true) => {
                allowed.get_or_insert(&policy.id);
            }
            (Action::Allow, false, false) => {
                // A workload may name a policy that applies to it anyway, by its namespace.
                if !refusing.contains(&&policy.id) {
                    refusing.push(&policy.id);
                }
            }
            (Action::Allow, true, _) => allow_notes.push((&policy.id, matched)),
        }
    }
    let peer = || Peer(connection.source.cloned());
    let verdict = if let Some(policy) = denied {
        Verdict::Deny(DenyReason::Policy { policy: policy.clone(), peer: peer() })
    } else if let Some((policy, reason)) = not_understood {
        Verdict::Deny(DenyReason::PolicyNotUnderstood { policy: policy.clone(), reason: reason.clone(), peer: peer() })
    } else if let Some(policy) = unknown {
        // This reason comes last: callers wait for the policy to arrive, and keep open connections meanwhile. They must
        // not do that if another policy denies.
        Verdict::Deny(DenyReason::UnknownPolicy {
            policy: policy.clone(),
            namespace: destination.namespace.clone(),
            workload: destination.name.clone(),
            peer: peer(),
        })
    } else if let Some(policy) = allowed {
        Verdict::Allow(AllowReason::Policy(policy.clone()))
    } else if refusing.is_empty() {
        Verdict::Allow(AllowReason::NoAllowPolicy)
    } else {
        Verdict::Deny(DenyReason::NoAllowMatched {
            namespace: destination.namespace.clone(),
            workload: destination.name.clone(),
            checked: refusing.into_iter().cloned().collect(),
            peer: peer(),
        })
    };
    let note = |policy: &PolicyName, effect| DryRun { policy: policy.clone(), effect };
    let mut dry_run: Vec<DryRun> = would_deny.into_iter().map(|id| note(id, DryRunEffect::WouldDeny)).collect();
    // After a DENY, ALLOW policies don't matter.
    if denied.is_none() {
        dry_run.extend(allow_notes.into_iter().filter_map(|(id, matched)| match (matched, allowed) {
            (true, _) => Some(note(id, DryRunEffect::WouldAllow)),
            (false, None) => Some(note(id, DryRunEffect::WouldNotAllow)),
            (false, Some(_)) => None,
        }));
    }
    Decision { verdict, dry_run }
}

/// The properties of a connection that policies compare.
struct Subject<'a> {
    identity: Option<&'a Identity>,
    // Computed on demand: building it costs an allocation, and most policies don't compare it.
    principal: OnceCell<String>,
    source_ip: IpAddr,
    destination: SocketAddr,
}

impl<'a> Subject<'a> {
    fn new(connection: &Connection<'a>) -> Self {
        let destination = connection.destination;
        Self {
            identity: connection.source,
            principal: OnceCell::new(),
            source_ip: connection.source_ip.to_canonical(),
            destination: SocketAddr::new(destination.ip().to_canonical(), destination.port()),
        }
    }

    fn matches(&self, policy: &Authorization) -> bool {
        policy.rules.iter().any(|rule| self.satisfies_rule(rule))
    }

    fn satisfies_rule(&self, rule: &Rule) -> bool {
        rule.clauses.iter().all(|clause| self.satisfies_clause(clause))
    }

    fn satisfies_clause(&self, clause: &Clause) -> bool {
        // A match without attributes is the rest of one that had only layer 7 conditions. It must not match everybody.
        clause.matches.is_empty() || clause.matches.iter().any(|m| !m.is_empty() && self.satisfies(m))
    }

    fn satisfies(&self, m: &Match) -> bool {
        let namespace = self.identity.map_or("", |id| id.namespace());
        let (source, destination, port) = (self.source_ip, self.destination.ip(), self.destination.port());
        holds(&m.namespaces, &m.not_namespaces, |s| s.matches(namespace))
            && holds(&m.principals, &m.not_principals, |s| self.principal().is_some_and(|p| s.matches(p)))
            && holds(&m.service_accounts, &m.not_service_accounts, |s| {
                self.identity
                    .is_some_and(|id| *id.namespace() == s.namespace && *id.service_account() == s.service_account)
            })
            && holds(&m.source_ips, &m.not_source_ips, |net| net.contains(&source))
            && holds(&m.destination_ips, &m.not_destination_ips, |net| net.contains(&destination))
            && holds(&m.destination_ports, &m.not_destination_ports, |want| *want == port)
    }

    fn principal(&self) -> Option<&str> {
        self.identity.map(|id| self.principal.get_or_init(|| id.principal()).as_str())
    }
}

/// Whether the value passes: it must be one of `wanted`, unless that is empty, and none of `unwanted`.
fn holds<T>(wanted: &[T], unwanted: &[T], test: impl Fn(&T) -> bool) -> bool {
    (wanted.is_empty() || wanted.iter().any(&test)) && !unwanted.iter().any(&test)
}

impl DenyReason {
    /// Whether the same connection may be allowed later without a change of policies.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::UnknownPolicy { .. })
    }

    /// The policy that decided; `None` if the decision has another reason.
    pub fn policy(&self) -> Option<&PolicyName> {
        match self {
            Self::Policy { policy, .. }
            | Self::UnknownPolicy { policy, .. }
            | Self::PolicyNotUnderstood { policy, .. } => Some(policy),
            Self::NoAllowMatched { .. } | Self::NotUnderstood(_) => None,
        }
    }
}

impl std::error::Error for DenyReason {}

/// A policy's name for a user. If it stands for a PeerAuthentication, that is named, because the user has never seen
/// the policy's own name.
pub(crate) struct Named<'a>(pub(crate) &'a PolicyName);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        if self.0.is_static_strict() {
            f.write_str(" (PeerAuthentication requires mTLS)")
        } else if let Some(name) = self.0.converted_from() {
            write!(f, " (PeerAuthentication {}/{name} requires mTLS)", self.0.namespace)
        } else if self.0.is_through_waypoint() {
            f.write_str(
                " (its waypoint must be passed: use the Service's name or ClusterIP, not the pod's own address; clients outside \
                 of the mesh are never sent there)",
            )
        } else if let Some(service) = self.0.stands_in_for() {
            let namespace = &self.0.namespace;
            write!(
                f,
                " (stands in for the AuthorizationPolicies of Service {namespace}/{service}, which need a waypoint: label the \
                 Service istio.io/use-waypoint)"
            )
        } else {
            Ok(())
        }
    }
}

/// A message lists at most this many policies, then says how many more there are.
const LISTED: usize = 5;

impl fmt::Display for DenyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { policy, peer } => write!(f, "denied by policy {}: {peer}", Named(policy)),
            Self::NoAllowMatched { namespace, workload, checked, peer } => {
                write!(f, "not allowed: no ALLOW policy of {namespace}/{workload} matched (checked ")?;
                for (index, policy) in checked.iter().take(LISTED).enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{policy}")?;
                }
                if checked.len() > LISTED {
                    write!(f, " and {} more", checked.len() - LISTED)?;
                }
                write!(f, "): {peer}")
            }
            Self::UnknownPolicy { policy, namespace, workload, peer } => write!(
                f,
                "denied: policy {} applies to {namespace}/{workload} but has not arrived from the control plane: {peer}",
                Named(policy)
            ),
            Self::PolicyNotUnderstood { policy, reason, peer } => write!(
                f,
                "denied: the control plane describes policy {} in a way this proxy does not understand ({reason}), so it \
                 lets nobody in; if the control plane is newer than this proxy, upgrade the proxy: {peer}",
                Named(policy)
            ),
            Self::NotUnderstood(error) => write!(f, "denied: {error}"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(id) => {
                write!(f, "peer is {}/ns/{}/sa/{}", id.trust_domain(), id.namespace(), id.service_account())
            }
            None => f.write_str("peer has no identity (plaintext)"),
        }
    }
}

impl fmt::Display for AllowReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAllowPolicy => f.write_str("allowed: no ALLOW policy applies and no DENY policy matched"),
            Self::Policy(policy) => write!(f, "allowed by policy {policy}"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow(reason) => reason.fmt(f),
            Self::Deny(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdict.fmt(f)
    }
}

impl fmt::Display for DryRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = match self.effect {
            DryRunEffect::WouldDeny => "would deny",
            DryRunEffect::WouldAllow => "would allow",
            DryRunEffect::WouldNotAllow => "would not allow",
        };
        write!(f, "dry-run policy {} {effect} this connection", Named(&self.policy))
    }
}

#[cfg(test)]
#[path = "authorization_tests.rs"]
mod tests;
