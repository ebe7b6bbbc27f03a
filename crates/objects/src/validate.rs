//! What the shape of a manifest can't say: names, ranges, and fields that must fit each other.
//!
//! Each check is named at the field it belongs to (see `object!`), so that its failure is told
//! with that field's path and line. Rules are those of the Kubernetes and Istio API servers.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use leno_model::Name;

use super::decode::{Context, Problem};
use super::meta::{LabelExpression, LabelOperator, Labels, ObjectMeta};
use super::network::{AddressType, HEADLESS, IpFamilyPolicy, ServicePort, ServiceSpec, ServiceType};
use super::scalars::IpBlock;
use super::security::{
    AuthorizationPolicySpec, MutualTlsMode, Operation, PeerAuthenticationSpec, PolicyAction, Source,
};
use super::workload::{Container, ContainerPort, DeploymentSpec, EnvVar, Probe};
use super::{Kind, Object};

type Check = Result<(), Problem>;

/// RFC 1123 label: at most 63 of lower-case letters, digits and `-`, the ends alphanumeric.
pub(super) fn label(text: &str) -> Result<(), String> {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let sound = bytes.len() <= 63
        && bytes.iter().all(|b| lower(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| lower(*b))
        && bytes.last().is_some_and(|b| lower(*b));
    if sound {
        Ok(())
    } else {
        Err(format!("{text:?} must be 1 to 63 lower-case letters, digits or '-', and start and end with no '-'"))
    }
}

/// RFC 1123 subdomain: labels joined by dots, at most 253 characters.
pub(super) fn subdomain(text: &str) -> Result<(), String> {
    if text.len() <= 253 && text.split('.').all(|part| label(part).is_ok()) {
        Ok(())
    } else {
        Err(format!(
            "{text:?} must be lower-case letters, digits, '-' or '.', and start and end with a letter or digit"
        ))
    }
}

/// IANA service name: at most 15 of lower-case letters, digits and single `-`, one letter at
/// least (RFC 6335 §5.1).
pub(super) fn port_name(text: &str) -> Result<(), String> {
    let sound =
        label(text).is_ok() && text.len() <= 15 && !text.contains("--") && text.bytes().any(|b| b.is_ascii_lowercase());
    if sound {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is no port name: 1 to 15 lower-case letters, digits or single '-', with a letter among them"
        ))
    }
}

pub(super) fn object_name(name: &Name, cx: &mut Context) -> Check {
    let rule = match cx.kind {
        Kind::Namespace | Kind::Service => label(name),
        _ => subdomain(name),
    };
    rule.map_err(Problem::here)
}

pub(super) fn namespace_name(name: &Name, _: &mut Context) -> Check {
    label(name).map_err(Problem::here)
}

pub(super) fn label_field(name: &String, _: &mut Context) -> Check {
    label(name).map_err(Problem::here)
}

pub(super) fn subdomain_field(name: &String, _: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { subdomain(name).map_err(Problem::here) }
}

pub(super) fn port_name_field(name: &String, _: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { port_name(name).map_err(Problem::here) }
}

pub(super) fn service_port_name_field(name: &String, _: &mut Context) -> Check {
    if name.is_empty() { Ok(()) } else { label(name).map_err(Problem::here) }
}

pub(super) fn metadata(metadata: &ObjectMeta, cx: &mut Context) -> Check {
    if metadata.name.is_empty() {
        return Err(Problem::at(".name", "is required"));
    }
    if !cx.kind.is_namespaced() && !metadata.namespace.is_empty() {
        return Err(Problem::at(".namespace", format!("a {} has no namespace; remove the field", cx.kind)));
    }
    Ok(())
}

pub(super) fn labels(labels: &Labels, _: &mut Context) -> Check {
    for (key, value) in labels {
        qualified_name(key).map_err(Problem::here)?;
        label_value(value).map_err(|why| Problem::at(format!(".{key}"), why))?;
    }
    Ok(())
}

pub(super) fn annotations(annotations: &Labels, _: &mut Context) -> Check {
    annotations.keys().try_for_each(|key| qualified_name(&key.to_lowercase()).map_err(Problem::here))
}

fn label_value(value: &str) -> Result<(), String> {
    let sound = value.is_empty() || (value.len() <= 63 && is_name_part(value));
    if sound {
        Ok(())
    } else {
        Err(format!("{value:?} is no label value: at most 63 letters, digits, '-', '_' or '.', ends alphanumeric"))
    }
}

