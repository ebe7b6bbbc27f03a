//! Translates AuthorizationPolicy into what an L4 proxy can enforce.
//!
//! A node proxy can't enforce a field that needs a waypoint. The result is always the stricter reading: an ALLOW
//! alternative with such a field allows nothing, and a DENY rule denies whatever the field says. `CUSTOM` asks an
//! external authoriser whether to allow. A node proxy has none, so the answer is no, and the policy becomes DENY.
//! (Istio leaves it out, and with it the protection.) `AUDIT` decides nothing and is left out.

use ipnet::IpNet;
use leno_model::{
    Action, Authorization, Clause, Match, Name, PolicyName, Rule, Scope, ServiceAccountMatch, StringMatch,
};

use super::Options;
use super::policy_refs::Attachable;
use leno_objects::{AuthorizationPolicy, IpBlock, Operation, PolicyAction, Source, When};

/// Annotation that, with value `true`, makes a policy a dry run: logged, not enforced.
const DRY_RUN: &str = "istio.io/dry-run";

const NEEDS_WAYPOINT: &str = "needs a waypoint (targetRefs instead of a selector)";

/// Whether the policy is only logged.
pub(crate) fn is_dry_run(policy: &AuthorizationPolicy) -> bool {
    policy.metadata.annotation(DRY_RUN).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether node proxies get the policy.
pub(crate) fn is_enforced(policy: &AuthorizationPolicy) -> bool {
    policy.spec.action != PolicyAction::Audit && !Attachable::Authorization(policy).is_attached()
}

/// The policy's name in the mesh.
pub(super) fn policy_name(policy: &AuthorizationPolicy) -> PolicyName {
    PolicyName { namespace: policy.metadata.namespace.clone(), name: policy.metadata.name.clone() }
}

/// The policy as node proxies enforce it, `None` if they don't, and the warnings for its author.
pub(super) fn authorization(options: &Options, policy: &AuthorizationPolicy) -> (Option<Authorization>, Vec<String>) {
    let mut translation = Translation { options, policy, strip: true, warnings: Vec::new() };
    if !is_enforced(policy) {
        if policy.spec.action == PolicyAction::Audit {
            let warning = "action AUDIT has no effect where node proxies decide (it would not refuse anything either); with \
                           targetRefs a waypoint logs what matches";
            translation.warnings.push(warning.to_owned());
        }
        return (None, translation.warnings);
    }
    let scope = match policy.selected() {
        Some(_) => Scope::WorkloadSelector,
        None if *policy.metadata.namespace == *options.root_namespace => Scope::Global,
        None => Scope::Namespace,
    };
    let dry_run = is_dry_run(policy);
    let id = policy_name(policy);
    if !policy.not_understood.is_empty() {
        translation.warnings.push(format!(
            "not understood by this version of Leno, so every connection the policy may be about is DENIED: {}",
            policy.not_understood.join("; ")
        ));
        let everything = vec![Rule { clauses: Vec::new() }];
        let out = Authorization { id, scope, action: Action::Deny, rules: everything, dry_run, not_understood: None };
        return (Some(out), translation.warnings);
    }
    let action = match policy.spec.action {
        PolicyAction::Allow => Action::Allow,
        PolicyAction::Deny | PolicyAction::Audit => Action::Deny,
        PolicyAction::Custom => {
            translation.warnings.push(
                "action CUSTOM needs a waypoint (targetRefs instead of a selector), which asks the authoriser: what matches is DENIED"
                    .to_owned(),
            );
            Action::Deny
        }
    };
    translation.strip = action == Action::Deny;
    let rules: Vec<Rule> =
        policy.spec.rules.iter().enumerate().filter_map(|(i, rule)| translation.rule(i, rule)).collect();
    if action == Action::Allow && rules.is_empty() && !policy.spec.rules.is_empty() {
        translation
            .warnings
            .push("no rule is left, so the policy allows nothing: every connection is denied".to_owned());
    }
    let out = Authorization { id, scope, action, rules, dry_run, not_understood: None };
    (Some(out), translation.warnings)
}

struct Translation<'a> {
    options: &'a Options,
    policy: &'a AuthorizationPolicy,
    /// The stricter way to treat a condition that can't be enforced: leave out the condition (DENY), or leave out the
    /// alternative that has it (ALLOW).
    strip: bool,
    warnings: Vec<String>,
}

