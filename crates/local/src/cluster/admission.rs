//! Checks that need the whole set of manifests: references to missing objects, addresses and ports claimed twice. Also
//! the defaults that an API server would fill in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Name, RESERVED_PORTS};
use leno_objects::{
    IntOrString, IpFamily, IpFamilyPolicy, Kind, Namespace, Object, ObjectKey, ObjectMeta, PodSpec, PodTemplateSpec,
    Protocol, Service, ServiceSpec, ServiceType, StatefulSet, VolumeMount, selects,
};

use crate::Error;
use crate::cluster::addresses::{CLUSTER_DNS, VirtualAddresses};
use crate::cluster::config::Config;
use crate::files::{Manifests, Sourced};

/// Namespaces every cluster has without anybody declaring them.
const GIVEN: [&str; 3] = ["default", "istio-system", "kube-system"];

/// Checks a set of manifests against the stage's nodes and completes it: namespaces that are
/// used but not declared, and virtual addresses of services. Returns further warnings.
///
/// # Errors
/// [`Error::Manifest`] with every mistake on its own line, each starting with its place.
pub(crate) fn complete(manifests: &mut Manifests, nodes: &[String], ipv6: bool) -> Result<Vec<String>, Error> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    namespaces(manifests, &mut warnings);
    let config = Config::of(manifests.objects.iter().map(|(key, sourced)| (key, &sourced.object)));
    for (place, key, metadata, spec) in pods(manifests) {
        let at = format!("{place}{key}");
        if spec.host_network {
            problems.push(format!("{at}: spec.hostNetwork is not possible here: every pod has its own network"));
        }
        if !spec.node_name.is_empty() && !nodes.iter().any(|node| **node == *spec.node_name) {
            let list = nodes.join(", ");
            problems.push(format!("{at}: there is no node {}; the nodes are {list} (see --nodes)", spec.node_name));
        }
        for container in spec.all_containers().filter(|container| container.command.is_empty()) {
            problems.push(format!(
                "{at}: container {} has no command: Leno runs local processes, not images; say what to run in command",
                container.name
            ));
        }
        problems.extend(config.dangling(&metadata.namespace, spec).into_iter().map(|why| format!("{at}: {why}")));
        let claims = manifests.objects.get(&key).map_or_else(Vec::new, |sourced| claims(&sourced.object));
        problems.extend(mounts(spec, &claims).into_iter().map(|why| format!("{at}: {why}")));
        let account = ObjectKey::new(Kind::ServiceAccount, metadata.namespace.clone(), spec.account());
        if spec.account() != "default" && !manifests.objects.contains_key(&account) {
            warnings.push(format!("{at}: {account} is not declared; the pod gets its identity all the same"));
        }
        reserved_ports(&at, spec, &mut warnings);
    }
    services(manifests, &mut problems, &mut warnings);
    if !problems.is_empty() {
        return Err(Error::Manifest(problems.join("\n")));
    }
    assign_addresses(manifests, ipv6);
    Ok(warnings)
}

/// Every pod specification there is, own or in a template: place, object, metadata, spec.
fn pods(manifests: &Manifests) -> Vec<(String, ObjectKey, ObjectMeta, &PodSpec)> {
    let mut found = Vec::new();
    for (key, sourced) in &manifests.objects {
        let place = place(sourced);
        match &*sourced.object {
            Object::Pod(pod) => found.push((place, key.clone(), pod.metadata.clone(), &pod.spec)),
            other => {
                if let Some(template) = template(other) {
                    let mut metadata = template.metadata.clone();
                    metadata.namespace.clone_from(&key.namespace);
                    found.push((place, key.clone(), metadata, &template.spec));
                }
            }
        }
    }
    found
}

/// What the pods should be that an object makes.
fn template(object: &Object) -> Option<&PodTemplateSpec> {
    match object {
        Object::Deployment(deployment) => Some(&deployment.spec.template),
        Object::StatefulSet(set) => Some(&set.spec.template),
        Object::Job(job) => Some(&job.spec.template),
        _ => None,
    }
}