fn qualified_name(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_none_or(|prefix| subdomain(prefix).is_ok()) && name.len() <= 63 && is_name_part(name) {
        Ok(())
    } else {
        Err(format!("{key:?} is no label key: [dns-name/]name, the name at most 63 letters, digits, '-', '_' or '.'"))
    }
}

fn is_name_part(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.as_bytes().last().is_some_and(u8::is_ascii_alphanumeric)
}

pub(super) fn label_expressions(expressions: &Vec<LabelExpression>, _: &mut Context) -> Check {
    for (i, expression) in expressions.iter().enumerate() {
        let wants_values = matches!(expression.operator, LabelOperator::In | LabelOperator::NotIn);
        if wants_values == expression.values.is_empty() {
            let must = if wants_values { "needs" } else { "takes no" };
            return Err(Problem::at(format!("[{i}].values"), format!("{} {must} values", expression.operator)));
        }
    }
    Ok(())
}

fn no_duplicates<'a>(names: impl Iterator<Item = &'a str>, field: &str, what: &str) -> Check {
    let mut seen = BTreeMap::new();
    for (i, name) in names.enumerate().filter(|(_, name)| !name.is_empty()) {
        if let Some(first) = seen.insert(name, i) {
            return Err(Problem::at(format!("[{i}]{field}"), format!("{what} {name:?} is already used by [{first}]")));
        }
    }
    Ok(())
}

pub(super) fn containers(containers: &Vec<Container>, _: &mut Context) -> Check {
    if containers.is_empty() {
        return Err(Problem::here("needs at least one container"));
    }
    no_duplicates(containers.iter().map(|c| c.name.as_str()), ".name", "container name")?;
    // Two containers of a pod share its network namespace, hence its ports.
    let mut listeners = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in container.ports.iter().enumerate() {
            let at = format!("[{i}].ports[{j}]");
            if let Some(other) = listeners.insert((port.protocol.as_str(), port.container_port), &container.name)
                && *other != container.name
            {
                let message = format!("port {} is already used by container {other:?}", port.container_port);
                return Err(Problem::at(format!("{at}.containerPort"), message));
            }
            if !port.name.is_empty()
                && let Some(other) = names.insert(&port.name, &container.name)
            {
                let message = format!("port name {:?} is already used by container {other:?}", port.name);
                return Err(Problem::at(format!("{at}.name"), message));
            }
        }
        if let Some(probe) = &container.readiness_probe {
            self::probe(probe, &format!("[{i}].readinessProbe"), &container.ports)?;
        }
    }
    Ok(())
}

fn probe(probe: &Probe, at: &str, ports: &[ContainerPort]) -> Check {
    let actions = [probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.exec.is_some()];
    match actions.iter().filter(|there| **there).count() {
        1 => {}
        0 => return Err(Problem::at(at, "needs httpGet, tcpSocket or exec")),
        _ => return Err(Problem::at(at, "may have only one of httpGet, tcpSocket and exec")),
    }
    if probe.exec.as_ref().is_some_and(|exec| exec.command.is_empty()) {
        return Err(Problem::at(format!("{at}.exec.command"), "needs a program to run"));
    }
    let at_least_one = [
        ("periodSeconds", probe.period_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ];
    for (field, value) in at_least_one {
        if value == 0 {
            return Err(Problem::at(format!("{at}.{field}"), "must be at least 1"));
        }
    }
    let http = probe.http_get.as_ref().map(|action| (&action.port, "httpGet"));
    let tcp = probe.tcp_socket.as_ref().map(|action| (&action.port, "tcpSocket"));
    for (port, action) in http.into_iter().chain(tcp) {
        if let super::IntOrString::String(name) = port
            && !ports.iter().any(|p| p.name == *name)
        {
            let known: Vec<_> = ports.iter().map(|p| p.name.as_str()).filter(|name| !name.is_empty()).collect();
            let message = format!("the container has no port named {name:?}; it has [{}]", known.join(", "));
            return Err(Problem::at(format!("{at}.{action}.port"), message));
        }
    }
    Ok(())
}

pub(super) fn container_ports(ports: &Vec<ContainerPort>, _: &mut Context) -> Check {
    no_duplicates(ports.iter().map(|p| p.name.as_str()), ".name", "port name")?;
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        if !seen.insert((port.protocol.as_str(), port.container_port)) {
            let message = format!("port {} is listed twice", port.container_port);
            return Err(Problem::at(format!("[{i}].containerPort"), message));
        }
    }
    Ok(())
}

