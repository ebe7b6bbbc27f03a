//! Connections from outside the mesh to a pod. They are authorised without an identity and passed to the program.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_capture::{links, sockets};
use leno_model::{RESERVED_PORTS, Workload};
use leno_proxy::peers;
use leno_proxy::streams::{accept_next, given_up, reset};
use leno_proxy::threads::{Lives, Worker};
use leno_tunnel::relay;
use tokio::net::{TcpListener, TcpStream};

use super::admit::{Admitted, admit_and_dial};
use crate::failure::Failure;
use crate::pod::Pod;
use crate::pod::connections::{Counted, InboundConnection};
use crate::report::{Direction, Report};
use crate::shares::Source;

/// Accepts captured plaintext connections until the pod takes no more.
pub(crate) async fn accept(pod: Arc<Pod>, _accepting: Counted, worker: Worker, listener: TcpListener) {
    while let Some((stream, peer)) = accept_next(&listener, pod.closing()).await {
        tokio::spawn(carry(pod.clone(), pod.connections().count(), worker.lives(), stream, peer));
    }
}

pub(crate) async fn carry(pod: Arc<Pod>, mut counted: Counted, lives: Lives, stream: TcpStream, peer: SocketAddr) {
    let mut report = Report::new(&pod, Direction::Inbound, peer);
    let connected = tokio::select! {
        connected = connect(&pod, &stream, peer, &mut counted, &mut report) => connected,
        error = given_up(&stream) => Err(peers::Failure::given_up(peer, &error).into()),
        () = pod.stopped() => Err(Failure::Stopped),
    };
    let Admitted { program, governed } = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            reset(stream);
            report.failed(&failure);
            return;
        }
    };
    let carried = governed.opened(report);
    let outcome =
        relay::tcp_to_tcp(program, stream, &**carried.traffic(), &pod.context().relay, governed.ended(&pod)).await;
    governed.finish(&lives, carried, outcome);
}

async fn connect(
    pod: &Arc<Pod>,
    stream: &TcpStream,
    peer: SocketAddr,
    counted: &mut Counted,
    report: &mut Report,
) -> Result<Admitted, Failure> {
    let destination =
        sockets::original_destination_of(stream, peer).map_err(|e| Failure::OriginalDestination(Arc::new(e)))?;
    report.destination_address(destination);
    if RESERVED_PORTS.contains(&destination.port()) {
        return Err(Failure::ReservedPort(destination));
    }
    // A neighbour on the link can send packets with any destination. These destinations would reach what the pod's
    // programs offer only to themselves. An IPv4 address in an IPv6 packet is not valid at all.
    let ip = destination.ip();
    let is_mapped = ip != ip.to_canonical();
    if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || is_mapped {
        return Err(Failure::NotForUs(destination));
    }
    counted.take_socket(Source::Address(peer.ip()))?;
    let (mesh, workload) = pod.workload().await?;
    report.destination_workload(&workload);
    if !is_own(pod, &workload, ip)? {
        return Err(Failure::NotForUs(destination));
    }
    report.source_by_address(&mesh, peer.ip());
    report.service(mesh.service_at(&workload, destination.port()));
    let connection = InboundConnection { source: None, source_ip: peer.ip(), destination };
    admit_and_dial(pod, connection, Some(peer.port()), report).await
}

/// Whether `address` is the pod's. Everything that comes to its link is redirected here, whatever its destination. If
/// it were passed on to others, it would reach them with the pod's place in the network.
fn is_own(pod: &Pod, workload: &Workload, address: IpAddr) -> Result<bool, Failure> {
    if workload.addresses.contains(&address) {
        return Ok(true);
    }
    // The control plane does not know of a second interface, or of an address on `lo`.
    links::is_own_address(pod.netns(), address).map_err(|e| peers::Failure::Socket(Arc::new(e)).into())
}
