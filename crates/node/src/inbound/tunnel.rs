//! Connections peers open to a pod by HBONE: proven, authorised, and handed to the program.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use http::{HeaderMap, Method};
use leno_model::Identity;
use leno_policy::inbound::{InboundTarget, inbound_target};
use leno_proxy::peers::headers;
use leno_proxy::peers::{self, Link, Place, Proof};
use leno_proxy::streams::{accept_next, canonical, hand_over, reset};
use leno_proxy::threads::Worker;
use leno_tunnel::server::{self, InboundConnect, ServeError};
use leno_tunnel::{rarely, relay};
use tokio::net::{TcpListener, TcpStream};

use super::admit::admit_and_dial;
use crate::failure::Failure;
use crate::lanes::Lane;
use crate::pod::Pod;
use crate::pod::connections::{Cut, InboundConnection, Listed, OpenTunnel};
use crate::report::{Direction, Report};

/// Accepts HBONE connections until the pod takes no more.
///
/// Each tunnel is served where the fewest are: left to the kernel, two that carry all there is to
/// carry would meet on one thread half of the time. First come those that are free of what programs
/// of this node open, but for bulk ([`crate::lanes`]).
pub(crate) async fn accept(pod: Arc<Pod>, _accepting: OpenTunnel, lanes: Vec<Lane>, listener: TcpListener) {
    while let Some((stream, peer)) = accept_next(&listener, pod.stopping()).await {
        let most = pod.context().config.max_tunnels_per_peer;
        // From here on: whoever drains must not take a peer that proves itself for nobody.
        let open = match pod.connections().open_tunnel(peer, most) {
            Ok(open) => open,
            Err(failure) => {
                refuse(&pod, peer, stream.local_addr().ok().map(canonical), &failure);
                reset(stream);
                continue;
            }
        };
        let place = pod.unproven().place().await;
        let Some(lane) = lanes.iter().min_by_key(|lane| (lane.served.load(Relaxed), lane.outbound)) else {
            return;
        };
        let served = Served::by(lane);
        let pod = pod.clone();
        let worker = lane.worker.clone();
        hand_over(stream, peer, &lane.worker, move |stream| async move {
            let _served = served;
            serve(pod, worker, open, stream, peer, place).await;
        });
    }
}

/// Keeps a tunnel counted on its lane.
struct Served(Arc<AtomicUsize>);

