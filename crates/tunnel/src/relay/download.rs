//! From a tunnel into a TCP connection.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;
use tokio::net::tcp::WriteHalf;

use super::{Meter, RelayError, TURN};
use crate::TunnelStream;

/// Chunks handed to one system call.
const SLICES: usize = 32;

/// Chunks up to this length are gathered while the socket is full. HTTP/2 bounds what waits by
/// its payload only: thousands of one-byte frames would each keep a read buffer alive, and h2
/// ends the whole connection when too many of them wait.
const GATHER_BELOW: usize = 1 << 10;

/// Room for gathered chunks, bytes.
const GATHERED: usize = 8 << 10;

#[derive(Default)]
pub(super) struct Download {
    /// Received, not yet written. What waits here has not been released to the peer, so the
    /// stream's window bounds it.
    waiting: VecDeque<Bytes>,
    /// Behind everything in `waiting`.
    gathered: BytesMut,
    ended: bool,
    done: bool,
    moved: u64,
}

impl Download {
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Ready once the direction has ended.
    pub(super) fn poll<M: Meter>(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &mut WriteHalf<'_>,
        tunnel: &mut TunnelStream,
        meter: &M,
        opposite_done: bool,
    ) -> Poll<Result<(), RelayError>> {
        for _ in 0..TURN {
            if self.done {
                return Poll::Ready(Ok(()));
            }
            self.pull(cx, tunnel)?;
            if self.waiting.is_empty() {
                if self.ended {
                    return self.end(cx, tcp, opposite_done);
                }
                self.waiting = VecDeque::new();
                return Poll::Pending;
            }
            let written = ready!(self.write(cx, tcp)).map_err(RelayError::Local)?;
            tunnel.release(written);
            self.moved += written as u64;
            meter.backward(written as u64);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes what the connection has received for this stream.
    fn pull(&mut self, cx: &mut Context<'_>, tunnel: &mut TunnelStream) -> Result<(), RelayError> {
        while !self.ended {
            match tunnel.poll_chunk(cx)? {
                Poll::Pending => break,
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(chunk)) => self.push(chunk),
            }
        }
        self.seal();
        Ok(())
    }

    fn push(&mut self, chunk: Bytes) {
        // The first chunk most often goes out at once: no copy.
        if self.waiting.is_empty() || chunk.len() > GATHER_BELOW {
            self.seal();
            self.waiting.push_back(chunk);
            return;
        }
        if self.gathered.capacity() - self.gathered.len() < chunk.len() {
            self.seal();
            // Continue the last gathering if its memory is ours alone, else start another.
            self.gathered = match self.waiting.pop_back().map(Bytes::try_into_mut) {
                Some(Ok(last)) if last.capacity() - last.len() >= chunk.len() => last,
                Some(Ok(last)) => {
                    self.waiting.push_back(last.freeze());
                    BytesMut::with_capacity(GATHERED)
                }
                Some(Err(last)) => {
                    self.waiting.push_back(last);
                    BytesMut::with_capacity(GATHERED)
                }
                None => BytesMut::with_capacity(GATHERED),
            };
        }
        self.gathered.extend_from_slice(&chunk);
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.waiting.push_back(std::mem::take(&mut self.gathered).freeze());
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, tcp: &mut WriteHalf<'_>) -> Poll<std::io::Result<usize>> {
        let written = if let (Some(only), 1) = (self.waiting.front(), self.waiting.len()) {
            // The kernel has less to do than for a vector of one.
            ready!(Pin::new(tcp).poll_write(cx, only))?
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, chunk) in slices.iter_mut().zip(&self.waiting) {
                *slice = IoSlice::new(chunk);
                count += 1;
            }
            ready!(Pin::new(tcp).poll_write_vectored(cx, &slices[..count]))?
        };
        let mut rest = written;
        while let Some(chunk) = self.waiting.front_mut() {
            if rest < chunk.len() {
                chunk.advance(rest);
                break;
            }
            rest -= chunk.len();
            self.waiting.pop_front();
        }
        Poll::Ready(Ok(written))
    }

    fn end(
        &mut self,
        cx: &mut Context<'_>,
        tcp: &mut WriteHalf<'_>,
        opposite_done: bool,
    ) -> Poll<Result<(), RelayError>> {
        // Once both halves have ended the socket is closed, which says the same.
        if !opposite_done {
            ready!(Pin::new(tcp).poll_shutdown(cx)).map_err(RelayError::Local)?;
        }
        self.done = true;
        Poll::Ready(Ok(()))
    }
}
