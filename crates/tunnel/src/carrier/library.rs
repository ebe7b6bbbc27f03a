//! The carrier as the HTTP/2 library's transport.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::Handle;
use crate::timers::sleep;

/// When shut down, it reads on until the peer has closed too.
///
/// Otherwise a late frame of the peer (mostly a WINDOW_UPDATE) would meet a closed socket. The kernel answers that with
/// a RST and discards what it has not sent yet: the last megabytes of the connection's last streams.
pub(crate) struct LibraryIo {
    carrier: Handle,
    patience: Patience,
    /// Set while it waits for the peer to close.
    leaving: Option<Pin<Box<Sleep>>>,
}

/// How long a peer may take to close after this side has. Clones share the value.
#[derive(Clone)]
pub(crate) struct Patience(Arc<AtomicU64>);

impl Patience {
    /// Long enough for a final GOAWAY to arrive, and no longer, because a peer that gets a GOAWAY may keep sending.
    fn short() -> Self {
        Self(Arc::new(AtomicU64::new(1000)))
    }

    /// This connection will end in good order, and may still have much to deliver.
    pub(crate) fn raise(&self, to: Duration) {
        self.0.store(u64::try_from(to.as_millis()).unwrap_or(u64::MAX), Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }
}

impl LibraryIo {
    pub(super) fn new(carrier: Handle) -> Self {
        Self { carrier, patience: Patience::short(), leaving: None }
    }

    pub(crate) fn patience(&self) -> Patience {
        self.patience.clone()
    }
}

impl AsyncRead for LibraryIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut carrier = self.carrier.0.lock();
        let mut given = carrier.incoming.inbox.give(buf);
        if given.is_none() && !carrier.has_task {
            carrier.driven_by(cx);
            // A peer may flood from its first byte on: until there is a task, each of these reads is a turn.
            carrier.incoming.demux.turn_begins();
            carrier.receive(cx);
            given = carrier.incoming.inbox.give(buf);
        }
        if given.is_some() && std::mem::take(&mut carrier.incoming.paused) {
            // There is room again, and nothing else would wake the driver.
            carrier.wake_driver();
        }
        match given {
            Some(given) => Poll::Ready(given),
            None => {
                carrier.incoming.inbox.waits(cx);
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for LibraryIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut carrier = self.carrier.0.lock();
        if !carrier.has_task {
            carrier.driven_by(cx);
        }
        carrier.poll_library_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut carrier = self.carrier.0.lock();
        // If there is a task, it flushes at the end of the turn, once for all frames.
        if carrier.has_task { Poll::Ready(Ok(())) } else { carrier.poll_flush(cx) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let mut carrier = this.carrier.0.lock();
        if !std::mem::replace(&mut carrier.leaving, true) {
            // From here on, the transport wakes whoever polls this. Nothing is carried any more: the peer may take its
            // time to close, and programs must not wait for it.
            let error = carrier.last_word();
            carrier.fail(&error);
        }
        if this.leaving.is_none() {
            ready!(carrier.poll_flush(cx))?;
        }
        let Some(io) = &mut carrier.io else { return Poll::Ready(Ok(())) };
        if this.leaving.is_none() {
            ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
        }
        let timer = this.leaving.get_or_insert_with(|| Box::pin(sleep(this.patience.get())));
        let mut scratch = [0; 4096];
        loop {
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut unwanted = ReadBuf::new(&mut scratch);
            // The peer has closed, with or without an error.
            if ready!(Pin::new(&mut *io).poll_read(cx, &mut unwanted)).is_err() || unwanted.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
