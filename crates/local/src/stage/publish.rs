//! `--publish`: a port of the machine that leads to a service of the stage.
//!
//! Whoever connects is to the mesh what a client outside of it is: the connection goes from a node, in the clear, and gets as
//! far as policies let such a one.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_model::{Mesh, PolicyName, Transport};
use leno_objects::{Kind, Object, ObjectKey, Protocol, Service};
use leno_policy::ready_for_node;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::Error;
use crate::files::Manifests;
use crate::stage::journal::Journal;

/// Most connections at a time through one port: each holds two descriptors of the supervisor.
const MOST: usize = 1024;

/// Longest to wait for the service to take a connection: the proxy's own limits are shorter.
const CONNECT: Duration = Duration::from_secs(15);

/// A port of the machine and the service it is to lead to. Written `[ADDR:]PORT=NS/SVC:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    listen: SocketAddr,
    namespace: String,
    service: String,
    port: u16,
}

/// What is wrong with the text of a [`Publish`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write [ADDRESS:]PORT=NAMESPACE/SERVICE:PORT, for example 8080=shop/web:80: {0}")]
pub struct NotAPublish(&'static str);

impl FromStr for Publish {
    type Err = NotAPublish;

    fn from_str(text: &str) -> Result<Self, NotAPublish> {
        let (listen, service) = text.split_once('=').ok_or(NotAPublish("there is no ="))?;
        let listen = match listen.parse() {
            Ok(port) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
            Err(_) => listen.parse().map_err(|_| NotAPublish("before the = there is neither PORT nor ADDRESS:PORT"))?,
        };
        let (service, port) = service.rsplit_once(':').ok_or(NotAPublish("the service's port is missing"))?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(NotAPublish("the service's port is no number"))?;
        let (namespace, service) = service.split_once('/').ok_or(NotAPublish("the service's namespace is missing"))?;
        if namespace.is_empty() || service.is_empty() {
            return Err(NotAPublish("the service is missing"));
        }
        Ok(Self { listen, namespace: namespace.to_owned(), service: service.to_owned(), port })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.listen, self.target())
    }
}

impl Publish {
    /// Opens the port in this process's network namespace, so before `privilege` takes an ordinary user into another.
    ///
    /// # Errors
    /// [`Error::Refused`] with the next step.
    pub fn open(self) -> Result<Published, Error> {
        let opened = TcpListener::bind(self.listen).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        });
        let (address, listener) = opened.map_err(|reason| Error::Refused(self.refusal(&reason)))?;
        Ok(Published { to: self, address, listener: Arc::new(listener) })
    }

    fn refusal(&self, reason: &io::Error) -> String {
        let (ip, port) = (self.listen.ip(), self.listen.port());
        let step = match reason.kind() {
            io::ErrorKind::AddrInUse => format!(
                "another program listens there (`ss -ltnp sport = :{port}` shows which); choose another port, or 0 for any \
                 free one"
            ),
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 are for root; choose a higher one, as in 8080, or use sudo".to_owned()
            }
            io::ErrorKind::AddrNotAvailable => format!("this machine has no address {ip}; 127.0.0.1 is always there"),
            _ => reason.to_string(),
        };
        format!("--publish: cannot listen on {}: {step}", self.listen)
    }

    /// The service as a person writes it.
    pub(crate) fn target(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.service, self.port)
    }

    /// Checks that the manifests have such a service. It may go later.
    ///
    /// # Errors
    /// [`Error::Usage`], naming those that there are.
    pub(crate) fn check(&self, files: &Manifests) -> Result<(), Error> {
        let key = ObjectKey::new(Kind::Service, self.namespace.as_str(), self.service.as_str());
        let service = |object: &Object| Service::of(object).cloned();
        let Some(found) = files.objects.get(&key).and_then(|sourced| service(&sourced.object)) else {
            let known: Vec<_> = files.objects.keys().filter(|key| key.kind == Kind::Service).map(name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::Usage(format!("--publish: there is no Service {}; there are: {known}", name(&key))));
        };
        let ports: Vec<_> =
            found.spec.ports.iter().filter(|port| port.protocol == Protocol::Tcp).map(|port| port.port.0).collect();
        if ports.contains(&self.port) {
            return Ok(());
        }
        let known: Vec<_> = ports.iter().map(ToString::to_string).collect();
        let known = if known.is_empty() { "no TCP port".to_owned() } else { known.join(", ") };
        Err(Error::Usage(format!("--publish: Service {} has no TCP port {}; it has: {known}", name(&key), self.port)))
    }

    /// Where the `turn`th connection goes: to the pods that are ready, one after the other. A node has no route to the
    /// service's own address, which is for pods.
    fn way(&self, door: &Door, turn: usize) -> Option<Way> {
        let mesh = door.mesh.borrow().clone();
        let hostname = format!("{}.{}.svc.{}", self.service, self.namespace, door.cluster_domain);
        let service = mesh
            .services()
            .find(|service| *service.id.namespace == *self.namespace && *service.id.hostname == *hostname)?;
        let port =
            service.ports.iter().find(|port| port.service_port == self.port && port.transport == Transport::Tcp)?;
        let mut ready: Vec<Way> = ready_for_node(&mesh, service, &door.node)
            .filter_map(|endpoint| {
                let address = SocketAddr::new(*endpoint.workload.addresses.first()?, endpoint.target_port(port)?);
                let mut policies = endpoint.workload.authorization_policies.iter();
                let behind_waypoint = service.waypoint.is_some() && policies.any(PolicyName::is_through_waypoint);
                Some(Way { address, behind_waypoint })
            })
            .collect();
        ready.sort_by_key(|way| way.address);
        let count = ready.len();
        ready.get(turn.checked_rem(count)?).copied()
    }
}

