//! One tunnelled connection: both directions of a CONNECT stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Error;
use crate::client::Permit;
use crate::window::{Held, Ledger};

/// The byte stream of one CONNECT request, after its 200.
///
/// Two ways to use it: chunk-wise ([`TunnelStream::poll_chunk`], [`TunnelStream::send`]), where
/// the caller decides when received bytes count as consumed; or through `AsyncRead` and
/// `AsyncWrite`, where `shutdown` ends the sending half only. One may follow the other.
///
/// Dropping it before both halves have ended resets the stream (CANCEL).
pub struct TunnelStream {
    send: SendStream<Bytes>,
    recv: RecvStream,
    /// What `AsyncRead` took from `recv` and has not yet handed out.
    partial: Bytes,
    /// Received and not released.
    pub(crate) held: Held,
    send_ended: bool,
    recv_ended: bool,
    /// Place among the streams of a pooled connection; none on the server side.
    _permit: Option<Permit>,
}

impl TunnelStream {
    pub(crate) fn new(send: SendStream<Bytes>, recv: RecvStream, ledger: Arc<Ledger>, permit: Option<Permit>) -> Self {
        let held = Held::new(ledger);
        Self { send, recv, partial: Bytes::new(), held, send_ended: false, recv_ended: false, _permit: permit }
    }

    /// Next received bytes; `None` once the peer has ended its half (END_STREAM). The peer may
    /// send more only after [`TunnelStream::release`] has been told that these were consumed.
    ///
    /// # Errors
    /// If the stream was reset or its connection lost. Bytes received before come first.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if !self.partial.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.partial))));
        }
        if self.recv_ended {
            return Poll::Ready(Ok(None));
        }
        loop {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => {
                    self.held.hold(chunk.len());
                    return Poll::Ready(Ok(Some(chunk)));
                }
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => {
                    self.recv_ended = true;
                    return Poll::Ready(Ok(None));
                }
            }
        }
    }

    /// Says that `bytes` received bytes have left this process, so that the peer may send as
    /// many more.
    pub fn release(&mut self, bytes: usize) {
        // Fails only for more bytes than were received, or a stream that is gone.
        let _ = self.recv.flow_control().release_capacity(bytes);
        self.held.give_back(bytes);
    }

    /// Whether the peer has ended its half and all its bytes were read.
    pub fn is_receive_ended(&self) -> bool {
        self.recv_ended
    }

    /// Waits until bytes may be sent; says how many, `want` at most. The room is taken from
    /// what all streams of the connection share: give it back ([`TunnelStream::unreserve`])
    /// when there turns out to be nothing to send.
    ///
    /// # Errors
    /// If the stream was reset, its connection lost, or its sending half ended.
    pub fn poll_reserve(&mut self, cx: &mut Context<'_>, want: usize) -> Poll<Result<usize, Error>> {
        self.send.reserve_capacity(want);
        loop {
            let capacity = self.send.capacity();
            if capacity > 0 {
                return Poll::Ready(Ok(capacity.min(want)));
            }
            match ready!(self.send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => return Poll::Ready(Err(self.why_closed(cx))),
            }
        }
    }

    /// Gives back room that [`TunnelStream::poll_reserve`] took and nobody used.
    pub fn unreserve(&mut self) {
        self.send.reserve_capacity(0);
    }

    /// Sends bytes; at most as many as were reserved.
    ///
    /// # Errors
    /// If the stream was reset, its connection lost, or its sending half ended.
    pub fn send(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.send.send_data(bytes, false).map_err(Error::from)
    }

    /// Ends the sending half (END_STREAM): the peer sees end of file. Receiving goes on.
    ///
    /// # Errors
    /// If the stream was reset or its connection lost.
    pub fn finish(&mut self) -> Result<(), Error> {
        if self.send_ended {
            return Ok(());
        }
        self.send_ended = true;
        self.send.send_data(Bytes::new(), true).map_err(Error::from)
    }

    /// Whether the sending half was ended by [`TunnelStream::finish`].
    pub fn is_send_ended(&self) -> bool {
        self.send_ended
    }

    /// Ends both halves at once (RST_STREAM). Bytes on their way may be lost.
    pub fn reset(&mut self, code: Reason) {
        self.send.send_reset(code);
    }

    /// Ready when the peer has reset the stream or the connection is gone; to be watched while
    /// nothing is received or sent.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        match ready!(self.send.poll_reset(cx)) {
            Ok(code) => Poll::Ready(Error::Reset { code, by_peer: true }),
            Err(error) => Poll::Ready(error.into()),
        }
    }

    fn why_closed(&mut self, cx: &mut Context<'_>) -> Error {
        match self.poll_reset(cx) {
            Poll::Ready(error) => error,
            Poll::Pending => Error::Protocol("the sending half of the stream has ended".into()),
        }
    }

    /// Next received bytes, as [`TunnelStream::poll_chunk`].
    ///
    /// # Errors
    /// As [`TunnelStream::poll_chunk`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.partial.is_empty() {
            match ready!(self.poll_chunk(cx))? {
                Some(chunk) => self.partial = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let len = self.partial.len().min(buf.remaining());
        buf.put_slice(&self.partial[..len]);
        self.partial.advance(len);
        self.release(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let len = ready!(self.poll_reserve(cx, buf.len()))?;
        self.send(Bytes::copy_from_slice(&buf[..len]))?;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's own task writes as soon as it can.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish().map_err(io::Error::from))
    }
}

impl std::fmt::Debug for TunnelStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelStream")
            .field("id", &self.send.stream_id())
            .field("send_ended", &self.send_ended)
            .field("recv_ended", &self.recv_ended)
            .finish_non_exhaustive()
    }
}
