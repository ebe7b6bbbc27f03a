//! Finds the pod, service or address that a person's input refers to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{Mesh, Service, ServiceName, Transport, Workload};
use serde::{Serialize, Serializer};

/// A person's input refers to nothing in this mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// Not of the accepted forms.
    #[error("{0:?} is not understood; expected NAMESPACE/NAME of a pod, Service, Deployment, StatefulSet or Job")]
    Form(String),
    /// No port, or none from 1 to 65535.
    #[error("{0:?} has no port; expected NAME:PORT or IP:PORT, with /udp after it for UDP")]
    Port(String),
    /// A port's name that is none.
    #[error("{text:?}: there is no port called {name}{}", PortNames(.known))]
    PortName {
        /// The name.
        name: String,
        /// All that was asked for.
        text: String,
        /// Names of ports there.
        known: Vec<String>,
    },
    /// Nobody is called that.
    #[error("no running pod, Service, Deployment, StatefulSet or Job is called {name}{}", Known(.known))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names in that namespace.
        known: Vec<String>,
    },
    /// A name outside of the mesh.
    #[error(
        "{0} is no name of this mesh: the node's resolvers answer it, and the connection passes as the program sends it; ask for its \
         IP address instead"
    )]
    Outside(String),
    /// A service without endpoints was given as source.
    #[error("service {0} has no endpoints, so nobody can connect from it; check its selector or its EndpointSlices")]
    Empty(String),
}

/// A destination that a person named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// An address.
    Address(SocketAddr),
    /// A service that has no address and no endpoint with one.
    Unaddressed {
        /// The service.
        service: ServiceName,
        /// Its port.
        port: u16,
    },
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self::Address(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Unaddressed { service, port } => write!(f, "{service}:{port}"),
        }
    }
}

impl Serialize for Destination {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct PortNames<'a>(&'a [String]);

impl fmt::Display for PortNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("; write its number, for no port has a name there"),
            known => write!(f, "; there are {}", known.join(", ")),
        }
    }
}

struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LISTED: usize = 8;
        if self.0.is_empty() {
            return f.write_str("; its namespace has none at all");
        }
        let more = if self.0.len() > LISTED { ", ..." } else { "" };
        write!(f, "; its namespace has {}{more}", self.0[..self.0.len().min(LISTED)].join(", "))
    }
}

/// What a person wants to connect to, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// TCP unless `/udp` was written.
    pub transport: Transport,
    /// The addresses, one of each family; of a headless service or of what makes pods, those of all pods. Never empty.
    pub destinations: Vec<Destination>,
}

/// The workloads that a name means: a pod, or else the endpoints of a service, or else the pods of what makes pods, such as a
/// Deployment.
///
/// # Errors
/// If nothing has that name.
pub fn find_workloads<'m>(mesh: &'m Mesh, name: &str) -> Result<Vec<&'m Arc<Workload>>, LookupError> {
    let (namespace, short) = split(name).ok_or_else(|| LookupError::Form(name.to_owned()))?;
    match find(mesh, namespace, short) {
        Some(Found::Pods(pods)) => Ok(pods),
        Some(Found::Service(service)) => {
            let mut workloads: Vec<_> = mesh.endpoints(&service.id).map(|e| &e.workload).collect();
            workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
            let made = || pods_of_owner(mesh, namespace, short);
            match (workloads.is_empty(), made()) {
                (false, _) => Ok(workloads),
                (true, pods) if !pods.is_empty() => Ok(pods),
                _ => Err(LookupError::Empty(name.to_owned())),
            }
        }
        None => Err(not_found(mesh, namespace, name)),
    }
}