pub(super) fn env(env: &Vec<EnvVar>, cx: &mut Context) -> Check {
    for (i, var) in env.iter().enumerate() {
        if var.value.is_some() && var.value_from.is_some() {
            return Err(Problem::at(format!("[{i}]"), "has both value and valueFrom"));
        }
        if let Some(reference) = var.value_from.as_ref().and_then(|from| from.field_ref.as_ref())
            && !is_field_path(&reference.field_path)
        {
            let message = format!("{:?} is not a field a variable can have", reference.field_path);
            return Err(Problem::at(format!("[{i}].valueFrom.fieldRef.fieldPath"), message));
        }
    }
    // Kubernetes takes the last one, and warns too.
    if let Err(problem) = no_duplicates(env.iter().map(|v| v.name.as_str()), ".name", "variable") {
        let warning = format!("{}{}: {}; the later one counts", cx.path(), problem.at, problem.message);
        cx.warnings.push(warning);
    }
    Ok(())
}

fn is_field_path(path: &str) -> bool {
    const PLAIN: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    PLAIN.contains(&path)
        || ["metadata.labels['", "metadata.annotations['"]
            .iter()
            .any(|start| path.strip_prefix(start).and_then(|rest| rest.strip_suffix("']")).is_some())
}

pub(super) fn env_name(name: &String, _: &mut Context) -> Check {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Problem::here(format!("{name:?} is no name of a variable: not empty, no '='")));
    }
    Ok(())
}

pub(super) fn deployment_spec(spec: &DeploymentSpec, _: &mut Context) -> Check {
    if spec.selector.match_labels.is_empty() && spec.selector.match_expressions.is_empty() {
        return Err(Problem::at(".selector", "must not be empty: it says which pods belong to the Deployment"));
    }
    if !spec.selector.matches(&spec.template.metadata.labels) {
        return Err(Problem::at(".selector", "does not match spec.template.metadata.labels"));
    }
    Ok(())
}

pub(super) fn service_ports(ports: &Vec<ServicePort>, _: &mut Context) -> Check {
    no_duplicates(ports.iter().map(|p| p.name.as_str()), ".name", "port name")?;
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        if ports.len() > 1 && port.name.is_empty() {
            return Err(Problem::at(format!("[{i}].name"), "is required when there are several ports"));
        }
        if !seen.insert((port.protocol.as_str(), port.port)) {
            return Err(Problem::at(format!("[{i}].port"), format!("port {} is listed twice", port.port)));
        }
    }
    Ok(())
}

pub(super) fn traffic_distribution(value: &Option<String>, _: &mut Context) -> Check {
    const KNOWN: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    match value.as_deref() {
        None => Ok(()),
        Some(value) if KNOWN.contains(&value) => Ok(()),
        Some(value) => Err(Problem::here(format!("{value:?} is not one of {}", KNOWN.join(", ")))),
    }
}

pub(super) fn service_spec(spec: &ServiceSpec, cx: &mut Context) -> Check {
    match spec.kind {
        ServiceType::ClusterIp => {}
        ServiceType::NodePort | ServiceType::LoadBalancer => {
            cx.warnings.push(format!("spec.type {}: acts as ClusterIP inside the mesh", spec.kind));
        }
        ServiceType::ExternalName => {
            cx.warnings.push("spec.type ExternalName: not part of the mesh, so the service is left out".to_owned());
            return Ok(());
        }
    }
    if spec.ports.is_empty() && !spec.is_headless() {
        return Err(Problem::at(".ports", "needs at least one port"));
    }
    let all: Vec<&String> =
        std::iter::once(&spec.cluster_ip).filter(|ip| !ip.is_empty()).chain(&spec.cluster_ips).collect();
    if let Some(wrong) = all.iter().find(|ip| ***ip != HEADLESS && ip.parse::<IpAddr>().is_err()) {
        return Err(Problem::at(".clusterIP", format!("{wrong:?} is neither an IP address nor None")));
    }
    if spec.is_headless() && all.iter().any(|ip| *ip != HEADLESS) {
        return Err(Problem::at(".clusterIPs", "None and addresses exclude each other"));
    }
    if !spec.cluster_ip.is_empty() && spec.cluster_ips.first().is_some_and(|first| *first != spec.cluster_ip) {
        return Err(Problem::at(".clusterIPs[0]", "must equal clusterIP"));
    }
    if spec.cluster_ips.len() > 2 || spec.ip_families.len() > 2 {
        return Err(Problem::at(".clusterIPs", "may hold one address per family"));
    }
    if let [first, second] = spec.virtual_addresses()[..]
        && first.is_ipv4() == second.is_ipv4()
    {
        return Err(Problem::at(".clusterIPs", "may hold one address per family"));
    }
    if let [first, second] = spec.ip_families[..] {
        if first == second {
            return Err(Problem::at(".ipFamilies", format!("{first} is listed twice")));
        }
        if spec.ip_family_policy.is_none_or(|policy| policy == IpFamilyPolicy::SingleStack) {
            return Err(Problem::at(".ipFamilyPolicy", "must be PreferDualStack or RequireDualStack for two families"));
        }
    }
    Ok(())
}

