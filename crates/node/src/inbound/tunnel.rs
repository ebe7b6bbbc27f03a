//! HBONE connections of peers to a pod: the peer proves its identity, is authorised, and reaches the program.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, Method};
use leno_model::Identity;
use leno_policy::inbound::{InboundTarget, inbound_target};
use leno_proxy::Core;
use leno_proxy::peers::{self, Unproven, headers};
use leno_proxy::streams::reset;
use leno_proxy::tunnels::{self, Destination, Server, Tunnel};
use leno_tls::MeshIdentity;
use leno_tunnel::relay;
use leno_tunnel::server::InboundConnect;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::admit::{Admitted, admit_and_dial};
use crate::failure::Failure;
use crate::lanes::Lane;
use crate::pod::Pod;
use crate::pod::connections::{InboundConnection, OpenTunnel};
use crate::report::{Direction, Report};

impl Destination for Pod {
    type Failure = Failure;
    type Open = OpenTunnel;

    fn without_address(error: io::Error) -> Failure {
        Failure::OriginalDestination(Arc::new(error))
    }

    fn core(&self) -> &Core {
        &self.context().core
    }

    fn unproven(&self) -> &Unproven {
        self.unproven()
    }

    fn open(&self, peer: SocketAddr) -> Result<OpenTunnel, Failure> {
        self.connections().open_tunnel(peer, self.context().config.max_tunnels_per_peer)
    }

    fn proven(&self, open: &mut OpenTunnel, identity: &Identity) -> Result<(), Failure> {
        open.proven(identity.clone())
    }

    async fn identity(&self) -> Result<Arc<MeshIdentity>, Failure> {
        let (_, workload) = self.workload().await?;
        Ok(self.context().core.identity(&workload).await?)
    }

    fn stopping(&self) -> impl Future<Output = ()> + Send {
        self.stopping()
    }

