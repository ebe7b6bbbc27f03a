//! What stands in for policies about requests where no waypoint enforces them: a policy at the pods of the service that they
//! are attached to.
//!
//! A node proxy sees connections, not requests. So the stand-in is the stricter reading of each rule: what a DENY rule says of
//! requests is taken to be so, and what an ALLOW rule says of them is taken not to be so. It is one DENY policy, also for ALLOW
//! policies: it refuses what none of them allows. An ALLOW policy at the pods would add to what other policies allow there,
//! while what passes a waypoint must be allowed by the policies of both.
//!
//! It is about the ports to which the service leads. What another service leads to the same port is judged alike, because
//! there a connection does not say which service it was meant for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use leno_model::http::{Attribute, AttributeTest, Policy, PolicyAction, PolicyClause, PolicyRule};
use leno_model::{
    Action, Authorization, Clause, Match, Name, PolicyName, Port, Rule, Scope, ServiceAccountMatch, StringMatch,
    Transport,
};

use super::authorization::pattern;

/// A stand-in has at most this many rules for what the ALLOW policies of a port do not allow. Rules of theirs with which it
/// would have more allow nothing.
const MOST_RULES: usize = 64;

/// The ports of a pod to which a service leads.
pub(super) enum Ports {
    /// Each with the service's ports that lead there, in order.
    These(BTreeMap<u16, Vec<u16>>),
    /// A service without ports has a name only, with which its clients reach any port.
    Any,
}

impl Ports {
    /// Those of a service at one pod. `of_pod` are the pod's ports for each of the service's.
    pub(super) fn new(service_has_ports: bool, of_pod: &[Port]) -> Self {
        let tcp = of_pod.iter().filter(|port| port.transport == Transport::Tcp);
        if !service_has_ports || tcp.clone().any(|port| port.target_port == 0) {
            return Self::Any;
        }
        let mut out: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for port in tcp {
            let leading = out.entry(port.target_port).or_default();
            leading.push(port.service_port);
            leading.sort_unstable();
        }
        Self::These(out)
    }

    /// The name of the stand-in for a service's policies. Pods with equal names have equal stand-ins.
    pub(super) fn name(&self, namespace: &Name, service: &str) -> PolicyName {
        let ports = match self {
            Self::Any => "any".to_owned(),
            Self::These(ports) => {
                let one = |(target, leading): (&u16, &Vec<u16>)| {
                    leading.iter().map(|port| format!("{port}-{target}")).collect::<Vec<_>>().join(".")
                };
                ports.iter().map(one).collect::<Vec<_>>().join(".")
            }
        };
        PolicyName::without_waypoint(namespace.clone(), service, &ports)
    }
}

/// What stands in for policies at a pod; `None` if it would refuse nothing.
pub(super) fn stand_in<'p>(
    id: PolicyName,
    ports: &Ports,
    policies: impl Iterator<Item = &'p Policy>,
) -> Option<Authorization> {
    let enforced: Vec<&Policy> =
        policies.filter(|policy| !policy.dry_run && is_about_connections(policy.action)).collect();
    let mut rules = Vec::new();
    match ports {
        Ports::Any => rules.extend(refused(&enforced, None).into_iter().map(|clauses| Rule { clauses })),
        Ports::These(ports) => {
            let mut alike: Vec<(Vec<Vec<Clause>>, Vec<u16>)> = Vec::new();
            for (target, leading) in ports {
                let refused = refused(&enforced, Some(leading));
                match alike.iter_mut().find(|(known, _)| *known == refused) {
                    Some((_, targets)) => targets.push(*target),
                    None => alike.push((refused, vec![*target])),
                }
            }
            for (refused, targets) in alike {
                let there = Match { destination_ports: targets, ..Match::default() };
                let there = Clause { matches: vec![there] };
                rules.extend(
                    refused
                        .into_iter()
                        .map(|clauses| Rule { clauses: std::iter::once(there.clone()).chain(clauses).collect() }),
                );
            }
        }
    }
    let (scope, action) = (Scope::WorkloadSelector, Action::Deny);
    (!rules.is_empty()).then_some(Authorization { id, scope, action, rules, dry_run: false, not_understood: None })
}

/// Whether something of such a policy can be said of a connection. A token comes with a request, and one without any passes.
fn is_about_connections(action: PolicyAction) -> bool {
    matches!(action, PolicyAction::Allow | PolicyAction::Deny | PolicyAction::Custom)
}

