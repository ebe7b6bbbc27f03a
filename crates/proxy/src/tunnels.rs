//! How peers' tunnels come in: each is counted, handed to a worker, proven and served, and its requests go to whom they are
//! for. The same for whoever is spoken to in tunnels, be it a pod or a waypoint.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use leno_model::Identity;
use leno_tls::MeshIdentity;
use leno_tunnel::rarely;
use leno_tunnel::server::{self, InboundConnect, ServeError};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::core::Core;
use crate::peers::{self, Link, Place, Proof, Unproven};
use crate::streams::{accept_next, canonical, hand_over, reset};
use crate::threads::Worker;

/// Whoever is spoken to in tunnels.
pub trait Destination: Send + Sync + 'static {
    /// Why a peer gets no tunnel.
    type Failure: From<peers::Failure> + Send;
    /// Counts a tunnel until it is dropped.
    type Open: Send + 'static;

    /// Of a connection whose own address can't be read.
    fn without_address(error: io::Error) -> Self::Failure;

    /// What its proxy has.
    fn core(&self) -> &Core;

    /// The places of peers that have proved nothing.
    fn unproven(&self) -> &Unproven;

    /// Counts a tunnel of `peer`'s, from the moment it is accepted: whoever drains must not take a peer that proves
    /// itself for nobody.
    ///
    /// # Errors
    /// If it is to have no more of them.
    fn open(&self, peer: SocketAddr) -> Result<Self::Open, Self::Failure>;

    /// Counts the tunnel as that of `identity`, which its peer has proved to be.
    ///
    /// # Errors
    /// If that is to have no more of them.
    fn proven(&self, open: &mut Self::Open, identity: &Identity) -> Result<(), Self::Failure>;

    /// The certificate that it proves itself with; waits for it.
    fn identity(&self) -> impl Future<Output = Result<Arc<MeshIdentity>, Self::Failure>> + Send;

    /// Resolves when it takes no new tunnels.
    fn stopping(&self) -> impl Future<Output = ()> + Send;

    /// Resolves when its peers are to be told to open nothing more; says until when they may go on.
    fn draining(&self) -> impl Future<Output = Instant> + Send;

    /// Resolves when its tunnels are to end at once.
    fn stopped(&self) -> impl Future<Output = ()> + Send;

    /// A peer has connected, and is to prove itself on this thread.
    fn connected(&self, stream: &TcpStream);

    /// Answers a request. Must not block: it spawns a task.
    fn request(self: &Arc<Self>, tunnel: &Arc<Tunnel>, request: InboundConnect);

    /// Tells of a peer that gets no tunnel; `local` is the address that it has connected to.
    fn refused(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>, failure: &Self::Failure);

    /// Tells of a tunnel that was ended for what its peer did.
    fn ended(self: &Arc<Self>, tunnel: &Tunnel, error: &leno_tunnel::Error);
}

/// One TCP connection of a peer, and whom it proved to be.
pub struct Tunnel {
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Where it was accepted.
    pub local: SocketAddr,
    /// Whom it proved to be.
    pub identity: Identity,
    /// For how long that holds.
    pub proof: Proof,
    /// The thread that it is served on.
    pub worker: Worker,
}

/// A worker, as those see it who have tunnels served there.
#[derive(Clone)]
pub struct Server {
    /// The thread.
    pub worker: Worker,
    /// Tunnels that it serves, of all destinations.
    pub served: Arc<AtomicUsize>,
    /// It has other work: of those that serve as many, another comes first.
    pub is_second_choice: bool,
}

/// Keeps a tunnel counted on its worker.
struct Served(Arc<AtomicUsize>);

impl Served {
    fn by(server: &Server) -> Self {
        server.served.fetch_add(1, Relaxed);
        Self(server.served.clone())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Accepts tunnels until `to` takes no more.
///
/// Each is served where the fewest are: left to the kernel, two that carry all there is to carry would meet on one
/// thread half of the time.
pub async fn accept<D: Destination>(to: Arc<D>, servers: Vec<Server>, listener: TcpListener) {
    while let Some((stream, peer)) = accept_next(&listener, to.stopping()).await {
        let open = match to.open(peer) {
            Ok(open) => open,
            Err(failure) => {
                to.refused(peer, stream.local_addr().ok().map(canonical), &failure);
                reset(stream);
                continue;
            }
        };
        let place = match to.unproven().place(peer).await {
            Ok(place) => place,
            Err(failure) => {
                to.refused(peer, stream.local_addr().ok().map(canonical), &failure.into());
                reset(stream);
                continue;
            }
        };
        let fewest = |server: &&Server| (server.served.load(Relaxed), server.is_second_choice);
        let Some(server) = servers.iter().min_by_key(fewest) else { return };
        let (served, worker, to) = (Served::by(server), server.worker.clone(), to.clone());
        hand_over(stream, peer, &server.worker, move |stream| async move {
            let _served = served;
            serve(to, worker, stream, Coming { peer, open, unproven: place }).await;
        });
    }
}

/// A tunnel whose peer has proved nothing yet.
pub struct Coming<Open> {
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Counts the tunnel as open while this is held.
    pub open: Open,
    /// Its place among those that have proved nothing.
    pub unproven: Place,
}

/// Serves one tunnel to its end.
pub async fn serve<D: Destination>(to: Arc<D>, worker: Worker, stream: TcpStream, coming: Coming<D::Open>) {
    let Coming { peer, mut open, unproven } = coming;
    // From here on: a burst of peers that never prove anything needs memory too.
    let _lives = worker.lives();
    let accepted = tokio::select! {
        accepted = prove(&*to, worker, stream, peer, unproven) => accepted,
        () = to.stopped() => return,
    };
    let (stream, tunnel) = match accepted {
        Ok(accepted) => accepted,
        Err((failure, local)) => return to.refused(peer, local, &failure),
    };
    if let Err(failure) = to.proven(&mut open, &tunnel.identity) {
        return to.refused(peer, Some(tunnel.local), &failure);
    }
    let tunnel = Arc::new(tunnel);
    let on_request = |request: InboundConnect| to.request(&tunnel, request);
    let settings = &to.core().tunnel;
    let stopped = pin!(to.stopped());
    tokio::select! {
        biased;
        () = rarely(stopped) => {}
        served = server::serve(stream, settings, to.draining(), on_request) => {
            match served.end {
                // The peer did something we end a connection for; it may have had no request yet
                // whose log line could tell.
                Err(ServeError::Connection(error)) if !error.is_by_peer() => to.ended(&tunnel, &error),
                Err(error) => tracing::debug!(%peer, %error, "HBONE connection ended with an error"),
                Ok(()) => {}
            }
        }
    }
}

type Refused<D> = (<D as Destination>::Failure, Option<SocketAddr>);

async fn prove<D: Destination>(
    to: &D,
    worker: Worker,
    stream: TcpStream,
    peer: SocketAddr,
    unproven: Place,
) -> Result<(Box<Link>, Tunnel), Refused<D>> {
    let local = stream.local_addr().map_err(|error| (D::without_address(error), None))?;
    to.connected(&stream);
    let (local, peer) = (canonical(local), canonical(peer));
    let proving = async {
        let own = to.identity().await?;
        Ok(peers::accept(&own, stream, peer, &to.core().config).await?)
    };
    let proven = tokio::select! {
        proven = proving => proven,
        turned_away = unproven.turned_away() => Err(turned_away.into()),
    };
    let (link, identity, proof) = proven.map_err(|failure| (failure, Some(local)))?;
    Ok((link, Tunnel { peer, local, identity, proof, worker }))
}
