//! Translates an AuthorizationPolicy or RequestAuthentication that is attached to something (`targetRefs`) into what waypoints
//! enforce, and says where it is enforced.
//!
//! A policy that can't be enforced to the letter is sent all the same: its waypoints then let nobody into what it is attached
//! to.

use std::collections::BTreeSet;
use std::time::Duration;

use leno_model::http::{
    Attribute, AttributeTest, Authorizer, Policy, PolicyAction as Action, PolicyClause, PolicyRule, PolicyTarget,
    TokenKeys, TokenRule,
};
use leno_model::{Mesh, Name, PolicyName, ServiceName, Transport};
use leno_objects::{
    AuthorizationPolicy, Gateway, GatewayClass, IpBlock, JwtRule, Operation, PolicyAction, PolicyTargetReference,
    RequestAuthentication, Service, Source, When,
};
use leno_policy::http::mistakes;

use super::authorization::{is_dry_run, policy_name};
use super::index::Known;
use super::policy_refs::{Attachable, GATEWAY_API};
use super::service_name::service_name;
use super::waypoint::waypoints_of;
use super::{Options, token_keys};

/// What becomes of a policy.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// The policy; `None` if it is attached to nothing.
    pub(super) policy: Option<Policy>,
    /// The waypoints that enforce it, as discovery knows them: `namespace/service account`.
    pub(super) readers: BTreeSet<Name>,
    pub(super) warnings: Vec<String>,
}

/// Translates a policy that may be attached to something.
pub(super) fn request_policy(known: Known<'_>, mesh: &Mesh, policy: Attachable<'_>) -> Translated {
    let mut out = Translated::default();
    let mut attached = Vec::new();
    for reference in policy.references() {
        match attach(known, mesh, policy, reference) {
            Ok((targets, readers)) => {
                attached.extend(targets);
                out.readers.extend(readers);
            }
            Err(Nowhere { targets, why, instead }) => {
                attached.extend(targets);
                let instead = match policy {
                    Attachable::Authorization(_) => instead,
                    Attachable::Authentication(_) => NOBODY_LOOKS,
                };
                out.warnings.push(format!("targetRefs: {why}: {instead}"));
            }
        }
    }
    attached.sort();
    attached.dedup();
    match policy {
        Attachable::Authentication(policy) => authentication(known.options, policy, attached, out),
        Attachable::Authorization(policy) if !attached.is_empty() => authorization(known, mesh, policy, attached, out),
        Attachable::Authorization(_) => out,
    }
}

/// The policy that a RequestAuthentication is.
fn authentication(
    options: &Options,
    policy: &RequestAuthentication,
    targets: Vec<PolicyTarget>,
    mut out: Translated,
) -> Translated {
    if policy.spec.target_ref.is_none() && policy.spec.target_refs.is_empty() {
        out.warnings.push(format!("it has no targetRefs: {NOBODY_LOOKS}"));
    }
    if targets.is_empty() {
        return out;
    }
    let mut translated = tokens(options, policy, targets);
    for (index, rule) in translated.tokens.iter().enumerate() {
        let problems = token_keys::problems(options, &rule.keys).into_iter();
        out.warnings.extend(problems.map(|problem| format!("spec.jwtRules[{index}]{problem}")));
    }
    let problem = problem_of_tokens(policy, &translated);
    close(&mut translated, problem, &mut out.warnings);
    out.policy = Some(translated);
    out
}

/// What a RequestAuthentication says of tokens.
fn tokens(options: &Options, policy: &RequestAuthentication, targets: Vec<PolicyTarget>) -> Policy {
    Policy {
        targets,
        tokens: policy.spec.jwt_rules.iter().map(|rule| token_rule(options, rule)).collect(),
        ..Policy::new(
            PolicyName::authentication(policy.metadata.namespace.clone(), &policy.metadata.name),
            Action::Authenticate,
        )
    }
}

fn problem_of_tokens(policy: &RequestAuthentication, translated: &Policy) -> Option<String> {
    together(&policy.not_understood).or_else(|| together(&of_rules("spec.jwtRules", translated)))
}

