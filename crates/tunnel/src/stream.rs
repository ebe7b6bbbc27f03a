//! One tunnelled connection: both directions of a CONNECT stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream, SendStream};
use leno_tls::buffer::Buffer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::carrier::{Delivery, Lane};
use crate::connection::Permit;
use crate::meter::Meter;
use crate::{Error, RelayError};

/// The byte stream of one CONNECT request, after its 200.
///
/// Two ways to use it: chunk-wise ([`TunnelStream::poll_chunk`], [`TunnelStream::send`]), where
/// the caller decides when received bytes count as consumed; or through `AsyncRead` and
/// `AsyncWrite`, where `shutdown` ends the sending half only. One may follow the other.
///
/// Dropping it before both halves have ended resets the stream (CANCEL).
pub struct TunnelStream {
    /// The library's ends of the stream: who holds them keeps it from being reset.
    send: SendStream<Bytes>,
    recv: RecvStream,
    /// Its bytes go this way.
    pub(crate) lane: Lane,
    /// What `AsyncRead` took and has not yet handed out.
    partial: Bytes,
    send_ended: bool,
    recv_ended: bool,
    /// Place among the streams of a pooled connection; none on the server side.
    _permit: Option<Permit>,
}

impl TunnelStream {
    pub(crate) fn new(send: SendStream<Bytes>, recv: RecvStream, lane: Lane, permit: Option<Permit>) -> Self {
        lane.accepted();
        Self { send, recv, lane, partial: Bytes::new(), send_ended: false, recv_ended: false, _permit: permit }
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
        match ready!(self.lane.poll_chunk(cx))? {
            Some(chunk) => Poll::Ready(Ok(Some(chunk))),
            None => {
                ready!(self.poll_end(cx))?;
                Poll::Ready(Ok(None))
            }
        }
    }

    /// Waits until the library has seen the end that the lane has: it would reset the stream if it
    /// were let go of before.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.recv_ended {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error.into())),
                None => self.recv_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Says that `bytes` received bytes have left this process, so that the peer may send as
    /// many more.
    pub fn release(&mut self, bytes: usize) {
        self.lane.release(bytes);
    }

    /// From now on, what comes is written to `socket` at once, as far as it takes it; the rest
    /// waits for [`TunnelStream::poll_deliver`]. To be called once all chunks are consumed that
    /// were taken before.
    pub(crate) fn deliver_to(&self, socket: &Arc<TcpStream>, meter: Arc<dyn Meter>) {
        self.lane.deliver_to(socket, meter);
    }

    /// Delivers what waits; ready once the peer has ended its half and all is delivered.
    pub(crate) fn poll_deliver(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        meter: &dyn Meter,
    ) -> Poll<Result<(), RelayError>> {
        match ready!(self.lane.poll_deliver(cx, socket, meter)) {
            Delivery::Socket(error) => Poll::Ready(Err(RelayError::Local(error))),
            Delivery::Stream(error) => Poll::Ready(Err(error.into())),
            Delivery::Ended => self.poll_end(cx).map_err(RelayError::from),
        }
    }

    /// Bytes delivered to a socket so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.lane.delivered()
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
        if self.send_ended {
            return Poll::Ready(Err(Error::Protocol("the sending half of the stream has ended".into())));
        }
        self.lane.poll_reserve(cx, want)
    }

    /// Gives back room that [`TunnelStream::poll_reserve`] took and nobody used.
    pub fn unreserve(&mut self) {
        self.lane.unreserve();
    }

    /// Sends the first `length` bytes of `buffer`; at most as many as were reserved.
    ///
    /// # Errors
    /// If the stream was reset, its connection lost, or its sending half ended.
    pub fn send(&mut self, buffer: Buffer, length: usize) -> Result<(), Error> {
        self.lane.send(buffer, length)
    }

    /// Sends `chunk`, without a copy; at most as many bytes as were reserved.
    ///
    /// # Errors
    /// As [`TunnelStream::send`].
    pub fn send_chunk(&mut self, chunk: Bytes) -> Result<(), Error> {
        let length = chunk.len();
        self.lane.send(chunk, length)
    }

    /// Ends the sending half (END_STREAM): the peer sees end of file. Receiving goes on.
    ///
    /// # Errors
    /// If the stream was reset or its connection lost.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.send_ended {
            return Poll::Ready(Ok(()));
        }
        // Or the end would overtake it.
        ready!(self.lane.poll_sent(cx))?;
        self.send_ended = true;
        Poll::Ready(self.send.send_data(Bytes::new(), true).map_err(Error::from))
    }

    /// As [`TunnelStream::poll_finish`], and waits until that is sent: who drops a stream before resets it, and the
    /// reset overtakes the end.
    pub(crate) fn poll_finished(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_finish(cx))?;
        self.lane.poll_ended(cx)
    }

    /// Whether the sending half was ended by [`TunnelStream::poll_finish`].
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
        self.lane.poll_failed(cx)
    }

    /// Ready when the stream has failed and what was received is not all; to be watched while nothing is
    /// received.
    pub(crate) fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.lane.poll_cut(cx)
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
        let mut buffer = Buffer::holding(buf.len());
        let most = buf.len().min(buffer.len());
        let length = ready!(self.poll_reserve(cx, most))?;
        buffer[..length].copy_from_slice(&buf[..length]);
        self.send(buffer, length)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's own task writes as soon as it can.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(cx).map_err(io::Error::from)
    }
}

impl std::fmt::Debug for TunnelStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelStream")
            .field("id", &self.lane.id())
            .field("send_ended", &self.send_ended)
            .field("recv_ended", &self.recv_ended)
            .finish_non_exhaustive()
    }
}