    fn draining(&self) -> impl Future<Output = Instant> + Send {
        self.draining()
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send {
        self.stopped()
    }

    fn connected(&self, stream: &TcpStream) {
        self.verify_short_path(stream);
    }

    fn request(self: &Arc<Self>, tunnel: &Arc<Tunnel>, request: InboundConnect) {
        tokio::spawn(carry(self.clone(), tunnel.clone(), request));
    }

    fn refused(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>, failure: &Failure) {
        refuse(self, peer, local, failure);
    }

    fn ended(self: &Arc<Self>, tunnel: &Tunnel, error: &leno_tunnel::Error) {
        tunnel_failed(self, tunnel, error);
    }
}

/// Accepts HBONE connections until the pod takes no more. First come those workers that are free of what programs
/// of this node open, but for bulk ([`crate::lanes`]).
pub(crate) async fn accept(pod: Arc<Pod>, _accepting: OpenTunnel, lanes: Vec<Lane>, listener: TcpListener) {
    let server = |lane: &Lane| Server {
        worker: lane.worker.clone(),
        served: lane.served.clone(),
        is_second_choice: lane.outbound,
    };
    tunnels::accept(pod, lanes.iter().map(server).collect(), listener).await;
}

/// Reports a peer that gets no tunnel.
fn refuse(pod: &Arc<Pod>, peer: SocketAddr, local: Option<SocketAddr>, failure: &Failure) {
    let mut report = Report::new(pod, Direction::Inbound, peer);
    if let Some(local) = local {
        report.destination_address(local);
    }
    if let Some((_, workload)) = pod.workload_now() {
        report.destination_workload(&workload);
    }
    report.failed(failure);
}

fn tunnel_failed(pod: &Arc<Pod>, tunnel: &Tunnel, error: &leno_tunnel::Error) {
    let mut report = Report::new(pod, Direction::Inbound, tunnel.peer);
    report.destination_address(tunnel.local);
    report.source_identity(&tunnel.identity);
    report.mutual_tls();
    if let Some((mesh, workload)) = pod.workload_now() {
        report.destination_workload(&workload);
        report.source_by_identity(&mesh, &tunnel.identity, tunnel.peer.ip());
    }
    report.failed(&peers::Failure::Tunnel { address: tunnel.peer, reason: error.to_string() }.into());
}

/// A peer's request.
struct Asked {
    method: Method,
    authority: String,
    headers: HeaderMap,
}

pub(crate) async fn carry(pod: Arc<Pod>, tunnel: Arc<Tunnel>, mut request: InboundConnect) {
    let lives = tunnel.worker.lives();
    let mut report = Report::new(&pod, Direction::Inbound, tunnel.peer);
    report.destination_address(tunnel.local);
    report.source_identity(&tunnel.identity);
    report.mutual_tls();
    if let Some(trace) = headers::trace_of(request.headers()) {
        report.trace(trace);
    }
    // A handshake would be refused now, so a request that relies on an old one is refused, too.
    if let Some(ago) = tunnel.proof.passed(pod.context().core.config.clock.now()) {
        request.turn_away();
        if let Some((mesh, workload)) = pod.workload_now() {
            report.destination_workload(&workload);
            report.source_by_identity(&mesh, &tunnel.identity, tunnel.peer.ip());
        }
        report.failed(&peers::Failure::Expired { address: tunnel.peer, peers: tunnel.proof.peers, ago }.into());
        return;
    }
    let asked = Asked {
        method: request.method().clone(),
        authority: request.authority().unwrap_or_default().to_owned(),
        headers: request.take_headers(),
    };
    // Boxed: deciding and dialling need much more state than what remains afterwards.
    let connecting = Box::pin(connect(&pod, &tunnel, asked, &mut report));
    let connected = tokio::select! {
        connected = connecting => connected,
        // Otherwise a peer that makes requests and gives them up at once, each time freeing its stream, could make us
        // hold any number of sockets that wait for the program.
        error = request.cancelled() => Err(peers::Failure::given_up(tunnel.peer, &error).into()),
        () = pod.stopped() => Err(Failure::Stopped),
    };
    let Admitted { program, governed } = match connected {
        Ok(connected) => connected,
        Err(failure) => {
            request.refuse(failure.status(), HeaderMap::new());
            report.failed(&failure);
            return;
        }
    };
    let headers = if pod.context().config.response_baggage {
        headers::response(report.own_workload().and_then(|workload| pod.baggage(workload)))
    } else {
        HeaderMap::new()
    };
    let stream = match request.accept(headers) {
        Ok(stream) => stream,
        Err(error) => {
            reset(program);
            report.failed(&peers::Failure::Tunnel { address: tunnel.peer, reason: error.to_string() }.into());
            return;
        }
    };
    let carried = governed.opened(report);
    let outcome =
        relay::tcp_to_tunnel(program, stream, carried.traffic(), &pod.context().relay, governed.ended(&pod)).await;
    governed.finish(&lives, carried, outcome);
}

async fn connect(pod: &Arc<Pod>, tunnel: &Tunnel, asked: Asked, report: &mut Report) -> Result<Admitted, Failure> {
    if asked.method != Method::CONNECT {
        return Err(Failure::NotConnect(asked.method.to_string()));
    }
    let (mesh, workload) = pod.workload().await?;
    report.destination_workload(&workload);
    report.source_by_identity(&mesh, &tunnel.identity, tunnel.peer.ip());
    let target = inbound_target(&mesh, &workload, &asked.authority, tunnel.local);
    let InboundTarget { address, service, proxy_header } = target.map_err(|e| Failure::Inbound(Arc::new(e)))?;
    if proxy_header.is_some() {
        return Err(Failure::ProxyProtocol);
    }
    let service = service.or_else(|| {
        let host = headers::forwarded_host(&asked.headers)?;
        workload.services.keys().find(|id| *id.hostname == *host).and_then(|id| mesh.service(id)).cloned()
    });
    let service = service.or_else(|| mesh.service_at(&workload, address.port()).cloned());
    report.tunnel_address(tunnel.local);
    report.service(service.as_ref());
    report.destination_address(address);
    let source = Some(tunnel.identity.clone());
    let connection = InboundConnection { source, source_ip: tunnel.peer.ip(), destination: address };
    admit_and_dial(pod, connection, None, report).await
}