/// What only the whole object shows.
pub(super) fn object(object: &Object) -> Check {
    let Object::EndpointSlice(slice) = object else { return Ok(()) };
    for (i, endpoint) in slice.endpoints.iter().enumerate() {
        for (j, text) in endpoint.addresses.iter().enumerate() {
            let address = text.parse::<IpAddr>();
            let fits = match slice.address_type {
                AddressType::Ipv4 => address.is_ok_and(|address| address.is_ipv4()),
                AddressType::Ipv6 => address.is_ok_and(|address| address.is_ipv6()),
                AddressType::Fqdn => subdomain(text).is_ok(),
            };
            if !fits {
                let at = format!("endpoints[{i}].addresses[{j}]");
                return Err(Problem::at(at, format!("{text:?} is no {} address", slice.address_type)));
            }
        }
    }
    Ok(())
}

pub(super) fn slice_addresses(addresses: &Vec<String>, _: &mut Context) -> Check {
    if addresses.is_empty() {
        return Err(Problem::here("needs at least one address"));
    }
    Ok(())
}

// ---- policies -------------------------------------------------------------------------------

pub(super) fn not_empty<T>(items: &Vec<T>, _: &mut Context) -> Check {
    if items.is_empty() {
        // The standard's reading ("no restriction") is the opposite of what is usually meant.
        return Err(Problem::here("is an empty list; remove the field, or list what may match"));
    }
    Ok(())
}

pub(super) fn patterns(patterns: &Vec<String>, _: &mut Context) -> Check {
    for (i, pattern) in patterns.iter().enumerate() {
        let at = format!("[{i}]");
        if pattern.is_empty() {
            return Err(Problem::at(at, "must not be empty"));
        }
        let inner = pattern.strip_prefix('*').unwrap_or(pattern);
        let inner = if inner.len() == pattern.len() { inner.strip_suffix('*').unwrap_or(inner) } else { inner };
        if inner.contains('*') && !pattern.contains('{') {
            return Err(Problem::at(at, format!("{pattern:?}: '*' may stand only at one end")));
        }
    }
    Ok(())
}

pub(super) fn service_accounts(accounts: &Vec<String>, _: &mut Context) -> Check {
    for (i, account) in accounts.iter().enumerate() {
        let (namespace, name) = account.split_once('/').map_or((None, account.as_str()), |(ns, n)| (Some(ns), n));
        if namespace.is_some_and(|ns| label(ns).is_err()) || subdomain(name).is_err() {
            let message = format!("{account:?} is neither `account` nor `namespace/account` (no wildcards)");
            return Err(Problem::at(format!("[{i}]"), message));
        }
    }
    Ok(())
}

pub(super) fn ports(ports: &Vec<String>, _: &mut Context) -> Check {
    for (i, port) in ports.iter().enumerate() {
        if port.parse::<u16>().map_or(true, |port| port == 0) {
            return Err(Problem::at(format!("[{i}]"), format!("{port:?} is not a port number (1 to 65535)")));
        }
    }
    Ok(())
}

pub(super) fn source(source: &Source, cx: &mut Context) -> Check {
    if *source == Source::default() {
        return Err(Problem::here("must restrict something, such as principals or namespaces"));
    }
    let by_account = !source.service_accounts.is_empty() || !source.not_service_accounts.is_empty();
    let by_name = [&source.principals, &source.not_principals, &source.namespaces, &source.not_namespaces];
    if by_account && by_name.iter().any(|list| !list.is_empty()) {
        return Err(Problem::at(".serviceAccounts", "can't be combined with principals or namespaces"));
    }
    for principal in source.principals.iter().chain(&source.not_principals) {
        if principal.starts_with("spiffe://") {
            let path = cx.path();
            cx.warnings
                .push(format!("{path}: principal {principal:?} is written without spiffe://; read as if it were"));
        }
    }
    Ok(())
}

