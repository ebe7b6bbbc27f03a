//! The live connections of one pod: those that must be judged again when a policy changes, those that a draining proxy
//! waits for, and those that `/config_dump` shows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use leno_model::{Identity, Mesh, Workload};
use leno_policy::{Connection, DenyReason, Verdict};
use leno_telemetry::one_host;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::failure::{Denial, Failure};
use crate::shares::{Share, Sockets, Source};
use crate::traffic::Traffic;

/// The live connections of one pod.
pub(crate) struct Connections {
    inbound: Mutex<HashMap<u64, Live>>,
    outbound: Mutex<HashMap<u64, OutboundConnection>>,
    next: AtomicU64,
    /// Counts connections that the rules lead here, the tasks that accept them, and requests in peers' tunnels.
    count: watch::Sender<usize>,
    /// Counts peers' tunnels and the tasks that accept them.
    tunnels: watch::Sender<usize>,
    peers: Mutex<Peers>,
    /// Limits the sockets of all of these.
    share: Arc<Share>,
}

struct Live {
    connection: InboundConnection,
    cut: Arc<Cut>,
}

/// The properties of an inbound connection that policies look at, kept for judging it again.
#[derive(Debug, Clone)]
pub(crate) struct InboundConnection {
    /// The caller's identity; `None` for plaintext.
    pub(crate) source: Option<Identity>,
    /// The caller's address.
    pub(crate) source_ip: IpAddr,
    /// The program's address.
    pub(crate) destination: SocketAddr,
}

impl InboundConnection {
    pub(crate) fn for_policy(&self) -> Connection<'_> {
        Connection { source: self.source.as_ref(), source_ip: self.source_ip, destination: self.destination }
    }

    /// Whose share of the pod's sockets it takes.
    fn cause(&self) -> Source {
        self.source.clone().map_or(Source::Address(self.source_ip), Source::Peer)
    }
}

/// The properties of an outbound connection, for the configuration dump.
#[derive(Clone)]
pub(crate) struct OutboundConnection {
    /// The destination that the program asked for.
    pub(crate) original: SocketAddr,
    /// All else.
    pub(crate) traffic: Arc<Traffic>,
}

/// Ends one connection from elsewhere, with a reason.
#[derive(Default)]
pub(crate) struct Cut {
    token: CancellationToken,
    reason: Mutex<Option<Denial>>,
    /// The connection, once it stands.
    traffic: OnceLock<Arc<Traffic>>,
}

impl Cut {
    /// Resolves when the connection must end.
    pub(crate) async fn cut(&self) {
        self.token.cancelled().await;
    }

    /// Why it was ended; `None` if it was not.
    pub(crate) fn reason(&self) -> Option<Denial> {
        self.reason.lock().clone()
    }

    /// As the connection's end before it stands.
    pub(crate) fn failure(&self) -> Failure {
        self.reason().map_or(Failure::Stopped, Failure::Cut)
    }

    /// Has the connection shown as open.
    pub(crate) fn show(&self, traffic: &Arc<Traffic>) {
        // A connection stands once.
        let _ = self.traffic.set(traffic.clone());
    }

    fn now(&self, reason: Denial) {
        self.reason.lock().get_or_insert(reason);
        self.token.cancel();
    }
}

/// Keeps a connection that the rules led here counted from its first moment on, so that it is not overlooked before it
/// is established. Also counts the tasks that accept connections.
pub(crate) struct Counted {
    connections: Arc<Connections>,
    /// Its number among the listed ones.
    outbound: Option<u64>,
    /// Sockets that it takes of the pod's share.
    sockets: Option<Sockets>,
}

impl Counted {
    /// Takes the socket that was accepted out of the pod's share.
    ///
    /// # Errors
    /// If the pod has as many as it may have, or `source` does.
    pub(crate) fn take_socket(&mut self, source: Source) -> Result<(), Failure> {
        self.sockets = Some(self.connections.share.take(source)?);
        Ok(())
    }

    /// Counts the socket for the other side.
    pub(crate) fn count_socket(&mut self) {
        if let Some(sockets) = &mut self.sockets {
            sockets.count_another();
        }
    }