/// What `NAME:PORT` or `IP:PORT` means to a program of `source`; a `/udp` after it asks for UDP. A name is `NAMESPACE/NAME`, a
/// DNS name such as `web.shop.svc.cluster.local`, or a bare one in the source's own namespace, of a service, a pod, or what makes
/// pods. A port is a number, or a name that the service has for it; where a service has but one it may be left out.
///
/// # Errors
/// If there is no such thing, or no port.
pub fn find_target(mesh: &Mesh, source: &Workload, text: &str) -> Result<Target, LookupError> {
    let (address, transport) = match text.rsplit_once('/') {
        Some((address, "udp" | "UDP")) => (address, Transport::Udp),
        Some((address, "tcp" | "TCP")) => (address, Transport::Tcp),
        _ => (text, Transport::Tcp),
    };
    let target = |destinations| Ok(Target { transport, destinations });
    if let Ok(address) = address.parse::<SocketAddr>() {
        return target(vec![address.into()]);
    }
    let (name, port) = match address.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (address, None),
    };
    let found = named(mesh, source, name)?;
    let port = port_of(mesh, &found, port, transport, text)?;
    let at = |ip: &IpAddr| Destination::from(SocketAddr::new(*ip, port));
    match found {
        Found::Pods(pods) => target(pods.iter().flat_map(|pod| &pod.addresses).map(at).collect()),
        Found::Service(service) => {
            let own = service.addresses.iter().filter(|a| a.network == source.network).map(|a| &a.address);
            let mut found: Vec<_> = own.map(at).collect();
            if found.is_empty() {
                let mut own: Vec<_> = mesh.endpoints(&service.id).flat_map(|e| &e.workload.addresses).collect();
                own.sort();
                found = own.into_iter().map(at).collect();
            }
            if found.is_empty() {
                found.push(Destination::Unaddressed { service: service.id.clone(), port });
            }
            target(found)
        }
    }
}

/// What a name means.
enum Found<'m> {
    Service(&'m Arc<Service>),
    Pods(Vec<&'m Arc<Workload>>),
}

/// A name in any of its forms.
fn named<'m>(mesh: &'m Mesh, source: &Workload, name: &str) -> Result<Found<'m>, LookupError> {
    if let Some((namespace, short)) = split(name) {
        return find_destination(mesh, namespace, short).ok_or_else(|| not_found(mesh, namespace, name));
    }
    if name.is_empty() || name.contains('/') {
        return Err(LookupError::Form(name.to_owned()));
    }
    // Shorter forms are completed as a resolver in the source's pod does.
    let labels: Vec<&str> = name.trim_end_matches('.').split('.').collect();
    let found = match labels[..] {
        [short] => find_destination(mesh, &source.namespace, short),
        [short, namespace] | [short, namespace, "svc", ..] => find_destination(mesh, namespace, short),
        _ => None,
    };
    let of_service = |pod: &str, service: &str, namespace: &str| {
        let service = find_service(mesh, namespace, service)?;
        let endpoint = mesh.endpoints(&service.id).find(|endpoint| &*endpoint.workload.name == pod)?;
        Some(Found::Pods(vec![&endpoint.workload]))
    };
    let of_pod = || match labels[..] {
        [pod, service] => of_service(pod, service, &source.namespace),
        [pod, service, namespace, "svc", ..] | [pod, service, namespace] => of_service(pod, service, namespace),
        _ => None,
    };
    let by_hostname = || mesh.service_by_hostname(name.trim_end_matches('.'), &source.namespace).map(Found::Service);
    let found = found.or_else(of_pod).or_else(by_hostname);
    found.ok_or_else(|| match labels[..] {
        [_] => not_found(mesh, &source.namespace, name),
        [_, namespace, "svc", ..] => not_found(mesh, namespace, name),
        [_, namespace] if has_namespace(mesh, namespace) => not_found(mesh, namespace, name),
        _ => LookupError::Outside(name.to_owned()),
    })
}