/// An entry of `from` or `to`, or a condition.
#[derive(Default)]
struct Entry {
    matches: Match,
    /// The fields that can't be enforced.
    unenforceable: Vec<&'static str>,
}

impl Translation<'_> {
    fn rule(&mut self, index: usize, rule: &leno_objects::Rule) -> Option<Rule> {
        let at = format!("spec.rules[{index}]");
        let mut clauses = Vec::new();
        let from: Vec<Entry> = rule.from.iter().map(|from| self.source(&from.source)).collect();
        clauses.extend(self.alternatives(&at, "from", "source", from)?);
        let to: Vec<Entry> = rule.to.iter().map(|to| operation(&to.operation)).collect();
        clauses.extend(self.alternatives(&at, "to", "operation", to)?);
        for (i, when) in rule.when.iter().enumerate() {
            match self.condition(when) {
                Some(matches) => clauses.push(Clause { matches: vec![matches] }),
                None => {
                    let what = format!("{at}.when[{i}]: attribute {} {NEEDS_WAYPOINT}", when.key);
                    if !self.strip {
                        self.warnings.push(format!("{what}: rule dropped, so it allows nothing"));
                        return None;
                    }
                    self.warnings.push(format!("{what}: condition ignored, so the rule denies whatever its value is"));
                }
            }
        }
        Some(Rule { clauses })
    }

    /// The clause of a list of alternatives. `Some(None)` if it restricts nothing; `None` if none of the alternatives
    /// is left.
    fn alternatives(&mut self, at: &str, list: &str, item: &str, entries: Vec<Entry>) -> Option<Option<Clause>> {
        if entries.is_empty() {
            return Some(None);
        }
        let mut matches = Vec::new();
        let mut unrestricted = false;
        for (i, entry) in entries.into_iter().enumerate() {
            if entry.unenforceable.is_empty() {
                // A match without attributes would be ignored in its clause, but here it stands for an entry that
                // restricts nothing.
                unrestricted |= entry.matches.is_empty();
                matches.push(entry.matches);
                continue;
            }
            let what = format!("{at}.{list}[{i}].{item}: {} {NEEDS_WAYPOINT}", entry.unenforceable.join(", "));
            if !self.strip {
                self.warnings.push(format!("{what}: this alternative is dropped, so it allows nothing"));
            } else if entry.matches.is_empty() {
                self.warnings.push(format!("{what}: ignored, so the rule denies whatever the {item} is"));
                unrestricted = true;
            } else {
                self.warnings.push(format!("{what}: ignored, so the rule denies whatever they are"));
                matches.push(entry.matches);
            }
        }
        if unrestricted {
            return Some(None);
        }
        if matches.is_empty() { None } else { Some(Some(Clause { matches })) }
    }

    fn source(&mut self, source: &Source) -> Entry {
        let mut unenforceable = Vec::new();
        let needs_waypoint = [
            ("requestPrincipals", source.request_principals.is_empty()),
            ("notRequestPrincipals", source.not_request_principals.is_empty()),
            ("remoteIpBlocks", source.remote_ip_blocks.is_empty()),
            ("notRemoteIpBlocks", source.not_remote_ip_blocks.is_empty()),
        ];
        unenforceable.extend(needs_waypoint.iter().filter(|(_, empty)| !empty).map(|(field, _)| *field));
        let blocks = |blocks: &[IpBlock]| blocks.iter().map(|block| block.0).collect::<Vec<IpNet>>();
        let matches = Match {
            principals: self.principals(&source.principals),
            not_principals: self.principals(&source.not_principals),
            namespaces: source.namespaces.iter().map(|text| pattern(text)).collect(),
            not_namespaces: source.not_namespaces.iter().map(|text| pattern(text)).collect(),
            service_accounts: self.service_accounts(&source.service_accounts),
            not_service_accounts: self.service_accounts(&source.not_service_accounts),
            source_ips: blocks(&source.ip_blocks),
            not_source_ips: blocks(&source.not_ip_blocks),
            ..Match::default()
        };
        Entry { matches, unenforceable }
    }

    fn principals(&mut self, principals: &[String]) -> Vec<StringMatch> {
        for principal in principals {
            let bare = principal.strip_prefix("spiffe://").unwrap_or(principal);
            if let Some((trust_domain, _)) = bare.split_once("/ns/")
                && !trust_domain.contains('*')
                && *trust_domain != *self.options.trust_domain
            {
                self.warnings.push(format!(
                    "principal {principal:?} matches nobody: the trust domain of this mesh is {}",
                    self.options.trust_domain
                ));
            }
        }
        principals.iter().map(|text| pattern(text.strip_prefix("spiffe://").unwrap_or(text))).collect()
    }

    fn service_accounts(&self, accounts: &[String]) -> Vec<ServiceAccountMatch> {
        let own = &*self.policy.metadata.namespace;
        accounts
            .iter()
            .map(|account| {
                let (namespace, name) = account.split_once('/').unwrap_or((own, account));
                ServiceAccountMatch { namespace: namespace.into(), service_account: name.into() }
            })
            .collect()
    }

    /// A condition's match; `None` if it can't be enforced.
    fn condition(&mut self, when: &When) -> Option<Match> {
        let mut out = Match::default();
        match when.key.as_str() {
            "source.ip" => {
                out.source_ips = blocks(&when.values)?;
                out.not_source_ips = blocks(&when.not_values)?;
            }
            "source.namespace" => {
                out.namespaces = when.values.iter().map(|text| pattern(text)).collect();
                out.not_namespaces = when.not_values.iter().map(|text| pattern(text)).collect();
            }
            "source.principal" => {
                out.principals = self.principals(&when.values);
                out.not_principals = self.principals(&when.not_values);
            }
            "source.serviceAccount" => {
                out.service_accounts = self.service_accounts(&when.values);
                out.not_service_accounts = self.service_accounts(&when.not_values);
            }
            "destination.ip" => {
                out.destination_ips = blocks(&when.values)?;
                out.not_destination_ips = blocks(&when.not_values)?;
            }
            "destination.port" => {
                out.destination_ports = ports(&when.values)?;
                out.not_destination_ports = ports(&when.not_values)?;
            }
            _ => return None,
        }
        (!out.is_empty()).then_some(out)
    }
}

