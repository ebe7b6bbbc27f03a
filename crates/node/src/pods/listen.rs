//! Opens a pod's listeners, in its namespace and for every thread, and accepts on them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use leno_capture::sockets::{self, DnsSockets, ListenOptions, Probes};
use leno_capture::zds::PodInfo;
use leno_capture::{NetworkNamespace, ShortPath, path_mtu};
use leno_model::ports;
use leno_proxy::Listeners;
use tokio::net::{TcpListener, UdpSocket};

use crate::config::{CongestionControl, OriginalSource};
use crate::context::Context;
use crate::lanes::Lane;
use crate::outbound::places::Places;
use crate::pod::{Footing, Pod};
use crate::{dns, inbound, outbound};

/// Opens the pod's listeners on every lane and starts accepting.
///
/// # Errors
/// If a port is taken in the pod's namespace or the kernel refuses the socket. Nothing is left open then.
pub(crate) fn start(
    info: PodInfo,
    netns: NetworkNamespace,
    context: Arc<Context>,
    lanes: &[Lane],
) -> Result<Arc<Pod>, String> {
    // Whoever enrols Leno's pods has done it; other agents do not.
    sockets::hand_on_what_waits(&netns);
    path_mtu::find(&netns);
    let short_path = short_path(&netns, context.config.congestion_control);
    let sockets = Sockets::open(&netns, &short_path, &context, lanes)?;
    let spoofs_source = match context.config.original_source {
        OriginalSource::False => false,
        OriginalSource::Auto => sockets.transparent,
        OriginalSource::True if sockets.transparent => true,
        OriginalSource::True => {
            return Err("ENABLE_ORIG_SRC=true, but the kernel refuses IP_TRANSPARENT in the pod's namespace \
                        (needs CAP_NET_ADMIN there)"
                .to_owned());
        }
    };
    let listeners = sockets.note(&netns).map_err(|e| format!("can't examine a listener: {e}"))?;
    let pod = Pod::new(info, netns, context, Footing { spoofs_source, short_path, listeners });
    // Those that accept already must not go on without the others: the next attempt would share their ports, and nobody
    // would track what they accept.
    sockets.accept(&pod, lanes).inspect_err(|_| pod.stop())?;
    Ok(pod)
}

/// A pod's listeners before anything accepts on them.
struct Sockets {
    /// For each lane: the listener for programs' connections, if it takes them, and the one for connections from
    /// outside the mesh.
    lanes: Vec<(Option<StdListener>, StdListener)>,
    hbone: StdListener,
    dns: Option<DnsSockets>,
    /// Whether the kernel lets all of them use the caller's address.
    transparent: bool,
}

impl Sockets {
    fn open(
        netns: &NetworkNamespace,
        short_path: &ShortPath,
        context: &Context,
        lanes: &[Lane],
    ) -> Result<Self, String> {
        let listen = |port: u16| {
            let mut options =
                if port == ports::OUTBOUND { ListenOptions::for_programs() } else { ListenOptions::default() };
            if port == ports::HBONE {
                options.probes = Probes::Tunnel;
            }
            // Callers of port 15006 may be anywhere, and there are many of them: the system decides.
            if port != ports::INBOUND {
                options.path = short_path.clone();
            }
            let listener = if context.core.config.ipv6 {
                sockets::listen_wildcard(netns, port, &options)
            } else {
                sockets::listen(netns, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), &options)
            };
            listener.map_err(|e| e.to_string())
        };
        let mut opened = Vec::new();
        let mut transparent = true;
        for lane in lanes {
            let outbound = if lane.outbound { Some(listen(ports::OUTBOUND)?.socket) } else { None };
            let plaintext = listen(ports::INBOUND)?;
            transparent &= plaintext.transparent;
            opened.push((outbound, plaintext.socket));
        }
        let hbone = listen(ports::HBONE)?;
        transparent &= hbone.transparent;
        let dns = if context.config.dns { open_dns(netns) } else { None };
        Ok(Self { lanes: opened, hbone: hbone.socket, dns, transparent })
    }

    /// The addresses, for handing over to another proxy.
    fn note(&self, netns: &NetworkNamespace) -> std::io::Result<Listeners> {
        let mut noted = Listeners::new(netns.clone());
        noted.note(ports::HBONE, &self.hbone)?;
        for (outbound, plaintext) in &self.lanes {
            noted.note(ports::INBOUND, plaintext)?;
            if let Some(outbound) = outbound {
                noted.note(ports::OUTBOUND, outbound)?;
            }
        }
        for listener in self.dns.iter().flat_map(|dns| &dns.tcp) {
            noted.note(ports::DNS, &listener.socket)?;
        }
        Ok(noted)
    }

    fn accept(self, pod: &Arc<Pod>, lanes: &[Lane]) -> Result<(), String> {
        // An accepting task counts as a connection, so that whoever waits for the last one does not miss those in the
        // queue. `from_std` registers with the reactor of the current runtime.
        let register = |l| TcpListener::from_std(l).map_err(|e| format!("can't register a listener: {e}"));
        let places = Places::new(lanes);
        for (index, (lane, (outbound, plaintext))) in lanes.iter().zip(self.lanes).enumerate() {
            let _on_worker = lane.worker.enter();
            if let Some(outbound) = outbound {
                let counted = pod.connections().count();
                tokio::spawn(outbound::accept(pod.clone(), counted, places.clone(), index, register(outbound)?));
            }
            tokio::spawn(inbound::plaintext::accept(
                pod.clone(),
                pod.connections().count(),
                lane.worker.clone(),
                register(plaintext)?,
            ));
        }
        // On a lane where connections of this node's programs keep no peer waiting, except for bulk.
        if let Some(lane) = lanes.iter().min_by_key(|lane| lane.outbound) {
            let _on_worker = lane.worker.enter();
            let counted = pod.connections().accept_tunnels();
            tokio::spawn(inbound::tunnel::accept(pod.clone(), counted, lanes.to_vec(), register(self.hbone)?));
        }
        if let (Some(lane), Some(dns)) = (lanes.first(), self.dns) {
            let _on_worker = lane.worker.enter();
            for socket in dns.udp {
                let socket = UdpSocket::from_std(socket).map_err(|e| format!("can't register a socket: {e}"))?;
                tokio::spawn(dns::serve_udp(pod.clone(), pod.connections().count(), socket));
            }
            for listener in dns.tcp {
                let listener = register(listener.socket)?;
                tokio::spawn(dns::serve_tcp(pod.clone(), pod.connections().count(), listener));
            }
        }
        Ok(())
    }
}

/// Opens the pod's DNS sockets. If the port is taken, that is reported, and the pod is served without DNS.
fn open_dns(netns: &NetworkNamespace) -> Option<DnsSockets> {
    let opened = sockets::listen_dns(netns, ports::DNS, &ListenOptions::default());
    opened.inspect_err(|error| tracing::warn!(%error, "the pod's DNS can't be answered; its queries will fail")).ok()
}

/// The congestion control of a pod's connections on short paths. If it can't be found out, that costs processor time,
/// but the pod is served.
fn short_path(netns: &NetworkNamespace, chosen: CongestionControl) -> ShortPath {
    match chosen {
        CongestionControl::System => ShortPath::default(),
        CongestionControl::Auto => ShortPath::of(netns).unwrap_or_else(|error| {
            tracing::debug!(%error, "the pod's congestion control can't be told; leaving it alone");
            ShortPath::default()
        }),
    }
}
