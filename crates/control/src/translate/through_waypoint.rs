//! What keeps connections from going around a waypoint: a policy at the pods behind it.
//!
//! Clients of the mesh send what is addressed to a service through its waypoint. Who addresses a pod itself, by its IP
//! address or by a headless service's name, or who is not in the mesh at all, would go around it, and so around all
//! rules that only the waypoint can hold. So a port to which a service with a waypoint leads takes connections of that
//! waypoint only.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Action, Authorization, Clause, Match, Name, PolicyName, Port, Rule, Scope, StringMatch, Transport};

use super::Options;
use super::waypoint::{Named, Required, principal};

/// The policy of a pod, if it needs one.
///
/// `services` are the ports of each of the pod's services, with the service's waypoint; `own` is the waypoint of what is addressed
/// to the pod itself.
pub(super) fn policy<'a>(
    options: &Options,
    namespace: &Name,
    services: impl Iterator<Item = (&'a [Port], Option<Required>)>,
    own: Option<&Required>,
) -> Option<Authorization> {
    let mut open = BTreeSet::new();
    let mut closed: BTreeMap<u16, BTreeSet<Named>> = BTreeMap::new();
    for (ports, waypoint) in services {
        for port in ports.iter().filter(|port| port.transport == Transport::Tcp && port.target_port != 0) {
            match &waypoint {
                Some(Required { gateway, bypass: false, .. }) => {
                    closed.entry(port.target_port).or_default().insert(gateway.clone());
                }
                // A service without a waypoint leads there, too, and its clients come directly.
                _ => drop(open.insert(port.target_port)),
            }
        }
    }
    closed.retain(|port, _| !open.contains(port));
    let mut groups: BTreeMap<BTreeSet<Named>, Vec<u16>> = BTreeMap::new();
    for (port, gateways) in closed {
        groups.entry(gateways).or_default().push(port);
    }
    let mut words = Vec::new();
    let mut rules = Vec::new();
    for (gateways, ports) in &groups {
        words.push(format!("{}_{}", joined(gateways), numbers(ports)));
        rules.push(rule(options, gateways, |it| it.destination_ports.clone_from(ports)));
    }
    if let Some(own) = own.filter(|own| !own.bypass) {
        // Whatever no service leads to is reached at the pod's own address only.
        let others: Vec<u16> = open.into_iter().chain(groups.into_values().flatten()).collect();
        let gateways = BTreeSet::from([own.gateway.clone()]);
        words.push(format!("{}_not_{}", joined(&gateways), numbers(&others)));
        rules.push(rule(options, &gateways, |it| it.not_destination_ports.clone_from(&others)));
    }
    if rules.is_empty() {
        return None;
    }
    let id = PolicyName::through_waypoint(namespace.clone(), &words.join("+"));
    let (scope, action) = (Scope::WorkloadSelector, Action::Deny);
    Some(Authorization { id, scope, action, rules, dry_run: false, not_understood: None })
}

/// Denies everybody but these waypoints.
fn rule(options: &Options, gateways: &BTreeSet<Named>, narrow: impl FnOnce(&mut Match)) -> Rule {
    let all = gateways.iter().map(|gateway| StringMatch::Exact(principal(options, gateway)));
    let mut others = Match { not_principals: all.collect(), ..Match::default() };
    narrow(&mut others);
    Rule { clauses: vec![Clause { matches: vec![others] }] }
}

fn joined(gateways: &BTreeSet<Named>) -> String {
    gateways.iter().map(|(namespace, name)| format!("{name}.{namespace}")).collect::<Vec<_>>().join("_")
}

fn numbers(ports: &[u16]) -> String {
    ports.iter().map(u16::to_string).collect::<Vec<_>>().join(".")
}
