//! The writing half of an HTTP/2 connection over TCP, which lets several frames leave in one write.
//!
//! The HTTP library writes and flushes each DATA frame by itself. To the system that is a write, a segment and a
//! wake-up of the peer for 16 KiB or less, and two thirds of what a large body costs. Here frames are held until the
//! connection's task has nothing more to do.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::net::tcp::OwnedWriteHalf;

/// Held bytes that are written without waiting for more: what TCP gives the network in one piece.
const FULL: usize = 64 << 10;

thread_local! {
    /// Room for what is held. Most connections hold nothing most of the time, and then have no room of their own.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Frames on their way to a TCP connection. Whoever drives the connection calls [`Cork::release`] after each turn of it.
pub(crate) struct Cork(Mutex<Writing>);

struct Writing {
    half: OwnedWriteHalf,
    held: Vec<u8>,
    /// Bytes at the beginning of `held` that are written.
    written: usize,
    /// Why nothing can be written any more.
    broken: Option<io::ErrorKind>,
}

impl Cork {
    pub(crate) fn new(half: OwnedWriteHalf) -> Self {
        Self(Mutex::new(Writing { half, held: Vec::new(), written: 0, broken: None }))
    }

    /// Takes bytes. Waits if too many are held that the peer does not take.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut writing = self.0.lock();
        if writing.held.len() >= FULL {
            ready!(writing.poll_write_out(cx))?;
        }
        if let Some(kind) = writing.broken {
            return Poll::Ready(Err(kind.into()));
        }
        if writing.held.capacity() == 0 {
            writing.held = ROOM.take();
        }
        let before = writing.held.len();
        slices.iter().for_each(|slice| writing.held.extend_from_slice(slice));
        Poll::Ready(Ok(writing.held.len() - before))
    }

    /// Writes what is held. Must be called by the connection's own task, at the end of its turn: it is woken if the peer
    /// takes no more, and a failure shows in its next write.
    pub(crate) fn release(&self, cx: &mut Context<'_>) {
        if let Poll::Ready(Err(error)) = self.0.lock().poll_write_out(cx) {
            tracing::trace!(%error, "an HTTP/2 connection can't be written to");
        }
    }

    /// Writes what is held, and ends this half.
    pub(crate) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writing = self.0.lock();
        ready!(writing.poll_write_out(cx))?;
        Pin::new(&mut writing.half).poll_shutdown(cx)
    }
}

impl Writing {
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outcome = Ok(());
        while self.written < self.held.len() {
            match ready!(Pin::new(&mut self.half).poll_write(cx, &self.held[self.written..])) {
                Ok(count @ 1..) => self.written += count,
                failed => {
                    let kind = failed.err().map_or(io::ErrorKind::WriteZero, |error| error.kind());
                    (self.broken, outcome) = (Some(kind), Err(kind.into()));
                    break;
                }
            }
        }
        self.written = 0;
        self.held.clear();
        if self.held.capacity() > 0 {
            ROOM.set(std::mem::take(&mut self.held));
        }
        Poll::Ready(outcome)
    }
}

#[cfg(test)]
#[path = "write_coalescing_tests.rs"]
mod tests;
