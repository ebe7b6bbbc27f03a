//! One stream, as the rest of this crate uses it.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::net::TcpStream;

use super::Handle;
use super::chunks::SLICES;
use super::outgoing::Payload;
use super::stream::Sink;
use crate::Error;
use crate::meter::Meter;
use crate::sockets::write_now;

/// Both directions of one stream's bytes. Bytes that come after it was dropped are discarded.
pub(crate) struct Lane {
    carrier: Handle,
    stream: u32,
}

/// The result of a delivery.
pub(crate) enum Delivery {
    /// The program's socket failed.
    Socket(io::Error),
    /// The stream failed.
    Stream(Error),
    /// The peer has ended its half, and everything before that was delivered.
    Ended,
}

impl Lane {
    pub(super) fn new(carrier: Handle, stream: u32) -> Self {
        Self { carrier, stream }
    }

    /// The stream's number.
    pub(crate) fn id(&self) -> u32 {
        self.stream
    }

    /// The stream has become a tunnel.
    pub(crate) fn accepted(&self) {
        let mut carrier = self.carrier.0.lock();
        let may_tell = carrier.incoming.demux.may_interrupt();
        let Some(stream) = carrier.streams.get_mut(&self.stream) else { return };
        stream.receiving.accept();
        if may_tell && stream.receiving.take_due() {
            carrier.incoming.inbox.tell_end(self.stream);
        }
    }

    /// The next received bytes; `None` when the peer has ended its half.
    pub(crate) fn poll_chunk(&self, cx: &Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        let mut carrier = self.carrier.0.lock();
        let Some(stream) = carrier.streams.get_mut(&self.stream) else { return Poll::Ready(Ok(None)) };
        if let Some(chunk) = stream.chunks.pop() {
            return Poll::Ready(Ok(Some(chunk)));
        }
        if stream.receiving.has_ended() { Poll::Ready(Ok(None)) } else { stream.poll_failed(cx).map(Err) }
    }

    /// This many bytes of chunks have left this process.
    pub(crate) fn release(&self, bytes: usize) {
        let mut carrier = self.carrier.0.lock();
        if let Some(stream) = carrier.streams.get_mut(&self.stream) {
            let given_back = stream.held.give_back(bytes);
            carrier.consumed(self.stream, given_back as u32);
            carrier.tell_connection_credit();
        }
    }

    /// From now on, received bytes go straight to the socket. What it has no room for waits for [`Lane::poll_deliver`].
    pub(crate) fn deliver_to(&self, socket: &Arc<TcpStream>, meter: Arc<dyn Meter>) {
        if let Some(stream) = self.carrier.0.lock().streams.get_mut(&self.stream) {
            stream.sink = Some(Sink { socket: socket.clone(), meter });
        }
    }

    /// Writes waiting bytes to the socket.
    pub(crate) fn poll_deliver(&self, cx: &mut Context<'_>, socket: &TcpStream, meter: &dyn Meter) -> Poll<Delivery> {
        let mut carrier = self.carrier.0.lock();
        loop {
            let Some(stream) = carrier.streams.get_mut(&self.stream) else { return Poll::Ready(Delivery::Ended) };
            if stream.chunks.is_empty() {
                let ended = stream.receiving.has_ended();
                return if ended { Poll::Ready(Delivery::Ended) } else { stream.poll_failed(cx).map(Delivery::Stream) };
            }
            match socket.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Delivery::Socket(error)),
                // A complete stream stays complete, whatever happens to the connection.
                Poll::Pending if stream.receiving.has_ended() => return Poll::Pending,
                Poll::Pending => return stream.poll_failed(cx).map(Delivery::Stream),
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = stream.chunks.slices(&mut slices);
            match write_now(socket, &slices[..count]) {
                Err(error) => return Poll::Ready(Delivery::Socket(error)),
                Ok(written) => {
                    stream.chunks.advance(written);
                    stream.held.give_back(written);
                    stream.delivered += written as u64;
                    carrier.consumed(self.stream, written as u32);
                    carrier.tell_connection_credit();
                    meter.backward(written as u64);
                }
            }
        }
    }

    /// Bytes written to the socket so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.carrier.0.lock().streams.get(&self.stream).map_or(0, |stream| stream.delivered)
    }

    /// See [`crate::TunnelStream::poll_reserve`].
    pub(crate) fn poll_reserve(&self, cx: &Context<'_>, want: usize) -> Poll<Result<usize, Error>> {
        self.carrier.0.lock().poll_reserve(self.stream, cx, want)
    }

    /// The reserved room is not needed.
    pub(crate) fn unreserve(&self) {
        self.carrier.0.lock().leave_queue(self.stream);
    }

    /// Sends the first `length` bytes of `payload`, at most as many as were reserved.
    pub(crate) fn send(&self, payload: impl Payload, length: usize) -> Result<(), Error> {
        self.carrier.0.lock().send(self.stream, payload, length)
    }

    /// Sends bytes as soon as the stream is open. Everything given before must have been sent.
    pub(crate) fn send_soon(&self, bytes: Bytes) {
        self.carrier.0.lock().send_soon(self.stream, bytes);
    }

    /// Waits until everything given was sent.
    pub(crate) fn poll_sent(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        self.carrier.0.lock().poll_sent(self.stream, cx)
    }

    /// Waits until the end of our half was sent.
    pub(crate) fn poll_ended(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        self.carrier.0.lock().poll_ended(self.stream, cx)
    }

    /// Ready when the stream has failed before the peer ended its half, so that what came is not everything. Replaces
    /// the waker of a task that waits for received bytes.
    pub(crate) fn poll_cut(&self, cx: &Context<'_>) -> Poll<Error> {
        let mut carrier = self.carrier.0.lock();
        let stream = carrier.streams.get_mut(&self.stream).filter(|stream| !stream.receiving.has_ended());
        stream.map_or(Poll::Pending, |stream| stream.poll_failed(cx))
    }

    /// Whether the stream has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.carrier.0.lock().streams.get(&self.stream).is_none_or(|stream| stream.failure.is_some())
    }

    /// Ready when the stream has failed. Replaces the waker of a task that waits for received bytes.
    pub(crate) fn poll_failed(&self, cx: &Context<'_>) -> Poll<Error> {
        let mut carrier = self.carrier.0.lock();
        carrier.streams.get_mut(&self.stream).map_or(Poll::Pending, |stream| stream.poll_failed(cx))
    }
}

#[cfg(test)]
impl Lane {
    /// Waiting bytes of this stream, and of all streams of the connection.
    pub(crate) fn held(&self) -> (usize, usize) {
        self.carrier.0.lock().streams[&self.stream].held.all()
    }

    /// Its carrier, which may outlive the lane.
    pub(super) fn carrier(&self) -> Handle {
        self.carrier.clone()
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut carrier = self.carrier.0.lock();
        carrier.leave_queue(self.stream);
        let Some(stream) = carrier.streams.get_mut(&self.stream) else { return };
        let sink = stream.abandon();
        let given_back = stream.held.give_back(usize::MAX);
        carrier.consumed(self.stream, given_back as u32);
        carrier.tell_connection_credit();
        carrier.forget_if_over(self.stream);
        carrier.forget_if_never_opened(self.stream);
        drop(carrier);
        // Closes the program's socket if the relay has ended.
        drop(sink);
    }
}