/// The volumes that a StatefulSet gives each of its pods.
fn claims(object: &Object) -> Vec<Name> {
    let set = StatefulSet::of(object);
    set.map_or_else(Vec::new, |set| {
        set.spec.volume_claim_templates.iter().map(|claim| claim.metadata.name.clone()).collect()
    })
}

/// Mounts of volumes that there are not, or that containers of one pod have at the same path: they share their files here.
fn mounts(spec: &PodSpec, claims: &[Name]) -> Vec<String> {
    let mut found = Vec::new();
    let mut at_path: BTreeMap<&str, (&str, &VolumeMount)> = BTreeMap::new();
    for container in spec.all_containers() {
        for mount in &container.volume_mounts {
            let known = spec.volumes.iter().any(|volume| volume.name == mount.name)
                || claims.iter().any(|claim| **claim == *mount.name);
            if !known {
                let known: Vec<_> = spec.volumes.iter().map(|volume| volume.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                found.push(format!(
                    "container {}: volumeMounts: there is no volume {}; there are: {known}",
                    container.name, mount.name
                ));
            }
            let path = mount.mount_path.trim_matches('/');
            match at_path.insert(path, (&container.name, mount)) {
                Some((other, there)) if there.name != mount.name || there.sub_path != mount.sub_path => {
                    found.push(format!(
                        "container {} mounts volume {} at /{path}, where container {other} has volume {}: the containers \
                         of a pod share their files here, so give them different paths",
                        container.name, mount.name, there.name
                    ));
                }
                _ => {}
            }
        }
    }
    found
}

fn place(sourced: &Sourced) -> String {
    sourced.origin.as_ref().map_or_else(String::new, |origin| format!("{origin}: "))
}

fn namespaces(manifests: &mut Manifests, warnings: &mut Vec<String>) {
    let mut used: BTreeMap<Name, String> = GIVEN.iter().map(|name| ((*name).into(), String::new())).collect();
    for (key, sourced) in &manifests.objects {
        if key.kind.is_namespaced() {
            used.entry(key.namespace.clone()).or_insert_with(|| place(sourced));
        }
    }
    for (name, place) in used {
        let key = ObjectKey::new(Kind::Namespace, "", name.clone());
        if manifests.objects.contains_key(&key) {
            continue;
        }
        if !GIVEN.contains(&&*name) {
            warnings.push(format!("{place}Namespace {name} is not declared; it is made without labels"));
        }
        let mut metadata = ObjectMeta { name: name.clone(), ..ObjectMeta::default() };
        // The API server labels every namespace like this, and selectors may use it.
        metadata.labels.insert("kubernetes.io/metadata.name".into(), name);
        let object = Arc::new(Object::Namespace(Namespace { metadata }));
        manifests.objects.insert(key, Sourced { object, origin: None });
    }
}

fn reserved_ports(at: &str, spec: &PodSpec, warnings: &mut Vec<String>) {
    for container in spec.serving_containers() {
        for port in container.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
            let number = port.container_port.0;
            if RESERVED_PORTS.contains(&number) {
                let name = &container.name;
                warnings.push(format!(
                    "{at}: container {name} listens on {number}, where a pod in the mesh can't be reached"
                ));
            }
        }
    }
}

fn services(manifests: &Manifests, problems: &mut Vec<String>, warnings: &mut Vec<String>) {
    let mut addresses: BTreeMap<IpAddr, ObjectKey> = BTreeMap::new();
    for (key, sourced) in &manifests.objects {
        let at = format!("{}{key}", place(sourced));
        let Object::Service(service) = &*sourced.object else { continue };
        for address in service.spec.virtual_addresses() {
            if address == IpAddr::from(CLUSTER_DNS) {
                problems.push(format!("{at}: clusterIP {address} is the cluster's DNS server"));
            }
            if let Some(other) = addresses.insert(address, key.clone()) {
                problems.push(format!("{at}: clusterIP {address} is taken by {other}"));
            }
        }
        endpoints(manifests, key, &at, service, warnings);
    }
}

