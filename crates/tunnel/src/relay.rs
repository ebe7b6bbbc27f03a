//! Moves bytes between the two ends of a connection until both directions have ended.
//!
//! One future owns both directions. A clean end of one direction (FIN, END_STREAM) ends that half on the other side,
//! and the opposite direction goes on. An abrupt end (RST, RST_STREAM) aborts both sides, so that no program takes a
//! cut-off stream for a complete one. A slow reader slows its writer through the windows of TCP and HTTP/2, and is
//! never cut off for it.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::Reason;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::meter::Meter;
use crate::rarely::rarely;
use crate::{Error, RelayError, TunnelStream};

mod plain;
mod reset;
mod standstill;
mod tunnels;
mod upload;

use plain::Copy;
use reset::ResetWatch;
use standstill::Standstill;
use upload::Upload;

pub use tunnels::tunnel_to_tunnel;

/// Chunks that one direction moves before the thread's other tasks get their turn.
const TURN: usize = 16;

/// Parameters of a relay.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// How long one direction may be silent after the other has ended (up to twice as long may pass). Without a limit,
    /// a peer that never closes its half would keep sockets for ever.
    pub half_close_timeout: Option<Duration>,
    /// Largest read, bytes; reads start small and grow under load.
    pub largest_read: usize,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self { half_close_timeout: Some(Duration::from_secs(3600)), largest_read: 256 << 10 }
    }
}

/// Relays between a TCP connection and a tunnel. When `cancel` completes, both are aborted.
///
/// # Errors
/// See [`RelayError`]. Both sides were then aborted, the TCP one with a RST.
pub async fn tcp_to_tunnel<M: Meter>(
    tcp: TcpStream,
    mut tunnel: TunnelStream,
    meter: &Arc<M>,
    options: &RelayOptions,
    cancel: impl Future<Output = ()>,
) -> Result<(), RelayError> {
    // The tunnel's connection writes to it as well.
    let tcp = Arc::new(tcp);
    tunnel.deliver_to(&tcp, meter.clone());
    let result = {
        let mut up = Upload::new(options);
        let mut reset = ResetWatch::default();
        let mut down_done = false;
        let mut watch = HalfCloseWatch::new(options);
        let cancel = pin!(cancel);
        let mut cancel = rarely(cancel);
        poll_fn(|cx| {
            if Pin::new(&mut cancel).poll(cx).is_ready() {
                return Poll::Ready(Err(RelayError::Cancelled));
            }
            if let Poll::Ready(Err(error)) = up.poll(cx, &tcp, &mut tunnel, &**meter) {
                return Poll::Ready(Err(error));
            }
            if up.is_stalled()
                && let Poll::Ready(error) = reset.poll(cx, &tcp, up.moved())
            {
                return Poll::Ready(Err(RelayError::Local(error)));
            }
            if !down_done && let Poll::Ready(result) = tunnel.poll_deliver(cx, &tcp, &**meter) {
                result?;
                down_done = true;
                // When both halves have ended, the socket is closed, which has the same effect.
                if !up.is_done() {
                    end(&tcp).map_err(RelayError::Local)?;
                }
            }
            match (up.is_done(), down_done) {
                (true, true) => return Poll::Ready(Ok(())),
                // Nothing else would notice a peer that resets the stream after its own end.
                (false, true) => {
                    if let Poll::Ready(error) = tunnel.poll_reset(cx) {
                        return Poll::Ready(after_end(error));
                    }
                }
                (false, false) => return Poll::Pending,
                (true, false) => {}
            }
            watch.poll(cx, true, up.moved() + tunnel.delivered())
        })
        .await
    };
    match &result {
        Ok(()) => {}
        Err(RelayError::Tunnel(_)) => abort(&tcp),
        Err(RelayError::Local(_) | RelayError::Remote(_)) => {
            tunnel.reset(Reason::CONNECT_ERROR);
            abort(&tcp);
        }
        Err(RelayError::Cancelled | RelayError::HalfClosed(_)) => {
            tunnel.reset(Reason::CANCEL);
            abort(&tcp);
        }
    }
    result
}