/// Where a connection goes.
#[derive(Debug, Clone, Copy)]
struct Way {
    address: SocketAddr,
    /// Whether it may be refused because it has not passed the waypoint: only clients in the mesh are sent there.
    behind_waypoint: bool,
}

const BEHIND_WAYPOINT: &str = "the connection ended without an answer. The Service is behind a waypoint, to which only clients \
     in the mesh are sent. Publish one that is not, or let clients around the waypoint by the annotation \
     leno.mesh/waypoint-bypass: allowed";

fn name(key: &ObjectKey) -> String {
    format!("{}/{}", key.namespace, key.name)
}

/// An open port.
#[derive(Debug, Clone)]
pub struct Published {
    to: Publish,
    address: SocketAddr,
    listener: Arc<TcpListener>,
}

/// An open port, as `leno ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedListing {
    /// Address and port that the machine listens on.
    pub address: SocketAddr,
    /// `NAMESPACE/SERVICE:PORT` that it leads to.
    pub service: String,
}

impl Published {
    pub(crate) fn wanted(&self) -> &Publish {
        &self.to
    }

    pub(crate) fn listing(&self) -> PublishedListing {
        PublishedListing { address: self.address, service: self.to.target() }
    }
}

/// From where connections go into the stage.
#[derive(Clone)]
pub(crate) struct Door {
    pub node: String,
    pub namespace: NetworkNamespace,
    pub mesh: watch::Receiver<Arc<Mesh>>,
    pub cluster_domain: Arc<str>,
    pub journal: Journal,
}

/// Carries connections for as long as the task lives.
pub(crate) async fn serve(published: Published, door: Door) {
    let listener = match published.listener.try_clone().and_then(tokio::net::TcpListener::from_std) {
        Ok(listener) => listener,
        Err(reason) => {
            door.journal.note(format_args!("published {}: cannot listen: {reason}", published.address));
            return;
        }
    };
    let listing = published.listing();
    door.journal.note(format_args!("published: {} leads to {}", listing.address, listing.service));
    let places = Arc::new(Semaphore::new(MOST));
    let failed = Arc::new(Mutex::new(String::new()));
    // Ends its connections with this one.
    let mut connections = tokio::task::JoinSet::new();
    for turn in 0.. {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((outside, _)) = accepted else {
            // Out of descriptors: somebody will close some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (to, door, failed) = (published.to.clone(), door.clone(), failed.clone());
        connections.spawn(async move {
            if let Err(reason) = carry(outside, &to, &door, turn).await {
                let text = format!("published port for {}: {reason}", to.target());
                // A browser tries again and again: only news is worth a line.
                if std::mem::replace(&mut *failed.lock(), text.clone()) != text {
                    door.journal.note(text);
                }
            }
            drop(place);
        });
    }
}

async fn carry(mut outside: TcpStream, to: &Publish, door: &Door, turn: usize) -> io::Result<()> {
    let way = to.way(door, turn);
    let Way { address, behind_waypoint } =
        way.ok_or_else(|| io::Error::other("there is no such service any more, or nobody serves it"))?;
    let new = if address.is_ipv4() { TcpSocket::new_v4 } else { TcpSocket::new_v6 };
    let socket = door.namespace.run(new).map_err(io::Error::other)??;
    let connecting = tokio::time::timeout(CONNECT, socket.connect(address));
    let mut inside = connecting.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // What follows is between the two ends, who see it themselves.
    let carried = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
    if behind_waypoint && carried.map_or(true, |(_, back)| back == 0) {
        return Err(io::Error::other(BEHIND_WAYPOINT));
    }
    Ok(())
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