impl Served {
    fn by(lane: &Lane) -> Self {
        lane.served.fetch_add(1, Relaxed);
        Self(lane.served.clone())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// One TCP connection of a peer, and whom it proved to be.
pub(crate) struct Tunnel {
    pod: Arc<Pod>,
    peer: SocketAddr,
    local: SocketAddr,
    identity: Identity,
    proof: Proof,
    worker: Worker,
}

pub(crate) async fn serve(
    pod: Arc<Pod>,
    worker: Worker,
    _open: OpenTunnel,
    stream: TcpStream,
    peer: SocketAddr,
    unproven: Place,
) {
    // From here on: a burst of peers that never prove anything needs memory too.
    let _lives = worker.lives();
    let accepted = tokio::select! {
        accepted = prove(&pod, &worker, stream, peer, unproven) => accepted,
        () = pod.stopped() => return,
    };
    let (stream, tunnel) = match accepted {
        Ok(accepted) => accepted,
        Err((failure, local)) => return refuse(&pod, peer, local, &failure),
    };
    let tunnel = Arc::new(tunnel);
    let on_request = |request: InboundConnect| {
        tokio::spawn(carry(tunnel.clone(), request));
    };
    let settings = &pod.context().core.tunnel;
    let stopped = pin!(pod.stopped());
    tokio::select! {
        biased;
        () = rarely(stopped) => {}
        served = server::serve(stream, settings, pod.draining(), on_request) => {
            match served.end {
                // The peer did something we end a connection for; it may have had no request yet
                // whose log line could tell.
                Err(ServeError::Connection(error)) if !error.is_by_peer() => tunnel_failed(&tunnel, &error),
                Err(error) => tracing::debug!(%peer, %error, "HBONE connection ended with an error"),
                Ok(()) => {}
            }
        }
    }
}

/// Tells of a peer that gets no tunnel.
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

fn tunnel_failed(tunnel: &Tunnel, error: &leno_tunnel::Error) {
    let mut report = Report::new(&tunnel.pod, Direction::Inbound, tunnel.peer);
    report.destination_address(tunnel.local);
    report.source_identity(&tunnel.identity);
    report.mutual_tls();
    if let Some((mesh, workload)) = tunnel.pod.workload_now() {
        report.destination_workload(&workload);
        report.source_by_identity(&mesh, &tunnel.identity, tunnel.peer.ip());
    }
    report.failed(&peers::Failure::Tunnel { address: tunnel.peer, reason: error.to_string() }.into());
}

type Accepted = (Box<Link>, Tunnel);

async fn prove(
    pod: &Arc<Pod>,
    worker: &Worker,
    stream: TcpStream,
    peer: SocketAddr,
    unproven: Place,
) -> Result<Accepted, (Failure, Option<SocketAddr>)> {
    let local = stream.local_addr().map_err(|e| (Failure::OriginalDestination(Arc::new(e)), None))?;
    pod.verify_short_path(&stream);
    let (local, peer) = (canonical(local), canonical(peer));
    let proving = async {
        let (_, workload) = pod.workload().await?;
        let core = &pod.context().core;
        let own = core.identity(&workload).await?;
        Ok(peers::accept(&own, stream, peer, &core.config).await?)
    };
    let proven = tokio::select! {
        proven = proving => proven,
        () = unproven.turned_away() => Err(peers::Failure::TurnedAway { address: peer, most: unproven.among() }.into()),
    };
    let (link, identity, proof) = proven.map_err(|failure| (failure, Some(local)))?;
    Ok((link, Tunnel { pod: pod.clone(), peer, local, identity, proof, worker: worker.clone() }))
}

/// What a peer asks for.
struct Asked {
    method: Method,
    authority: String,
    headers: HeaderMap,
}

pub(crate) async fn carry(tunnel: Arc<Tunnel>, mut request: InboundConnect) {
    let lives = tunnel.worker.lives();
    let pod = &tunnel.pod;
    let mut report = Report::new(pod, Direction::Inbound, tunnel.peer);
    report.destination_address(tunnel.local);
    report.source_identity(&tunnel.identity);
    report.mutual_tls();
    if let Some(trace) = headers::trace_of(request.headers()) {
        report.trace(trace);
    }
    // A handshake would be refused now, and so is what relies on one from long ago.
    if let Some(ago) = tunnel.proof.passed(SystemTime::now()) {
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
    // Boxed: deciding and dialling take much more state than what remains afterwards.
    let connecting = Box::pin(connect(&tunnel, asked, &mut report));
    let connected = tokio::select! {
        connected = connecting => connected,
        // Otherwise a peer that asks and gives up in a row, each time freeing its place among
        // the streams, could have us hold any number of sockets that wait for the program.
        error = request.cancelled() => Err(peers::Failure::given_up(tunnel.peer, &error).into()),
        () = pod.stopped() => Err(Failure::Stopped),
    };
    let Connected { program, cut, listed: _listed } = match connected {
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
    let counters = report.opened();
    let ended = async {
        tokio::select! {
            () = cut.cut() => {}
            () = pod.stopped() => {}
        }
    };
    let outcome = relay::tcp_to_tunnel(program, stream, &counters, &pod.context().relay, ended).await;
    lives.carried(report.bytes().iter().sum());
    report.finished(outcome, cut.reason());
}

struct Connected {
    program: TcpStream,
    cut: Arc<Cut>,
    listed: Listed,
}

async fn connect(tunnel: &Tunnel, asked: Asked, report: &mut Report) -> Result<Connected, Failure> {
    if asked.method != Method::CONNECT {
        return Err(Failure::NotConnect(asked.method.to_string()));
    }
    let (mesh, workload) = tunnel.pod.workload().await?;
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
    admit_and_dial(
        &tunnel.pod,
        InboundConnection { source: Some(tunnel.identity.clone()), source_ip: tunnel.peer.ip(), destination: address },
        None,
        report,
    )
    .await
    .map(|(program, listed, cut)| Connected { program, cut, listed })
}