/// The result of a failure after the peer's end. A peer that has ended its half and then drops the stream has closed its
/// connection, and everything that it sent has come. Other codes mean that something went wrong.
fn after_end(error: Error) -> Result<(), RelayError> {
    match error {
        Error::Reset { code: Reason::NO_ERROR | Reason::CANCEL, .. } => Ok(()),
        error => Err(error.into()),
    }
}

/// Relays between two TCP connections. When `cancel` completes, both are aborted.
///
/// # Errors
/// See [`RelayError`]; both connections were then aborted with a RST.
pub async fn tcp_to_tcp<M: Meter>(
    local: TcpStream,
    remote: TcpStream,
    meter: &M,
    options: &RelayOptions,
    cancel: impl Future<Output = ()>,
) -> Result<(), RelayError> {
    let result = {
        let mut forward = Copy::new(options);
        let mut backward = Copy::new(options);
        let (mut local_reset, mut remote_reset) = (ResetWatch::default(), ResetWatch::default());
        let mut watch = HalfCloseWatch::new(options);
        let cancel = pin!(cancel);
        let mut cancel = rarely(cancel);
        poll_fn(|cx| {
            if Pin::new(&mut cancel).poll(cx).is_ready() {
                return Poll::Ready(Err(RelayError::Cancelled));
            }
            let count = |bytes| meter.forward(bytes);
            match forward.poll(cx, &local, &remote, count, backward.is_done()) {
                Poll::Ready(Err(plain::Failure::Source(error))) => return Poll::Ready(Err(RelayError::Local(error))),
                Poll::Ready(Err(plain::Failure::Sink(error))) => return Poll::Ready(Err(RelayError::Remote(error))),
                _ => {}
            }
            let count = |bytes| meter.backward(bytes);
            match backward.poll(cx, &remote, &local, count, forward.is_done()) {
                Poll::Ready(Err(plain::Failure::Source(error))) => return Poll::Ready(Err(RelayError::Remote(error))),
                Poll::Ready(Err(plain::Failure::Sink(error))) => return Poll::Ready(Err(RelayError::Local(error))),
                _ => {}
            }
            if forward.is_stalled()
                && let Poll::Ready(error) = local_reset.poll(cx, &local, forward.moved())
            {
                return Poll::Ready(Err(RelayError::Local(error)));
            }
            if backward.is_stalled()
                && let Poll::Ready(error) = remote_reset.poll(cx, &remote, backward.moved())
            {
                return Poll::Ready(Err(RelayError::Remote(error)));
            }
            if forward.is_done() && backward.is_done() {
                return Poll::Ready(Ok(()));
            }
            watch.poll(cx, forward.is_done() || backward.is_done(), forward.moved() + backward.moved())
        })
        .await
    };
    if result.is_err() {
        abort(&local);
        abort(&remote);
    }
    result
}

/// Ends this side's half of a connection.
fn end(tcp: &TcpStream) -> io::Result<()> {
    match SockRef::from(tcp).shutdown(Shutdown::Write) {
        // The other end has reset the connection. What it sent before must still be delivered if it had ended its half.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        ended => ended,
    }
}

/// Makes the next close send a RST, so that the program at the other end sees an error instead of the end of a complete
/// stream.
fn abort(tcp: &TcpStream) {
    if let Err(error) = SockRef::from(tcp).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "connection can't be closed with a RST");
    }
}

/// Ends a half-closed relay that has gone silent.
struct HalfCloseWatch {
    timeout: Option<Duration>,
    /// Made when first needed, because most connections close both halves at once.
    silence: Option<Standstill>,
}

impl HalfCloseWatch {
    fn new(options: &RelayOptions) -> Self {
        Self { timeout: options.half_close_timeout, silence: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>, half_closed: bool, moved: u64) -> Poll<Result<(), RelayError>> {
        let Some(timeout) = self.timeout.filter(|_| half_closed) else { return Poll::Pending };
        let silence = self.silence.get_or_insert_with(|| Standstill::new(timeout, moved));
        silence.poll(cx, moved).map(|()| Err(RelayError::HalfClosed(timeout)))
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