fn operation(operation: &Operation) -> Entry {
    let mut out = Entry::default();
    let needs_waypoint = [
        ("hosts", &operation.hosts),
        ("notHosts", &operation.not_hosts),
        ("methods", &operation.methods),
        ("notMethods", &operation.not_methods),
        ("paths", &operation.paths),
        ("notPaths", &operation.not_paths),
    ];
    out.unenforceable.extend(needs_waypoint.iter().filter(|(_, list)| !list.is_empty()).map(|(field, _)| *field));
    match ports(&operation.ports) {
        Some(ports) => out.matches.destination_ports = ports,
        None => out.unenforceable.push("ports"),
    }
    match ports(&operation.not_ports) {
        Some(ports) => out.matches.not_destination_ports = ports,
        None => out.unenforceable.push("notPorts"),
    }
    out
}

/// `*` matches anything, `*x` a suffix and `x*` a prefix; everything else is exact.
pub(crate) fn pattern(text: &str) -> StringMatch {
    let name = |text: &str| Name::from(text);
    match (text.strip_prefix('*'), text.strip_suffix('*')) {
        _ if text == "*" => StringMatch::Presence,
        (Some(suffix), _) => StringMatch::Suffix(name(suffix)),
        (_, Some(prefix)) => StringMatch::Prefix(name(prefix)),
        _ => StringMatch::Exact(name(text)),
    }
}

fn ports(ports: &[String]) -> Option<Vec<u16>> {
    ports.iter().map(|port| port.parse().ok()).collect()
}

fn blocks(blocks: &[String]) -> Option<Vec<IpNet>> {
    blocks.iter().map(|block| block.parse::<IpBlock>().ok().map(|block| block.0)).collect()
}