    /// Lists an outbound connection.
    pub(crate) fn list_outbound(&mut self, connection: OutboundConnection) {
        let id = self.connections.next.fetch_add(1, Ordering::Relaxed);
        self.connections.outbound.lock().insert(id, connection);
        self.outbound = Some(id);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(id) = self.outbound {
            unlist(&mut self.connections.outbound.lock(), id);
        }
        // Whoever waits for the last one finds them given back.
        self.sockets = None;
        self.connections.count.send_modify(|count| *count -= 1);
    }
}

/// Keeps an inbound connection counted and listed while it lives.
pub(crate) struct Listed {
    connections: Arc<Connections>,
    id: u64,
    socket: Option<Sockets>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        unlist(&mut self.connections.inbound.lock(), self.id);
        self.socket = None;
        self.connections.count.send_modify(|count| *count -= 1);
    }
}

/// Removes an entry. A map does not shrink by itself: after ten thousand connections it would keep some megabytes.
fn unlist<T>(live: &mut HashMap<u64, T>, id: u64) {
    live.remove(&id);
    if live.capacity() > ROOM && live.len() < live.capacity() / 8 {
        live.shrink_to(2 * live.len());
    }
}

/// The number of connections for which a map keeps room.
const ROOM: usize = 256;

/// Tunnels that peers have open.
#[derive(Default)]
struct Peers {
    /// By address.
    addresses: HashMap<IpAddr, usize>,
    /// By network, of those whose host may have other addresses.
    networks: HashMap<IpAddr, usize>,
}

/// The addresses of one network may have so many times the tunnels that one may have: the pods of a whole node may share a
/// network of IPv6, but whoever has one such address may have them all.
const NETWORKS_TUNNELS: usize = 4;

impl Peers {
    fn admit(&self, peer: SocketAddr, most: usize) -> Result<(), Failure> {
        let of_network = most.saturating_mul(NETWORKS_TUNNELS);
        let network = one_host(peer.ip());
        if self.addresses.get(&peer.ip()).is_some_and(|open| *open >= most) {
            return Err(Failure::TooManyTunnels { address: peer, most });
        }
        if self.networks.get(&network).is_some_and(|open| *open >= of_network) {
            return Err(Failure::TooManyTunnelsOfNetwork { network, most: of_network });
        }
        Ok(())
    }

    fn add(&mut self, peer: IpAddr) {
        *self.addresses.entry(peer).or_default() += 1;
        if peer.is_ipv6() {
            *self.networks.entry(one_host(peer)).or_default() += 1;
        }
    }

    fn remove(&mut self, peer: IpAddr) {
        for (counts, key) in [(&mut self.addresses, peer), (&mut self.networks, one_host(peer))] {
            if let Entry::Occupied(mut open) = counts.entry(key) {
                *open.get_mut() -= 1;
                if *open.get() == 0 {
                    open.remove();
                }
            }
        }
    }
}

/// Keeps a peer's tunnel counted while it is open, and its socket out of the pod's share. Also counts the tasks that
/// accept tunnels.
pub(crate) struct OpenTunnel(Arc<Connections>, Option<(IpAddr, Sockets)>);

impl OpenTunnel {
    /// Its peer has proved who they are: the socket is one of that identity's now.
    ///
    /// # Errors
    /// If the identity has as many sockets as it may have.
    pub(crate) fn proven(&mut self, identity: Identity) -> Result<(), Failure> {
        self.1.as_mut().map_or(Ok(()), |(_, socket)| socket.give_to(Source::Peer(identity)))
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        if let Some((peer, _socket)) = self.1.take() {
            self.0.peers.lock().remove(peer);
        }
        self.0.tunnels.send_modify(|count| *count -= 1);
    }
}

impl Connections {
    /// For a pod with this share of the sockets.
    pub(crate) fn new(share: Arc<Share>) -> Arc<Self> {
        Arc::new(Self {
            inbound: Mutex::default(),
            outbound: Mutex::default(),
            next: AtomicU64::default(),
            count: watch::Sender::default(),
            tunnels: watch::Sender::default(),
            peers: Mutex::default(),
            share,
        })
    }

