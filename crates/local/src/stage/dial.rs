//! Connections to the own ports of a node's proxy and of the control plane, which are on the loopback of the network
//! namespace of the node, or of the link between the nodes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_model::ports;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpSocket, TcpStream};

use crate::Error;
use crate::stage::listing::Listing;

/// A port of a node's proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodePort {
    /// `/config_dump`, `/connections` and the like.
    Admin,
    /// `/metrics`.
    Metrics,
}

/// What stands for a waypoint where a node is asked for: the namespace and the name of its pod, with this between them. No
/// name of a node has it.
const OF_WAYPOINT: char = '/';

/// What stands for the control plane where a node is asked for. No node has this name: they are `node-1`, `node-2`, …
pub const CONTROL_PLANE: &str = "control";

/// A connection on the same machine stands at once or not at all.
const CONNECT: Duration = Duration::from_secs(3);

/// Connects to a port of `node`'s proxy, or of the control plane ([`CONTROL_PLANE`]), which listens in the namespace
/// `fabric`. The names of network namespaces are files in `netns_dir`.
///
/// # Errors
/// [`Error::NotFound`] if there is no such node; [`Error::Io`] if its proxy does not listen.
pub(crate) async fn dial(
    listing: &Listing,
    netns_dir: &Path,
    fabric: &str,
    node: &str,
    port: NodePort,
) -> Result<TcpStream, Error> {
    let of_waypoint = |(namespace, name): (&str, &str)| {
        let pod = listing.pods.iter().find(|pod| pod.waypoint && pod.namespace == namespace && pod.name == name);
        pod.map(|pod| pod.netns.as_str())
    };
    let of_node = || listing.nodes.iter().find(|known| known.name == node).map(|found| found.netns.as_str());
    let (netns, whose) = match (node, port) {
        (CONTROL_PLANE, NodePort::Metrics) => (Some(fabric), "the control plane".to_owned()),
        _ => match node.split_once(OF_WAYPOINT) {
            Some(pod) => (of_waypoint(pod), format!("waypoint {node}")),
            None => (of_node(), format!("{node}'s proxy")),
        },
    };
    let Some(netns) = netns else {
        let known = listing.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::NotFound(format!("there is no node {node}; the nodes are {known}")));
    };
    let number = match port {
        NodePort::Admin => ports::ADMIN,
        NodePort::Metrics => ports::METRICS,
    };
    let what = format!("cannot reach port {number} of {whose}; is it running (`leno ps`)?");
    let namespace = NetworkNamespace::from_path(netns_dir.join(netns)).map_err(Error::network(what.clone()))?;
    // A socket stays in the namespace that it was made in.
    let socket =
        namespace.run(TcpSocket::new_v4).map_err(Error::network(what.clone()))?.map_err(Error::io(what.clone()))?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
    match tokio::time::timeout(CONNECT, socket.connect(address)).await {
        Ok(connected) => connected.map_err(Error::io(what)),
        Err(_) => Err(Error::Timeout(format!("{what} It does not accept within {CONNECT:?}"))),
    }
}
