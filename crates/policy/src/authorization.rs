//! May this connection reach this workload? Layer 4 authorisation as Istio's ambient data plane
//! evaluates it, except that doubt refuses: a policy that a workload names and that has not
//! arrived denies.

use std::cell::OnceCell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use leno_model::{Action, Authorization, Clause, Identity, Match, Mesh, Name, PolicyName, Rule, Workload};

use crate::understood::NotUnderstood;

/// What is known of a connection when it arrives.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// Whom the peer proved to be in the handshake; `None` for plaintext.
    pub source: Option<&'a Identity>,
    /// The peer's address on the TCP connection, never one it claims in a header.
    pub source_ip: IpAddr,
    /// The workload's own address and the port finally connected to.
    pub destination: SocketAddr,
}

/// The decision about one connection. Displays as its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What is enforced.
    pub verdict: Verdict,
    /// What policies that are not enforced yet would have done.
    pub dry_run: Vec<DryRun>,
}

impl Decision {
    /// Whether the connection may pass.
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allow(_))
    }
}

/// Pass or refuse, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Allow(AllowReason),
    /// It is refused.
    Deny(DenyReason),
}

/// Why a connection passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowReason {
    /// No ALLOW policy applies to the workload, and nothing denied.
    NoAllowPolicy,
    /// This ALLOW policy matched.
    Policy(PolicyName),
}

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DenyReason {
    /// A DENY policy matched.
    Policy {
        /// The policy.
        policy: PolicyName,
        /// Who was refused.
        peer: Peer,
    },
    /// ALLOW policies apply and none matched.
    NoAllowMatched {
        /// Namespace of the workload.
        namespace: Name,
        /// Name of the workload.
        workload: Name,
        /// The enforced ALLOW policies that were asked.
        checked: Vec<PolicyName>,
        /// Who was refused.
        peer: Peer,
    },
    /// The workload names a policy that this mesh doesn't hold. What it would say is not known,
    /// so nobody passes until it arrives.
    UnknownPolicy {
        /// The policy.
        policy: PolicyName,
        /// Namespace of the workload.
        namespace: Name,
        /// Name of the workload.
        workload: Name,
        /// Who was refused.
        peer: Peer,
    },
    /// A policy that applies to the workload was described in a way that was not understood.
    /// What it says is not known, so nobody passes.
    PolicyNotUnderstood {
        /// The policy.
        policy: PolicyName,
        /// What was not understood.
        reason: Name,
        /// Who was refused.
        peer: Peer,
    },
    /// The workload itself was described in a way that was not understood, so which policies
    /// apply to it is not known.
    NotUnderstood(NotUnderstood),
}

/// Who is at the other end, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer(pub Option<Identity>);

/// What an unenforced policy would have done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun {
    /// The policy.
    pub policy: PolicyName,
    /// Its effect, were it enforced.
    pub effect: DryRunEffect,
}

/// Effect of an unenforced policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRunEffect {
    /// A DENY policy that matches.
    WouldDeny,
    /// An ALLOW policy that matches.
    WouldAllow,
    /// An ALLOW policy that doesn't match, where no enforced one does either.
    WouldNotAllow,
}

/// One policy that was asked about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The policy.
    pub policy: PolicyName,
    /// What it does on a match; `None` if it is not known.
    pub action: Option<Action>,
    /// Whether the control plane has sent it, understood or not.
    pub arrived: bool,
    /// Whether it is told only.
    pub dry_run: bool,
    /// Whether it matched.
    pub matched: bool,
}

/// Decides about a connection to `destination`.
///
/// The order is Istio's: any matching DENY refuses; without an ALLOW policy the connection
/// passes; with some, one must match.
pub fn authorize(mesh: &Mesh, destination: &Workload, connection: &Connection<'_>) -> Decision {
    decide(mesh, destination, connection, |_, _, _| {})
}

/// [`authorize`], with every policy that was asked.
pub fn examine(mesh: &Mesh, destination: &Workload, connection: &Connection<'_>) -> (Decision, Vec<Checked>) {
    let mut checked = Vec::new();
    let decision = decide(mesh, destination, connection, |id, policy, matched| {
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

fn decide(
    mesh: &Mesh,
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
    for found in mesh.policies_for(destination) {
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
                // A workload may name a policy that its namespace has anyway.
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
        // After all that refuses whatever this one says: callers wait for it, and keep what they have
        // meanwhile.
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
    // An ALLOW policy has no say once a DENY has spoken.
    if denied.is_none() {
        dry_run.extend(allow_notes.into_iter().filter_map(|(id, matched)| match (matched, allowed) {
            (true, _) => Some(note(id, DryRunEffect::WouldAllow)),
            (false, None) => Some(note(id, DryRunEffect::WouldNotAllow)),
            (false, Some(_)) => None,
        }));
    }
    Decision { verdict, dry_run }
}

/// The values of a connection that policies compare.
struct Subject<'a> {
    identity: Option<&'a Identity>,
    // Most policies don't look at it, and it has to be put together.
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
        // A match without attributes is what is left of one that only had layer 7 conditions; it
        // must not turn into one that everybody satisfies.
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

/// One of `wanted` if there are any, none of `unwanted`.
fn holds<T>(wanted: &[T], unwanted: &[T], test: impl Fn(&T) -> bool) -> bool {
    (wanted.is_empty() || wanted.iter().any(&test)) && !unwanted.iter().any(&test)
}

impl DenyReason {
    /// Whether the same connection may pass later without anybody changing a policy.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::UnknownPolicy { .. })
    }

    /// The policy that decided, if it was one.
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

/// The policy's name and, if a PeerAuthentication is behind it, that: the user has never seen
/// the policy it is sent as.
pub(crate) struct Named<'a>(pub(crate) &'a PolicyName);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        if self.0.is_static_strict() {
            f.write_str(" (PeerAuthentication requires mTLS)")
        } else if let Some(name) = self.0.converted_from() {
            write!(f, " (PeerAuthentication {}/{name} requires mTLS)", self.0.namespace)
        } else {
            Ok(())
        }
    }
}

/// How many policies a sentence lists before it counts.
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
