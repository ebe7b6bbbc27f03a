//! Translates PeerAuthentication into policies that deny connections without a mesh identity.
//!
//! Proxies know no modes. `STRICT` is a DENY policy for peers without a principal, named by every workload that it
//! applies to. The other modes are the absence of that policy.

use leno_model::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, StringMatch};

use super::Options;
use super::index::Known;
use leno_objects::{MutualTlsMode, ObjectMeta, PeerAuthentication, Pod, selects};

/// The name of the `STRICT` policy.
pub(super) fn static_strict_name(options: &Options) -> PolicyName {
    PolicyName::static_strict(options.root_namespace.clone())
}

/// The `STRICT` policy: it denies peers without an identity.
pub(super) fn static_strict(options: &Options) -> Authorization {
    deny(static_strict_name(options), Match::default())
}

/// The name of the policy made from a PeerAuthentication with modes for single ports.
pub(super) fn converted_name(namespace: &str, name: &str) -> PolicyName {
    PolicyName::converted(namespace, name)
}

fn deny(id: PolicyName, also: Match) -> Authorization {
    let matches = Match { not_principals: vec![StringMatch::Presence], ..also };
    let rules = vec![Rule { clauses: vec![Clause { matches: vec![matches] }] }];
    Authorization {
        id,
        scope: Scope::WorkloadSelector,
        action: Action::Deny,
        rules,
        dry_run: false,
        not_understood: None,
    }
}

/// Of several at one level, the oldest applies; of equally old ones, the first by name.
fn oldest<'a>(peers: impl Iterator<Item = &'a PeerAuthentication>) -> Option<&'a PeerAuthentication> {
    peers.min_by_key(|peer| (peer.metadata.creation_timestamp, &peer.metadata.name))
}

/// The mode for all ports. If the object was not understood, the strictest mode.
fn mode(peer: &PeerAuthentication) -> MutualTlsMode {
    if peer.not_understood.is_empty() { peer.spec.mtls.mode } else { MutualTlsMode::Strict }
}

/// The warning for its author.
pub(super) fn warning(peer: &PeerAuthentication) -> Option<String> {
    let missing = peer.not_understood.join("; ");
    (!missing.is_empty())
        .then(|| format!("not understood by this version of Leno, so it counts as STRICT on every port: {missing}"))
}

fn is_strict(mode: MutualTlsMode, inherited: bool) -> bool {
    match mode {
        MutualTlsMode::Unset => inherited,
        MutualTlsMode::Strict => true,
        MutualTlsMode::Permissive | MutualTlsMode::Disable => false,
    }
}

/// All PeerAuthentications.
#[derive(Clone, Copy)]
pub(super) struct Peers<'a>(pub(super) Known<'a>);

impl Peers<'_> {
    /// The mode of those workloads of a namespace that no selector matches.
    fn namespace_mode(self, namespace: &str) -> MutualTlsMode {
        let wide = |namespace: &str| {
            let names = self.0.index.wide_peers(namespace);
            oldest(names.filter_map(|name| PeerAuthentication::get(self.0.store, namespace, name)))
                .map(mode)
                .filter(|mode| *mode != MutualTlsMode::Unset)
        };
        wide(namespace).or_else(|| wide(&self.0.options.root_namespace)).unwrap_or(MutualTlsMode::Permissive)
    }

    /// The policy made from a PeerAuthentication whose ports have different modes; `None` if all have the same mode.
    pub(super) fn converted(self, peer: &PeerAuthentication) -> Option<Authorization> {
        peer.selected().filter(|_| peer.not_understood.is_empty())?;
        let namespace = &peer.metadata.namespace;
        let inherited = self.namespace_mode(namespace) == MutualTlsMode::Strict;
        let base = is_strict(mode(peer), inherited);
        let exceptions = peer.spec.port_level_mtls.iter().filter(|(_, mtls)| is_strict(mtls.mode, base) != base);
        let ports: Vec<u16> = exceptions.map(|(port, _)| port.0).collect();
        if ports.is_empty() {
            return None;
        }
        let also = if base {
            Match { not_destination_ports: ports, ..Match::default() }
        } else {
            Match { destination_ports: ports, ..Match::default() }
        };
        Some(deny(converted_name(namespace, &peer.metadata.name), also))
    }

    /// The policy through which PeerAuthentications apply to a pod; `None` if there is none.
    pub(super) fn policy_for(self, pod: &Pod) -> Option<PolicyName> {
        let ObjectMeta { namespace, labels, .. } = &pod.metadata;
        let candidates = self.0.index.peers_for(namespace, labels);
        let selecting = candidates
            .iter()
            .filter_map(|name| PeerAuthentication::get(self.0.store, namespace, name))
            .filter(|peer| peer.selected().is_some_and(|wanted| selects(wanted, labels)));
        let (own, mode) = match oldest(selecting) {
            Some(peer) => (self.converted(peer), mode(peer)),
            None => (None, MutualTlsMode::Unset),
        };
        match own {
            Some(policy) => Some(policy.id),
            None => {
                let inherited = self.namespace_mode(namespace) == MutualTlsMode::Strict;
                is_strict(mode, inherited).then(|| static_strict_name(self.0.options))
            }
        }
    }
}