/// The number of a port, by number, by name or because there is but one.
fn port_of(
    mesh: &Mesh,
    found: &Found<'_>,
    port: Option<&str>,
    transport: Transport,
    text: &str,
) -> Result<u16, LookupError> {
    if let Some(number) = port.and_then(|port| port.parse::<u16>().ok()) {
        return if number == 0 { Err(LookupError::Port(text.to_owned())) } else { Ok(number) };
    }
    // A pod has the names that the services in front of it have for its ports.
    let services: Vec<&Arc<Service>> = match found {
        Found::Service(service) => vec![service],
        Found::Pods(pods) => {
            let of_pods = pods.iter().flat_map(|pod| pod.services.keys());
            of_pods.filter_map(|id| mesh.service(id)).collect()
        }
    };
    let is_service = matches!(found, Found::Service(_));
    let Some(name) = port else {
        let mut all = services.iter().flat_map(|service| &service.ports).filter(|port| port.transport == transport);
        return match (is_service, all.next(), all.next()) {
            (true, Some(port), None) => Ok(port.service_port),
            _ => Err(LookupError::Port(text.to_owned())),
        };
    };
    let by_name = services.iter().find_map(|service| {
        let port = service.port_named(name, transport)?;
        if is_service {
            return Some(port.service_port);
        }
        let Found::Pods(pods) = found else { return None };
        mesh.endpoints(&service.id)
            .find(|endpoint| pods.iter().any(|pod| pod.uid == endpoint.workload.uid))?
            .target_port(port)
    });
    by_name.ok_or_else(|| {
        let known = services.iter().flat_map(|service| &service.port_names).filter(|port| port.transport == transport);
        let mut known: Vec<String> = known.map(|port| port.name.to_string()).collect();
        known.sort();
        known.dedup();
        LookupError::PortName { name: name.to_owned(), text: text.to_owned(), known }
    })
}

fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('/').filter(|(namespace, short)| !namespace.is_empty() && !short.is_empty() && !short.contains('/'))
}

/// What a name means as a source: a pod before a service.
fn find<'m>(mesh: &'m Mesh, namespace: &str, name: &str) -> Option<Found<'m>> {
    let pod = find_pod(mesh, namespace, name).map(|pod| Found::Pods(vec![pod]));
    pod.or_else(|| find_service(mesh, namespace, name).map(Found::Service)).or_else(|| made(mesh, namespace, name))
}

/// What a name means as a destination: a service before a pod.
fn find_destination<'m>(mesh: &'m Mesh, namespace: &str, name: &str) -> Option<Found<'m>> {
    let service = find_service(mesh, namespace, name).map(Found::Service);
    service
        .or_else(|| find_pod(mesh, namespace, name).map(|pod| Found::Pods(vec![pod])))
        .or_else(|| made(mesh, namespace, name))
}

fn made<'m>(mesh: &'m Mesh, namespace: &str, owner: &str) -> Option<Found<'m>> {
    Some(pods_of_owner(mesh, namespace, owner)).filter(|pods| !pods.is_empty()).map(Found::Pods)
}

/// The pods of what makes pods, by name.
fn pods_of_owner<'m>(mesh: &'m Mesh, namespace: &str, owner: &str) -> Vec<&'m Arc<Workload>> {
    let owned = mesh.workloads().filter(|w| &*w.namespace == namespace && &*w.workload_name == owner);
    let mut owned: Vec<_> = owned.collect();
    owned.sort_by(|a, b| a.name.cmp(&b.name));
    owned
}

fn find_pod<'m>(mesh: &'m Mesh, namespace: &str, name: &str) -> Option<&'m Arc<Workload>> {
    mesh.workloads().find(|w| &*w.namespace == namespace && &*w.name == name)
}

fn find_service<'m>(mesh: &'m Mesh, namespace: &str, name: &str) -> Option<&'m Arc<Service>> {
    mesh.services().find(|s| &*s.id.namespace == namespace && (&*s.name == name || &*s.id.hostname == name))
}

fn has_namespace(mesh: &Mesh, namespace: &str) -> bool {
    mesh.workloads().any(|w| &*w.namespace == namespace) || mesh.services().any(|s| &*s.id.namespace == namespace)
}

fn not_found(mesh: &Mesh, namespace: &str, name: &str) -> LookupError {
    let pods = mesh.workloads().filter(|w| &*w.namespace == namespace).map(|w| w.name.to_string());
    let services = mesh.services().filter(|s| &*s.id.namespace == namespace).map(|s| s.name.to_string());
    let mut known: Vec<String> = pods.chain(services).collect();
    known.sort();
    known.dedup();
    LookupError::Unknown { name: name.to_owned(), known }
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