pub(super) fn operation(operation: &Operation, _: &mut Context) -> Check {
    if *operation == Operation::default() {
        return Err(Problem::here("must restrict something, such as ports"));
    }
    Ok(())
}

/// Attributes a condition may name (Istio's list).
const CONDITION_KEYS: [&str; 13] = [
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "source.ip",
    "source.namespace",
    "source.principal",
    "source.serviceAccount",
    "remote.ip",
    "destination.ip",
    "destination.port",
    "connection.sni",
    "request.headers[",
    "request.auth.claims[",
];

pub(super) fn condition_key(key: &String, _: &mut Context) -> Check {
    let known = CONDITION_KEYS.iter().any(|known| match known.strip_suffix('[') {
        Some(_) => key.starts_with(known) && key.ends_with(']'),
        None => key == known,
    });
    if known || key.starts_with("experimental.") {
        return Ok(());
    }
    Err(Problem::here(match crate::suggest::did_you_mean(key, CONDITION_KEYS) {
        Some(meant) => format!("unknown attribute {key:?}; did you mean {meant}?"),
        None => format!("unknown attribute {key:?}"),
    }))
}

pub(super) fn authorization_spec(spec: &AuthorizationPolicySpec, cx: &mut Context) -> Check {
    if spec.selector.is_some() && (spec.target_ref.is_some() || !spec.target_refs.is_empty()) {
        return Err(Problem::here("selector and targetRefs exclude each other"));
    }
    if spec.target_ref.is_some() && !spec.target_refs.is_empty() {
        return Err(Problem::here("targetRef and targetRefs exclude each other"));
    }
    match (spec.action, &spec.provider) {
        (PolicyAction::Custom, None) => return Err(Problem::at(".provider", "is required by action CUSTOM")),
        (PolicyAction::Custom, Some(_)) | (_, None) => {}
        (_, Some(_)) => return Err(Problem::at(".provider", "goes with action CUSTOM only")),
    }
    if spec.action == PolicyAction::Deny && spec.rules.is_empty() {
        cx.warnings.push("a DENY policy without rules denies nothing".to_owned());
    }
    for (i, rule) in spec.rules.iter().enumerate() {
        for (j, when) in rule.when.iter().enumerate() {
            let at = format!(".rules[{i}].when[{j}]");
            if when.values.is_empty() && when.not_values.is_empty() {
                return Err(Problem::at(at, "needs values or notValues"));
            }
            for value in when.values.iter().chain(&when.not_values) {
                condition_value(&when.key, value).map_err(|why| Problem::at(at.clone(), why))?;
            }
        }
    }
    Ok(())
}

fn condition_value(key: &str, value: &str) -> Result<(), String> {
    match key {
        _ if value.is_empty() => Err("a value must not be empty".to_owned()),
        "source.ip" | "destination.ip" | "remote.ip" => value.parse::<IpBlock>().map(|_| ()),
        "destination.port" if value.parse::<u16>().map_or(true, |port| port == 0) => {
            Err(format!("{value:?} is not a port number (1 to 65535)"))
        }
        _ => Ok(()),
    }
}

pub(super) fn peer_authentication_spec(spec: &PeerAuthenticationSpec, cx: &mut Context) -> Check {
    let selects = spec.selector.as_ref().is_some_and(|selector| !selector.match_labels.is_empty());
    if !spec.port_level_mtls.is_empty() && !selects {
        return Err(Problem::at(".portLevelMtls", "needs a selector: ports differ from workload to workload"));
    }
    let own = [("spec.mtls".to_owned(), &spec.mtls)];
    let ports = spec.port_level_mtls.iter().map(|(port, mtls)| (format!("spec.portLevelMtls.{}", port.0), mtls));
    for (at, _) in own.into_iter().chain(ports).filter(|(_, mtls)| mtls.mode == MutualTlsMode::Disable) {
        cx.warnings.push(format!("{at}.mode DISABLE: acts as PERMISSIVE, so mTLS stays accepted"));
    }
    Ok(())
}
