//! Connections from outside the mesh to a pod: authorised without an identity, and handed to
//! the program.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_capture::sockets;
use leno_model::RESERVED_PORTS;
use leno_tunnel::relay;
use tokio::net::{TcpListener, TcpStream};

use crate::connections::{Counted, InboundConnection};
use crate::dial;
use crate::failure::Failure;
use crate::give_back::Lives;
use crate::inbound::admit_and_dial;
use crate::pod::Pod;
use crate::report::{Direction, Report};
use crate::workers::accept_next;

/// Accepts captured plaintext connections until the pod takes no more.
pub(crate) async fn accept(pod: Arc<Pod>, _accepting: Counted, listener: TcpListener) {
    while let Some((stream, peer)) = accept_next(&listener, pod.closing()).await {
        tokio::spawn(carry(pod.clone(), pod.connections().count(), stream, peer));
    }
}

pub(crate) async fn carry(pod: Arc<Pod>, _counted: Counted, stream: TcpStream, peer: SocketAddr) {
    let _lives = Lives::here();
    let mut report = Report::new(&pod, Direction::Inbound, peer);
    let connected = tokio::select! {
        connected = connect(&pod, &stream, peer, &mut report) => connected,
        failure = dial::given_up(&stream, peer) => Err(failure),
        () = pod.stopped() => Err(Failure::Stopped),
    };
    let (program, _listed, cut) = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            dial::reset(stream);
            report.failed(&failure);
            return;
        }
    };
    let counters = report.opened();
    let ended = async {
        tokio::select! {
            () = cut.cut() => {}
            () = pod.stopped() => {}
        }
    };
    let outcome = relay::tcp_to_tcp(program, stream, &*counters, &pod.context().relay, ended).await;
    report.finished(outcome, cut.reason());
}

async fn connect(
    pod: &Arc<Pod>,
    stream: &TcpStream,
    peer: SocketAddr,
    report: &mut Report,
) -> Result<(TcpStream, crate::connections::Listed, Arc<crate::connections::Cut>), Failure> {
    let destination =
        sockets::original_destination_of(stream, peer).map_err(|e| Failure::OriginalDestination(Arc::new(e)))?;
    report.destination_address(destination);
    if RESERVED_PORTS.contains(&destination.port()) {
        return Err(Failure::ReservedPort(destination));
    }
    // A neighbour on the link can put any destination into a packet; these lead to what the
    // pod's programs offer to nobody but themselves.
    let ip = destination.ip();
    if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() {
        return Err(Failure::NotForUs(destination));
    }
    let (mesh, workload) = pod.workload().await?;
    report.destination_workload(&workload);
    report.source_by_address(&mesh, peer.ip());
    report.service(mesh.service_at(&workload, destination.port()));
    let connection = InboundConnection { source: None, source_ip: peer.ip(), destination };
    admit_and_dial(pod, connection, Some(peer.port()), report).await
}