/// What is refused at a port to which these ports of the service lead (`None`: which port is not known): alternatives, each
/// of which is a list of clauses that all have to match.
fn refused(policies: &[&Policy], leading: Option<&[u16]>) -> Vec<Vec<Clause>> {
    if policies.iter().any(|policy| policy.not_understood.is_some()) {
        return vec![Vec::new()];
    }
    let of = |action| policies.iter().filter(move |policy| policy.action == action);
    // Nobody asks an authoriser there, so what it would be asked about is refused.
    let denying = of(PolicyAction::Deny).chain(of(PolicyAction::Custom)).flat_map(|policy| &policy.rules);
    let mut out: Vec<Vec<Clause>> = denying
        .filter_map(|rule| clauses(rule, leading, true))
        .map(|clauses| clauses.into_iter().map(matching).collect())
        .collect();
    if of(PolicyAction::Allow).next().is_some() {
        out.extend(not_allowed(of(PolicyAction::Allow).flat_map(|policy| &policy.rules), leading));
    }
    // One that refuses everybody says all.
    match out.iter().position(Vec::is_empty) {
        Some(_) => vec![Vec::new()],
        None => out,
    }
}

/// What none of these rules allows. A rule does not match if one of its clauses does not, so each rule multiplies the
/// alternatives by its clauses. Most rules have one, who may connect.
fn not_allowed<'p>(rules: impl Iterator<Item = &'p PolicyRule>, leading: Option<&[u16]>) -> Vec<Vec<Clause>> {
    let mut out = vec![Vec::new()];
    for rule in rules {
        let Some(clauses) = clauses(rule, leading, false) else { continue };
        if clauses.is_empty() {
            // It allows everybody.
            return Vec::new();
        }
        if out.len() * clauses.len() > MOST_RULES {
            continue;
        }
        let with = |before: &Vec<Clause>| {
            let each = clauses.iter().map(|clause| before.iter().cloned().chain(not_matching(clause)).collect());
            each.collect::<Vec<Vec<Clause>>>()
        };
        out = out.iter().flat_map(with).collect();
    }
    out
}

/// A clause as far as it is about connections: alternatives, each a list of tests of one attribute each.
type Tests = Vec<Vec<Match>>;

/// The clauses of a rule as far as they are about connections; `None` if the rule never matches.
fn clauses(rule: &PolicyRule, leading: Option<&[u16]>, strict: bool) -> Option<Vec<Tests>> {
    let read = rule.clauses.iter().map(|clause| tests(clause, leading, strict));
    let mut out = Vec::new();
    for tests in read.flatten() {
        if tests.is_empty() {
            return None;
        }
        out.push(tests);
    }
    Some(out)
}

/// `None` if the clause always matches; without alternatives it never does.
fn tests(clause: &PolicyClause, leading: Option<&[u16]>, strict: bool) -> Option<Tests> {
    if clause.alternatives.is_empty() && strict {
        return None;
    }
    let mut out = Vec::new();
    'alternatives: for alternative in &clause.alternatives {
        let mut tests = Vec::new();
        for test in alternative {
            match read(test, leading, strict) {
                Reading::Passes => {}
                Reading::Fails => continue 'alternatives,
                Reading::Asks(test) => tests.push(*test),
            }
        }
        if tests.is_empty() {
            return None;
        }
        out.push(tests);
    }
    Some(out)
}

/// What a test means to a node proxy.
enum Reading {
    Passes,
    Fails,
    /// A match of one attribute.
    Asks(Box<Match>),
}

impl Reading {
    fn known(passes: bool) -> Self {
        if passes { Self::Passes } else { Self::Fails }
    }
}

