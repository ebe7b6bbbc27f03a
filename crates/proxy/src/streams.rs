//! How a TCP connection gets to a worker, and how it ends abruptly.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leno_telemetry::accepting;
use leno_tunnel::timers;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};

use crate::threads::Worker;

/// Moves a connection to a worker, which continues with `then`. If that fails, the connection is closed.
pub fn hand_over<F>(
    stream: TcpStream,
    peer: SocketAddr,
    worker: &Worker,
    then: impl FnOnce(TcpStream) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    match stream.into_std() {
        Ok(stream) => worker.spawn(async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => then(stream).await,
                Err(error) => tracing::warn!(%error, %peer, "a connection can't be taken over by another thread"),
            }
        }),
        Err(error) => tracing::warn!(%error, %peer, "a connection can't be handed over to another thread"),
    }
}

/// As `accept`, but without asking the reactor, which may not know yet.
fn already_there(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = SockRef::from(listener).accept()?;
    stream.set_nonblocking(true)?;
    let peer = peer.as_socket().ok_or_else(|| io::Error::other("the peer has no address"))?;
    Ok((TcpStream::from_std(stream.into())?, peer))
}

/// The next connection; `None` when `stopping` has resolved and none is waiting any more. The queue is emptied because
/// closing a listener resets what it holds. A failed accept concerns that connection, never the listener.
pub async fn accept_next(
    listener: &TcpListener,
    stopping: impl Future<Output = ()>,
) -> Option<(TcpStream, SocketAddr)> {
    tokio::pin!(stopping);
    let mut stopped = false;
    loop {
        let accepted = if stopped {
            already_there(listener)
        } else {
            tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stopping => {
                    stopped = true;
                    continue;
                }
            }
        };
        match accepted {
            Err(error) if stopped && error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok((stream, peer)) => return Some((stream, canonical(peer))),
            Err(error) => match accepting::pause_after(&error) {
                // The shortage may last for ever, and the listener must get closed.
                Some(_) if stopped && !accepting::is_shortage(&error) => return None,
                Some(pause) => timers::sleep(pause).await,
                // There are no more of these than connections in the queue.
                None => {}
            },
        }
    }
}

/// Resolves when the other end has reset the connection. For the time before its bytes are read, while something else
/// is waited for. An orderly end does not count: a caller may have sent everything before its answer comes.
pub async fn given_up(stream: &TcpStream) -> io::Error {
    let reason = match stream.ready(Interest::ERROR).await {
        Ok(_) => stream.take_error(),
        Err(error) => Err(error),
    };
    match reason {
        Ok(None) => std::future::pending().await,
        Ok(Some(error)) | Err(error) => error,
    }
}

/// An IPv4 address as IPv4, even if a dual-stack socket shows it as IPv6.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Closes a connection with a reset, so that the program at the other end does not take what it got for a complete
/// answer.
pub fn reset(stream: TcpStream) {
    if let Err(error) = SockRef::from(&stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "connection can't be closed with a reset");
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