/// Problems as one text; `None` if there are none.
fn together(problems: &[String]) -> Option<String> {
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// What of the rules, which stand in the field `at`, can't be enforced.
fn of_rules(at: &str, translated: &Policy) -> Vec<String> {
    mistakes(translated).into_iter().map(|(index, error)| format!("{at}[{index}]: {error}")).collect()
}

/// Why a policy can't be followed to the letter, whatever else there is in the mesh.
pub(super) fn problem(policy: Attachable<'_>) -> Option<String> {
    match policy {
        Attachable::Authentication(policy) => {
            // Where keys are read says nothing of whether a rule can be.
            problem_of_tokens(policy, &tokens(&Options::default(), policy, Vec::new()))
        }
        Attachable::Authorization(it) if !policy.is_attached() => together(&it.not_understood),
        Attachable::Authorization(policy) => rules(policy, &mut untargeted(policy)),
    }
}

/// A policy as it is before its targets, its authoriser and its rules are known.
fn untargeted(policy: &AuthorizationPolicy) -> Policy {
    let action = match policy.spec.action {
        PolicyAction::Allow => Action::Allow,
        // Without somebody to ask, the answer is no.
        PolicyAction::Deny | PolicyAction::Custom => Action::Deny,
        PolicyAction::Audit => Action::Audit,
    };
    Policy { dry_run: is_dry_run(policy), ..Policy::new(policy_name(policy), action) }
}

/// Puts a policy's rules into what it becomes. Returns why they can't be enforced to the letter, if that is so.
fn rules(policy: &AuthorizationPolicy, translated: &mut Policy) -> Option<String> {
    if let Some(problem) = together(&policy.not_understood) {
        return Some(problem);
    }
    let mut problems = Vec::new();
    for (index, one) in policy.spec.rules.iter().enumerate() {
        translated.rules.push(rule(policy, one, |why| problems.push(format!("spec.rules[{index}]: {why}"))));
    }
    problems.extend(of_rules("spec.rules", translated));
    together(&problems)
}

fn token_rule(options: &Options, rule: &JwtRule) -> TokenRule {
    let not_empty = |text: &String| (!text.is_empty()).then(|| Name::from(&**text));
    TokenRule {
        issuer: (*rule.issuer).into(),
        audiences: names(&rule.audiences),
        keys: match (&*rule.jwks, &*rule.jwks_uri) {
            ("", "") => TokenKeys::None,
            ("", uri) => TokenKeys::At {
                uri: token_keys::whole_address(options, uri).into(),
                timeout: Duration::from_millis(rule.timeout_ms().unwrap_or(FIVE_SECONDS)),
            },
            (text, _) => TokenKeys::Inline(text.into()),
        },
        headers: rule.from_headers.iter().map(|it| ((*it.name).into(), (*it.prefix).into())).collect(),
        params: names(&rule.from_params),
        cookies: names(&rule.from_cookies),
        forward: rule.forward_original_token,
        payload_header: not_empty(&rule.output_payload_to_header),
        claim_headers: rule
            .output_claim_to_headers
            .iter()
            .map(|it| ((*it.header).into(), it.claim.split('.').map(Name::from).collect()))
            .collect(),
    }
}

/// How long reading keys may take where a rule does not say: Istio's value, in milliseconds.
const FIVE_SECONDS: u64 = 5000;

/// What follows where a RequestAuthentication is attached to nothing that looks at requests.
const NOBODY_LOOKS: &str = "only waypoints look at tokens, so they are NOT checked there; AuthorizationPolicies that ask for a \
                            token are held more strictly by the node proxies";

/// Closes a policy that has a problem.
fn close(translated: &mut Policy, problem: Option<String>, warnings: &mut Vec<String>) {
    let Some(problem) = problem else { return };
    warnings.push(if translated.dry_run || translated.action == Action::Audit {
        format!("not understood by this version of Leno, so it is not even logged: {problem}")
    } else {
        format!("not understood by this version of Leno, so every request it may be about is DENIED: {problem}")
    });
    translated.rules.clear();
    translated.tokens.clear();
    translated.not_understood = Some(problem.into());
}

/// The policy that an AuthorizationPolicy is.
fn authorization(
    known: Known<'_>,
    mesh: &Mesh,
    policy: &AuthorizationPolicy,
    attached: Vec<PolicyTarget>,
    mut out: Translated,
) -> Translated {
    let mut unasked = None;
    let authorizer = match (policy.spec.action, &policy.spec.provider) {
        (PolicyAction::Custom, Some(provider)) => match known.providers.get(known.options, &provider.name) {
            Ok(authorizer) => {
                out.warnings.extend(known.providers.outdated(known.options));
                out.warnings.extend(unreachable(mesh, &policy.metadata.namespace, &authorizer));
                Some(authorizer)
            }
            Err(why) => {
                unasked = Some(format!("action CUSTOM has nobody to ask: {why}").into());
                out.warnings.push(format!("action CUSTOM has nobody to ask, so what matches is DENIED: {why}"));
                None
            }
        },
        _ => None,
    };
    let mut translated = Policy { targets: attached, denied_because: unasked, ..untargeted(policy) };
    if authorizer.is_some() {
        (translated.action, translated.authorizer) = (Action::Custom, authorizer);
    }
    let problem = rules(policy, &mut translated);
    close(&mut translated, problem, &mut out.warnings);
    if translated.action == Action::Custom && translated.rules.iter().any(asks_for_a_token) {
        out.warnings.push(
            "what a rule says of a token is taken to be so: with action CUSTOM the authoriser is asked before tokens are looked at"
                .to_owned(),
        );
    }
    out.warnings.extend(foreign_ports(known, policy));
    out.policy = Some(translated);
    out
}

/// Why no waypoint enforces a policy for one of its targets, which it may have all the same later.
struct Nowhere {
    targets: Vec<PolicyTarget>,
    why: String,
    /// What follows.
    instead: &'static str,
}

/// What follows for a service without a waypoint.
const AT_PODS: &str = "until then the node proxies of its pods stand in: what they can't check of a request is not allowed by \
                       an ALLOW rule and DENIED by a DENY rule, also on connections by other Services to the same ports";

impl Nowhere {
    fn new(why: impl Into<String>) -> Self {
        Self { targets: Vec::new(), why: why.into(), instead: "NOT enforced there" }
    }
}

/// The targets in the mesh that a reference stands for, and their waypoints.
fn attach(
    known: Known<'_>,
    mesh: &Mesh,
    policy: Attachable<'_>,
    reference: &PolicyTargetReference,
) -> Result<(Vec<PolicyTarget>, Vec<Name>), Nowhere> {
    let own = &policy.metadata().namespace;
    let PolicyTargetReference { group, kind, name, namespace } = reference;
    if !namespace.is_empty() && **namespace != **own {
        return Err(Nowhere::new(format!("{kind} {namespace}/{name} is in another namespace than the policy")));
    }
    let of_gateway = |gateway: &Gateway| {
        let metadata = &gateway.metadata;
        let target = PolicyTarget::Waypoint(service_name(known.options, &metadata.namespace, &metadata.name));
        (target, Name::from(format!("{}/{}", metadata.namespace, metadata.name)))
    };
    let class_of = |gateway: &Gateway| GatewayClass::get(known.store, "", &gateway.spec.gateway_class_name);
    match (&**group, &**kind) {
        ("" | "core", "Service") => {
            let id = service_name(known.options, own, name);
            let targets = vec![PolicyTarget::Service(id.clone())];
            let why = format!("there is no Service {own}/{name} in the mesh");
            let Some(service) = mesh.service(&id) else {
                return Err(Nowhere { targets, why, instead: "NOT enforced there" });
            };
            let readers: Vec<Name> = waypoints_of(service).collect();
            if readers.is_empty() && service.waypoint.is_some() {
                let why = format!("the waypoint of Service {own}/{name} does not admit its Namespace");
                return Err(Nowhere { targets, why, instead: "connections to the Service are refused" });
            }
            if readers.is_empty() {
                let why = format!(
                    "no waypoint stands before Service {own}/{name}; give it or its Namespace the label \
                     istio.io/use-waypoint"
                );
                return Err(Nowhere { targets, why, instead: AT_PODS });
            }
            Ok((targets, readers))
        }
        (GATEWAY_API, "Gateway") => match Gateway::get(known.store, own, name) {
            None => Err(Nowhere::new(format!("there is no Gateway {own}/{name}"))),
            Some(gateway) if !gateway.is_waypoint(class_of(gateway)) => {
                Err(Nowhere::new(format!("Gateway {own}/{name} is not a waypoint of Leno")))
            }
            Some(gateway) => {
                let (target, reader) = of_gateway(gateway);
                Ok((vec![target], vec![reader]))
            }
        },
        (GATEWAY_API, "GatewayClass") if **own != *known.options.root_namespace => Err(Nowhere::new(format!(
            "a policy for GatewayClass {name} has to be in the root namespace ({})",
            known.options.root_namespace
        ))),
        (GATEWAY_API, "GatewayClass") => {
            let of_class = known.store.gateways().filter(|it| *it.spec.gateway_class_name == **name);
            let all: Vec<_> = of_class.filter(|it| it.is_waypoint(class_of(it))).map(of_gateway).collect();
            if all.is_empty() {
                return Err(Nowhere::new(format!("no waypoint has the class {name}")));
            }
            Ok(all.into_iter().unzip())
        }
        _ => Err(Nowhere::new(format!(
            "{kind} {name} is not a Service, a Gateway or a GatewayClass ({group:?} is the group)"
        ))),
    }
}

fn names(texts: &[String]) -> Vec<Name> {
    texts.iter().map(|text| (**text).into()).collect()
}

fn blocks(blocks: &[IpBlock]) -> Vec<Name> {
    blocks.iter().map(|block| block.0.to_string().into()).collect()
}

/// A rule as it is enforced. Conditions that are not known are told and left out.
fn rule(policy: &AuthorizationPolicy, rule: &leno_objects::Rule, mut unknown: impl FnMut(String)) -> PolicyRule {
    let mut clauses = Vec::new();
    if !rule.from.is_empty() {
        let alternatives = rule.from.iter().map(|from| source(policy, &from.source)).collect();
        clauses.push(PolicyClause { alternatives });
    }
    if !rule.to.is_empty() {
        clauses.push(PolicyClause { alternatives: rule.to.iter().map(|to| operation(&to.operation)).collect() });
    }
    for when in &rule.when {
        match condition(policy, when) {
            Ok(test) => clauses.push(PolicyClause { alternatives: vec![vec![test]] }),
            Err(why) => unknown(why),
        }
    }
    PolicyRule { clauses }
}

/// Why an authoriser can't be asked as the mesh is, and what follows. `namespace` is the policy's, and its waypoints'.
fn unreachable(mesh: &Mesh, namespace: &str, authorizer: &Authorizer) -> Option<String> {
    let Authorizer { provider, hostname, port, .. } = authorizer;
    let found = match &*authorizer.namespace {
        "" => mesh.service_by_hostname(hostname, namespace),
        of => mesh.service(&ServiceName { namespace: of.into(), hostname: hostname.clone() }),
    };
    let why = match found {
        Some(service)
            if service.ports.iter().any(|its| its.service_port == *port && its.transport == Transport::Tcp) =>
        {
            return None;
        }
        Some(_) => format!("the Service {hostname} has no port {port}"),
        None if authorizer.namespace.is_empty() => format!("there is no Service {hostname}"),
        None => format!("there is no Service {hostname} in the namespace {}", authorizer.namespace),
    };
    let follows = match authorizer.fail_open {
        true => "PASSES, because the provider is failOpen".to_owned(),
        false => format!("gets status {}", authorizer.status_on_error),
    };
    Some(format!("the authoriser {provider:?} can't be asked, and what matches {follows}: {why}"))
}

/// Whether a rule says something of the request's token.
fn asks_for_a_token(rule: &PolicyRule) -> bool {
    let of_token = |test: &AttributeTest| {
        matches!(
            test.attribute,
            Attribute::RequestPrincipal | Attribute::Audience | Attribute::Presenter | Attribute::Claim(_)
        )
    };
    rule.clauses.iter().flat_map(|clause| clause.alternatives.iter().flatten()).any(of_token)
}

/// A test, if it asks for anything.
fn test(attribute: Attribute, values: Vec<Name>, not_values: Vec<Name>) -> Option<AttributeTest> {
    (!values.is_empty() || !not_values.is_empty()).then_some(AttributeTest { attribute, values, not_values })
}

fn source(policy: &AuthorizationPolicy, it: &Source) -> Vec<AttributeTest> {
    let tests = [
        test(Attribute::Principal, names(&it.principals), names(&it.not_principals)),
        test(Attribute::Namespace, names(&it.namespaces), names(&it.not_namespaces)),
        test(
            Attribute::ServiceAccount,
            accounts(policy, &it.service_accounts),
            accounts(policy, &it.not_service_accounts),
        ),
        test(Attribute::SourceIp, blocks(&it.ip_blocks), blocks(&it.not_ip_blocks)),
        test(Attribute::RemoteIp, blocks(&it.remote_ip_blocks), blocks(&it.not_remote_ip_blocks)),
        test(Attribute::RequestPrincipal, names(&it.request_principals), names(&it.not_request_principals)),
    ];
    tests.into_iter().flatten().collect()
}

/// Service accounts with their namespace, which is the policy's own if none is named.
fn accounts(policy: &AuthorizationPolicy, accounts: &[String]) -> Vec<Name> {
    let own = &policy.metadata.namespace;
    let whole = |account: &String| match account.contains('/') {
        true => (**account).into(),
        false => format!("{own}/{account}").into(),
    };
    accounts.iter().map(whole).collect()
}

fn operation(it: &Operation) -> Vec<AttributeTest> {
    let tests = [
        test(Attribute::Host, names(&it.hosts), names(&it.not_hosts)),
        test(Attribute::DestinationPort, names(&it.ports), names(&it.not_ports)),
        test(Attribute::Method, names(&it.methods), names(&it.not_methods)),
        test(Attribute::Path, names(&it.paths), names(&it.not_paths)),
    ];
    tests.into_iter().flatten().collect()
}

fn condition(policy: &AuthorizationPolicy, when: &When) -> Result<AttributeTest, String> {
    let in_brackets = |rest: &str| rest.strip_suffix(']').filter(|name| !name.is_empty()).map(Name::from);
    let attribute = match &*when.key {
        "source.ip" => Attribute::SourceIp,
        "remote.ip" => Attribute::RemoteIp,
        "source.namespace" => Attribute::Namespace,
        "source.principal" => Attribute::Principal,
        "source.serviceAccount" => {
            return Ok(AttributeTest {
                attribute: Attribute::ServiceAccount,
                values: accounts(policy, &when.values),
                not_values: accounts(policy, &when.not_values),
            });
        }
        "destination.ip" => Attribute::DestinationIp,
        "destination.port" => Attribute::DestinationPort,
        "connection.sni" => Attribute::Sni,
        "request.auth.principal" => Attribute::RequestPrincipal,
        "request.auth.audiences" => Attribute::Audience,
        "request.auth.presenter" => Attribute::Presenter,
        key => {
            let header = key.strip_prefix("request.headers[").and_then(in_brackets).map(Attribute::Header);
            let claim = || {
                let names = key.strip_prefix("request.auth.claims[")?.strip_suffix(']')?.split("][");
                let names: Vec<Name> = names.map(Name::from).collect();
                names.iter().all(|name| !name.is_empty()).then_some(Attribute::Claim(names))
            };
            let known = header.or_else(claim);
            known.ok_or_else(|| format!("this version of Leno knows no attribute {key:?}"))?
        }
    };
    Ok(AttributeTest { attribute, values: names(&when.values), not_values: names(&when.not_values) })
}

/// Ports of rules that no Service has to which the policy is attached: whoever writes the port of a pod there waits for a match
/// in vain.
fn foreign_ports(known: Known<'_>, policy: &AuthorizationPolicy) -> Vec<String> {
    let services = Attachable::Authorization(policy).references().map(|reference| match &*reference.kind {
        "Service" => Service::get(known.store, &policy.metadata.namespace, &reference.name),
        _ => None,
    });
    let Some(services) = services.collect::<Option<Vec<_>>>() else { return Vec::new() };
    let operations = policy.spec.rules.iter().flat_map(|rule| &rule.to);
    let of_operations = operations.flat_map(|to| to.operation.ports.iter().chain(&to.operation.not_ports));
    let whens = policy.spec.rules.iter().flat_map(|rule| &rule.when).filter(|when| when.key == "destination.port");
    let named: BTreeSet<&String> =
        of_operations.chain(whens.flat_map(|when| when.values.iter().chain(&when.not_values))).collect();
    let has =
        |port: &str| services.iter().any(|service| service.spec.ports.iter().any(|it| it.port.0.to_string() == port));
    let foreign = named.into_iter().filter(|port| !has(port));
    foreign
        .map(|port| {
            format!(
                "port {port} is none of the Services that the policy is attached to; at a waypoint a port is the Service's, \
                 not its pods'"
            )
        })
        .collect()
}