fn read(test: &AttributeTest, leading: Option<&[u16]>, strict: bool) -> Reading {
    let AttributeTest { attribute, values, not_values } = test;
    let texts = |names: &[Name]| names.iter().map(|text| pattern(text)).collect::<Vec<StringMatch>>();
    let principals = |names: &[Name]| {
        let bare = names.iter().map(|text| pattern(text.strip_prefix("spiffe://").unwrap_or(text)));
        bare.collect::<Vec<StringMatch>>()
    };
    let mut out = Match::default();
    match attribute {
        Attribute::Principal => (out.principals, out.not_principals) = (principals(values), principals(not_values)),
        Attribute::Namespace => (out.namespaces, out.not_namespaces) = (texts(values), texts(not_values)),
        Attribute::ServiceAccount => {
            let (Some(is), Some(not)) = (accounts(values), accounts(not_values)) else { return Reading::known(strict) };
            (out.service_accounts, out.not_service_accounts) = (is, not);
        }
        Attribute::SourceIp => {
            let (Some(is), Some(not)) = (blocks(values), blocks(not_values)) else { return Reading::known(strict) };
            (out.source_ips, out.not_source_ips) = (is, not);
        }
        Attribute::DestinationPort => {
            let Some(leading) = leading else { return Reading::known(strict) };
            let is = |value: &Name, port: u16| value.parse() == Ok(port);
            let passes = |port: &u16| {
                (values.is_empty() || values.iter().any(|value| is(value, *port)))
                    && !not_values.iter().any(|value| is(value, *port))
            };
            return Reading::known(if strict { leading.iter().any(passes) } else { leading.iter().all(passes) });
        }
        // Of the request, or of the service's address, which a connection to a pod does not tell.
        Attribute::RemoteIp
        | Attribute::DestinationIp
        | Attribute::Host
        | Attribute::Method
        | Attribute::Path
        | Attribute::Header(_)
        | Attribute::Sni
        | Attribute::RequestPrincipal
        | Attribute::Audience
        | Attribute::Presenter
        | Attribute::Claim(_) => return Reading::known(strict),
    }
    Reading::Asks(Box::new(out))
}

fn accounts(names: &[Name]) -> Option<Vec<ServiceAccountMatch>> {
    let one = |name: &Name| {
        let (namespace, account) = name.split_once('/')?;
        Some(ServiceAccountMatch { namespace: namespace.into(), service_account: account.into() })
    };
    names.iter().map(one).collect()
}

fn blocks(names: &[Name]) -> Option<Vec<IpNet>> {
    let one = |name: &Name| name.parse::<IpNet>().ok().or_else(|| name.parse::<IpAddr>().ok().map(IpNet::from));
    names.iter().map(one).collect()
}

/// A clause that matches if all tests of one alternative do.
fn matching(tests: Tests) -> Clause {
    Clause { matches: tests.into_iter().map(together).collect() }
}

/// All tests in one match. Of two tests of the same attribute the first counts, and so more matches.
fn together(tests: Vec<Match>) -> Match {
    fn take<T>(into: (&mut Vec<T>, &mut Vec<T>), from: (Vec<T>, Vec<T>)) {
        if into.0.is_empty() && into.1.is_empty() {
            (*into.0, *into.1) = from;
        }
    }
    let mut out = Match::default();
    for test in tests {
        take((&mut out.principals, &mut out.not_principals), (test.principals, test.not_principals));
        take((&mut out.namespaces, &mut out.not_namespaces), (test.namespaces, test.not_namespaces));
        take(
            (&mut out.service_accounts, &mut out.not_service_accounts),
            (test.service_accounts, test.not_service_accounts),
        );
        take((&mut out.source_ips, &mut out.not_source_ips), (test.source_ips, test.not_source_ips));
    }
    out
}

/// Clauses that match, all of them, if the clause does not: in each alternative one test fails.
fn not_matching(tests: &Tests) -> impl Iterator<Item = Clause> {
    tests.iter().map(|alternative| Clause { matches: alternative.iter().flat_map(failing).collect() })
}

/// Matches of which one matches if a test of one attribute fails.
fn failing(test: &Match) -> impl Iterator<Item = Match> {
    let none_of = Match {
        not_principals: test.principals.clone(),
        not_namespaces: test.namespaces.clone(),
        not_service_accounts: test.service_accounts.clone(),
        not_source_ips: test.source_ips.clone(),
        ..Match::default()
    };
    let one_of = Match {
        principals: test.not_principals.clone(),
        namespaces: test.not_namespaces.clone(),
        service_accounts: test.not_service_accounts.clone(),
        source_ips: test.not_source_ips.clone(),
        ..Match::default()
    };
    [none_of, one_of].into_iter().filter(|it| !it.is_empty())
}

#[cfg(test)]
#[path = "without_waypoint_tests.rs"]
mod tests;
