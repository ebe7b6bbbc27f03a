//! The floor's two hops.
//!
//! On the wire between them are 18 bytes with the destination (an IPv6 address, IPv4 mapped, and a port, in network
//! order), and then the application's bytes unchanged.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr};
use std::time::Duration;

use leno_capture::pod_rules::TUNNEL_PORT;
use leno_capture::sockets::{ConnectOptions, connector, established, original_destination_of};
use leno_capture::{NetworkNamespace, ShortPath};
use socket2::SockRef;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Bytes per read. More did not help when measured; 16 KiB doubled the processor time per byte.
const BLOCK: usize = 256 * 1024;
/// The number of blocks in a row before other connections have their turn.
const TURNS: usize = 8;
const PREAMBLE: usize = 18;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BLOCK]);
}

/// A pod, as its connections see it.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) namespace: NetworkNamespace,
    /// All paths are short on one machine, so this is the least that they can cost.
    pub(super) path: ShortPath,
}

/// Serves connections that a pod's programs open.
pub(super) async fn outbound(listener: TcpListener, place: Place) {
    accept(listener, move |stream, peer| send_on(stream, peer, place.clone())).await;
}

/// Serves connections that other floors pass on to a pod.
pub(super) async fn inbound(listener: TcpListener, place: Place) {
    accept(listener, move |stream, peer| deliver(stream, peer, place.clone())).await;
}

async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream, SocketAddr) -> F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let serving = serve(stream, peer);
                tokio::task::spawn_local(async move {
                    if let Err(error) = serving.await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                });
            }
            // Descriptors have most likely run out. Others must end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn send_on(stream: TcpStream, peer: SocketAddr, place: Place) -> io::Result<()> {
    let target = original_destination_of(&stream, peer)?;
    let next = open(&place, SocketAddr::new(target.ip(), TUNNEL_PORT), None).await?;
    let mut preamble = [0; PREAMBLE];
    preamble[..16].copy_from_slice(&ipv6(target.ip()).octets());
    preamble[16..].copy_from_slice(&target.port().to_be_bytes());
    // A fresh connection has room for 18 bytes.
    if next.try_write(&preamble)? != PREAMBLE {
        return Err(io::ErrorKind::WriteZero.into());
    }
    relay(stream, next).await
}

async fn deliver(mut stream: TcpStream, peer: SocketAddr, place: Place) -> io::Result<()> {
    let mut preamble = [0; PREAMBLE];
    stream.read_exact(&mut preamble).await?;
    let (mut ip, mut port) = ([0; 16], [0; 2]);
    ip.copy_from_slice(&preamble[..16]);
    port.copy_from_slice(&preamble[16..]);
    let target = SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port));
    let next = open(&place, target, Some(SocketAddr::new(peer.ip(), 0))).await?;
    established(&next);
    relay(stream, next).await
}

fn ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

async fn open(place: &Place, target: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let options = ConnectOptions { path: place.path.clone(), ..ConnectOptions::default() };
    let socket = connector(&place.namespace, target, source, &options).map_err(io::Error::other)?;
    TcpSocket::from_std_stream(socket.into()).connect(target).await
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    /// Bytes that were read and not yet written. They begin at `written`.
    pending: Vec<u8>,
    written: usize,
    /// No more bytes will come, and the other side has been told.
    over: bool,
}

impl Direction {
    fn is_stuck(&self) -> bool {
        self.written < self.pending.len()
    }

    /// Passes on available bytes. Returns false when there may be more right away.
    fn pass(&mut self, from: &TcpStream, to: &TcpStream) -> io::Result<bool> {
        BUFFER.with_borrow_mut(|buffer| {
            for _ in 0..TURNS {
                while self.is_stuck() {
                    match to.try_write(&self.pending[self.written..]) {
                        Ok(count) => self.written += count,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                        Err(error) => return Err(error),
                    }
                }
                if self.over {
                    return Ok(true);
                }
                let count = match from.try_read(buffer) {
                    Ok(0) => {
                        self.over = true;
                        // If the other side is gone, its own direction ends as well.
                        let _ = SockRef::from(to).shutdown(Shutdown::Write);
                        return Ok(true);
                    }
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error),
                };
                let written = match to.try_write(&buffer[..count]) {
                    Ok(written) => written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error),
                };
                (self.pending, self.written) = (Vec::new(), 0);
                if written < count {
                    self.pending.extend_from_slice(&buffer[written..count]);
                }
            }
            Ok(false)
        })
    }
}

/// Passes bytes both ways until both ends are done. An error on one side resets the other.
async fn relay(left: TcpStream, right: TcpStream) -> io::Result<()> {
    let outcome = pass_both(&left, &right).await;
    if outcome.is_err() {
        for stream in [&left, &right] {
            // The other side must see a reset, not an orderly end.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
    outcome
}

async fn pass_both(left: &TcpStream, right: &TcpStream) -> io::Result<()> {
    let (mut there, mut back) = (Direction::default(), Direction::default());
    loop {
        let done_there = there.pass(left, right)?;
        let done_back = back.pass(right, left)?;
        if there.over && back.over && !there.is_stuck() && !back.is_stuck() {
            return Ok(());
        }
        if !done_there || !done_back {
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            ready = left.readable(), if !there.over && !there.is_stuck() => ready?,
            ready = right.readable(), if !back.over && !back.is_stuck() => ready?,
            ready = right.writable(), if there.is_stuck() => ready?,
            ready = left.writable(), if back.is_stuck() => ready?,
        }
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