/// A service nobody serves, or a port name nobody has, is legal but seldom meant.
fn endpoints(manifests: &Manifests, key: &ObjectKey, at: &str, service: &Service, warnings: &mut Vec<String>) {
    if service.spec.kind == ServiceType::ExternalName {
        // Decoding has said that it is left out.
        return;
    }
    let slices = manifests.objects.values().any(|sourced| {
        matches!(&*sourced.object, Object::EndpointSlice(slice)
            if slice.metadata.namespace == key.namespace && slice.service() == Some(&key.name))
    });
    if slices {
        return;
    }
    if service.spec.selector.is_empty() {
        warnings.push(format!("{at}: has neither a selector nor an EndpointSlice, so it has no endpoints"));
        return;
    }
    let selected: Vec<_> = pods(manifests)
        .into_iter()
        .filter(|(_, _, metadata, _)| {
            metadata.namespace == key.namespace && selects(&service.spec.selector, &metadata.labels)
        })
        .collect();
    if selected.is_empty() {
        warnings.push(format!("{at}: no pod has the labels it selects, so it has no endpoints"));
        return;
    }
    for port in &service.spec.ports {
        let Some(IntOrString::String(name)) = &port.target_port else { continue };
        let has = |spec: &PodSpec| {
            spec.serving_containers().flat_map(|container| &container.ports).any(|port| port.name == *name)
        };
        if !selected.iter().any(|(_, _, _, spec)| has(spec)) {
            let number = port.port;
            warnings
                .push(format!("{at}: no container it selects has a port named {name}, so port {number} leads nowhere"));
        }
    }
}

fn assign_addresses(manifests: &mut Manifests, ipv6: bool) {
    let mut pool = VirtualAddresses::default();
    for sourced in manifests.objects.values() {
        if let Object::Service(service) = &*sourced.object {
            for address in service.spec.virtual_addresses() {
                pool.reserve(address);
            }
        }
    }
    let mut done = BTreeSet::new();
    for (key, sourced) in &mut manifests.objects {
        let Object::Service(service) = &*sourced.object else { continue };
        let spec = &service.spec;
        if spec.kind == ServiceType::ExternalName || !done.insert(key.clone()) {
            continue;
        }
        let mut service = service.clone();
        service.spec.ip_families = families(&service.spec, ipv6);
        if !service.spec.is_headless() && service.spec.virtual_addresses().is_empty() {
            let (v4, v6) = pool.allocate(&key.namespace, &key.name);
            let of = |family: &IpFamily| match family {
                IpFamily::Ipv4 => v4.to_string(),
                IpFamily::Ipv6 => v6.to_string(),
            };
            let addresses: Vec<_> = service.spec.ip_families.iter().map(of).collect();
            service.spec.cluster_ip = addresses.first().cloned().unwrap_or_default();
            service.spec.cluster_ips = addresses;
        }
        sourced.object = Arc::new(Object::Service(service));
    }
}

/// The families a service has addresses of, as the API server of a dual-stack cluster whose
/// first family is IPv4 decides: one, unless it asks for two. Programs that listen on one family
/// only are common, and in the mesh a connect to the other seems to succeed.
fn families(spec: &ServiceSpec, ipv6: bool) -> Vec<IpFamily> {
    let mut families = spec.ip_families.clone();
    if families.is_empty() && !spec.cluster_ips.is_empty() {
        let given = spec.virtual_addresses();
        families = given.iter().map(|ip| if ip.is_ipv4() { IpFamily::Ipv4 } else { IpFamily::Ipv6 }).collect();
    }
    if families.is_empty() {
        families.push(IpFamily::Ipv4);
    }
    let wants_both = match spec.ip_family_policy {
        Some(IpFamilyPolicy::PreferDualStack | IpFamilyPolicy::RequireDualStack) => true,
        Some(IpFamilyPolicy::SingleStack) => false,
        // Nobody chooses the pods of a headless service without selector but its author.
        None => spec.is_headless() && spec.selector.is_empty(),
    };
    if wants_both {
        for family in [IpFamily::Ipv4, IpFamily::Ipv6] {
            if !families.contains(&family) {
                families.push(family);
            }
        }
    }
    families.retain(|family| ipv6 || *family == IpFamily::Ipv4);
    families
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
