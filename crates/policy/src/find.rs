//! What a person means who types a pod, a service or an address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{Mesh, Service, ServiceName, Workload};
use serde::{Serialize, Serializer};

/// What a person types for a workload or destination means nothing in this mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// Not of the accepted forms.
    #[error("{0:?} is not understood; expected NAMESPACE/POD or NAMESPACE/SERVICE")]
    Form(String),
    /// No port, or none from 1 to 65535.
    #[error("{0:?} has no port; expected NAMESPACE/POD:PORT, NAMESPACE/SERVICE:PORT or IP:PORT")]
    Port(String),
    /// Nobody is called that.
    #[error("no pod or service {name} is known{}", Known(.known))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names in that namespace.
        known: Vec<String>,
    },
    /// A service without endpoints, as source.
    #[error("service {0} has no endpoints, so nobody can connect from it; check its selector or its EndpointSlices")]
    Empty(String),
}

/// What a person wants to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// An address.
    Address(SocketAddr),
    /// A service that has neither an address nor an endpoint with one.
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

/// The workloads that `namespace/name` means: a pod, or else the endpoints of a service.
///
/// # Errors
/// If there is no such thing.
pub fn find_workloads<'m>(mesh: &'m Mesh, name: &str) -> Result<Vec<&'m Arc<Workload>>, LookupError> {
    let (namespace, short) = split(name)?;
    if let Some(workload) = find_pod(mesh, namespace, short) {
        return Ok(vec![workload]);
    }
    let Some(service) = find_service(mesh, namespace, short) else { return Err(not_found(mesh, namespace, name)) };
    let mut workloads: Vec<_> = mesh.endpoints(&service.id).map(|e| &e.workload).collect();
    workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
    if workloads.is_empty() { Err(LookupError::Empty(name.to_owned())) } else { Ok(workloads) }
}

/// The addresses that `NAMESPACE/SERVICE:PORT`, `NAMESPACE/POD:PORT` or `IP:PORT` means to
/// `source`, one of each family: what a program there would connect to. Of a headless service,
/// those of all endpoints. Never empty.
///
/// # Errors
/// If there is no such thing, or no port.
pub fn find_destinations(mesh: &Mesh, source: &Workload, text: &str) -> Result<Vec<Destination>, LookupError> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![address.into()]);
    }
    let port = |digits: &str| digits.parse::<u16>().ok().filter(|port| *port != 0);
    let (name, port) = text
        .rsplit_once(':')
        .and_then(|(name, digits)| Some((name, port(digits)?)))
        .ok_or_else(|| LookupError::Port(text.to_owned()))?;
    let (namespace, short) = split(name)?;
    let at = |ip: &IpAddr| Destination::from(SocketAddr::new(*ip, port));
    if let Some(service) = find_service(mesh, namespace, short) {
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
        return Ok(found);
    }
    let workload = find_pod(mesh, namespace, short).ok_or_else(|| not_found(mesh, namespace, name))?;
    Ok(workload.addresses.iter().map(at).collect())
}

fn split(name: &str) -> Result<(&str, &str), LookupError> {
    name.split_once('/')
        .filter(|(namespace, short)| !namespace.is_empty() && !short.is_empty() && !short.contains('/'))
        .ok_or_else(|| LookupError::Form(name.to_owned()))
}

fn find_pod<'m>(mesh: &'m Mesh, namespace: &str, name: &str) -> Option<&'m Arc<Workload>> {
    mesh.workloads().find(|w| &*w.namespace == namespace && &*w.name == name)
}

fn find_service<'m>(mesh: &'m Mesh, namespace: &str, name: &str) -> Option<&'m Arc<Service>> {
    mesh.services().find(|s| &*s.id.namespace == namespace && (&*s.name == name || &*s.id.hostname == name))
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