    /// Lists an inbound connection, and takes the socket towards its program out of the pod's share.
    /// From here on a policy change can cut it; the caller must decide about it *after* listing, or a
    /// change in between would be missed.
    ///
    /// # Errors
    /// If the pod has as many sockets as it may have, or the caller does.
    pub(crate) fn list_inbound(self: &Arc<Self>, connection: InboundConnection) -> Result<(Listed, Arc<Cut>), Failure> {
        let socket = Some(self.share.take(connection.cause())?);
        let cut = Arc::new(Cut::default());
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.inbound.lock().insert(id, Live { connection, cut: cut.clone() });
        self.count.send_modify(|count| *count += 1);
        Ok((Listed { connections: self.clone(), id, socket }, cut))
    }

    /// Counts a connection, or a task that accepts connections.
    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.count.send_modify(|count| *count += 1);
        Counted { connections: self.clone(), outbound: None, sockets: None }
    }

    /// Judges every inbound connection again and cuts those that are denied now. If the decision depends on a policy
    /// that has not arrived, the connection stays as it was judged, because the control plane may send a workload
    /// before the policies that it names. Returns how many were cut.
    pub(crate) fn reevaluate(&self, mesh: &Mesh, workload: &Workload) -> usize {
        // Copied first, so that workers that list a connection need not wait for all the decisions.
        let live: Vec<_> =
            self.inbound.lock().values().map(|live| (live.connection.clone(), live.cut.clone())).collect();
        let mut cut = 0;
        for (connection, end) in live {
            let decision = leno_policy::authorize(mesh, workload, &connection.for_policy());
            match decision.verdict {
                Verdict::Allow(_) | Verdict::Deny(DenyReason::UnknownPolicy { .. }) => {}
                Verdict::Deny(reason) => {
                    end.now(Denial::new(reason));
                    cut += 1;
                }
            }
        }
        cut
    }

    /// Resolves when no connection is left and nothing accepts any.
    pub(crate) async fn drained(&self) {
        let mut count = self.count.subscribe();
        // Waiting can't fail: the sender lives as long as `self`.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    /// Counts a task that accepts peers' tunnels.
    pub(crate) fn accept_tunnels(self: &Arc<Self>) -> OpenTunnel {
        self.tunnels.send_modify(|count| *count += 1);
        OpenTunnel(self.clone(), None)
    }

    /// Counts a peer's tunnel, and takes its socket out of the pod's share: many peers with few
    /// tunnels each could take all descriptors as well.
    ///
    /// # Errors
    /// If the peer has `most` already, its network [`NETWORKS_TUNNELS`] times as many, or the pod or the peer as many
    /// sockets as it may have.
    pub(crate) fn open_tunnel(self: &Arc<Self>, peer: SocketAddr, most: usize) -> Result<OpenTunnel, Failure> {
        let socket = {
            let mut peers = self.peers.lock();
            peers.admit(peer, most)?;
            let socket = self.share.take(Source::Unproven(peer.ip()))?;
            peers.add(peer.ip());
            socket
        };
        self.tunnels.send_modify(|count| *count += 1);
        Ok(OpenTunnel(self.clone(), Some((peer.ip(), socket))))
    }

    /// Resolves when no peer has a tunnel open. Only then has everything left that programs sent through one.
    pub(crate) async fn tunnels_closed(&self) {
        let mut count = self.tunnels.subscribe();
        // As above.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    /// The live connections, for `/config_dump`.
    pub(crate) fn dump(&self) -> (Vec<InboundConnection>, Vec<OutboundConnection>) {
        let inbound = self.inbound.lock().values().map(|live| live.connection.clone()).collect();
        let outbound = self.outbound.lock().values().cloned().collect();
        (inbound, outbound)
    }

    /// What stands now. Weak, for its end is counted when the last who holds it lets go.
    pub(crate) fn open(&self) -> Vec<Weak<Traffic>> {
        let mut open: Vec<_> = {
            let inbound = self.inbound.lock();
            inbound.values().filter_map(|live| live.cut.traffic.get().map(Arc::downgrade)).collect()
        };
        open.extend(self.outbound.lock().values().map(|connection| Arc::downgrade(&connection.traffic)));
        open
    }
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
