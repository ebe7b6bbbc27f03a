//! One tunnelled connection: both directions of a CONNECT stream.

use std::future::poll_fn;
use std::io::{self, IoSlice};
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
/// There are two ways to use it: by chunks ([`TunnelStream::poll_chunk`], [`TunnelStream::send`]), where the caller decides
/// when received bytes count as consumed; or through `AsyncRead` and `AsyncWrite`, where `shutdown` ends the sending half
/// only. A caller may change from one to the other.
///
/// Dropping it before both halves have ended resets the stream (CANCEL).
pub struct TunnelStream {
    /// The library's ends of the stream. Dropping them would reset it.
    send: SendStream<Bytes>,
    recv: RecvStream,
    /// Carries its bytes.
    pub(crate) lane: Lane,
    /// Bytes that `AsyncRead` took and has not handed out yet.
    partial: Bytes,
    send_ended: bool,
    recv_ended: bool,
    /// Its place among the streams of a pooled connection; `None` on the server side.
    _permit: Option<Permit>,
}

impl TunnelStream {
    pub(crate) fn new(send: SendStream<Bytes>, recv: RecvStream, lane: Lane, permit: Option<Permit>) -> Self {
        lane.accepted();
        Self { send, recv, lane, partial: Bytes::new(), send_ended: false, recv_ended: false, _permit: permit }
    }

    /// The next received bytes; `None` when the peer has ended its half (END_STREAM). The peer may send more only after
    /// [`TunnelStream::release`] was called for these.
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

    /// Waits until the library, too, has seen the end of the peer's half. If the stream were dropped before, the library
    /// would reset it.
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

    /// Gives back bytes that were taken and not used: they come next.
    pub fn unread(&mut self, mut bytes: Bytes) {
        if !self.partial.is_empty() {
            bytes = [&bytes[..], &self.partial[..]].concat().into();
        }
        self.partial = bytes;
    }

    /// Waits for more bytes than are unread, and leaves all of them so. `false`: the peer has ended its half.
    ///
    /// # Errors
    /// As [`TunnelStream::poll_chunk`].
    pub fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        if self.recv_ended {
            return Poll::Ready(Ok(false));
        }
        match ready!(self.lane.poll_chunk(cx))? {
            Some(more) if self.partial.is_empty() => self.partial = more,
            Some(more) => self.partial = [&self.partial[..], &more[..]].concat().into(),
            None => {
                ready!(self.poll_end(cx))?;
                return Poll::Ready(Ok(false));
            }
        }
        Poll::Ready(Ok(true))
    }

    /// The bytes that were received and given back, or peeked at.
    pub fn unread_bytes(&self) -> &[u8] {
        &self.partial
    }

    /// Takes the unread bytes, which count as received but not as consumed.
    pub fn take_unread(&mut self) -> Bytes {
        std::mem::take(&mut self.partial)
    }

    /// Tells that `bytes` received bytes have left this process, so that the peer may send as many more.
    pub fn release(&mut self, bytes: usize) {
        self.lane.release(bytes);
    }

    /// From now on, received bytes are written to `socket` at once, as far as it has room. The rest waits for
    /// [`TunnelStream::poll_deliver`]. Call it when all chunks that were taken before are consumed.
    pub(crate) fn deliver_to(&self, socket: &Arc<TcpStream>, meter: Arc<dyn Meter>) {
        self.lane.deliver_to(socket, meter);
    }

    /// Delivers waiting bytes. Ready when the peer has ended its half and everything is delivered.
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

    /// Waits until bytes may be sent. Returns how many, at most `want`. The room is reserved from what all streams of the
    /// connection share. Give it back ([`TunnelStream::unreserve`]) if there is nothing to send after all.
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

    /// Sends the first `length` bytes of `buffer`, at most as many as were reserved.
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

    /// Ends the sending half (END_STREAM). The peer sees the end of the stream. Receiving goes on.
    ///
    /// # Errors
    /// If the stream was reset or its connection lost.
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.send_ended {
            return Poll::Ready(Ok(()));
        }
        // Otherwise the end would overtake these bytes.
        ready!(self.lane.poll_sent(cx))?;
        self.send_ended = true;
        Poll::Ready(self.send.send_data(Bytes::new(), true).map_err(Error::from))
    }

    /// As [`TunnelStream::poll_finish`], and waits until the end was sent. Dropping a stream before that resets it, and the
    /// reset overtakes the end.
    ///
    /// # Errors
    /// As [`TunnelStream::poll_finish`].
    pub fn poll_finished(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_finish(cx))?;
        self.lane.poll_ended(cx)
    }

    /// Ends both halves at once (RST_STREAM). Bytes on their way may be lost.
    pub fn reset(&mut self, code: Reason) {
        self.send.send_reset(code);
    }

    /// Ready when the peer has reset the stream or the connection is gone. For use while nothing is received or sent.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.lane.poll_failed(cx)
    }

    /// Ready when the stream has failed before the peer ended its half. For use while nothing is received.
    pub(crate) fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.lane.poll_cut(cx)
    }

    /// Whether the peer has ended its half, and that was seen here.
    pub fn has_ended(&self) -> bool {
        self.recv_ended
    }

    /// Whether this side has ended its half.
    pub fn has_finished(&self) -> bool {
        self.send_ended
    }

    /// The next received bytes, as [`TunnelStream::poll_chunk`].
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

    /// One frame for as many of the slices as fit.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        if all == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut buffer = Buffer::holding(all);
        let most = all.min(buffer.len());
        let length = ready!(self.poll_reserve(cx, most))?;
        let mut filled = 0;
        for slice in slices {
            let part = slice.len().min(length - filled);
            buffer[filled..filled + part].copy_from_slice(&slice[..part]);
            filled += part;
        }
        self.send(buffer, length)?;
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
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
