//! A connection's requests, taken one by one, each when its receiver has room for it.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{InboundConnect, Intake, Served, serve_to};
use crate::waking::keep;
use crate::{Settings, Transport};

/// The requests of one connection. After this is dropped, new requests are refused.
#[derive(Debug)]
pub struct Requests(Arc<Mutex<Slot>>);

/// The connection's end of [`Requests`].
struct Giver(Arc<Mutex<Slot>>);

#[derive(Debug, Default)]
struct Slot {
    request: Option<InboundConnect>,
    /// The task that waits for a request.
    taker: Option<Waker>,
    /// The connection's task, if it waits for somebody to ask for a request.
    giver: Option<Waker>,
    /// Whether [`Requests`] was dropped.
    closed: bool,
    /// Whether the connection has ended.
    ended: bool,
}

/// Serves one connection as [`super::serve`] does, but accepts a request only when somebody waits for one. Until then, the
/// request stays with the library, and its bytes wait in its window. Everything else continues.
///
/// The future drives the connection. It must be polled to its end by a task of its own.
pub fn requests<'a, IO, D>(
    io: IO,
    settings: &'a Settings,
    drain: D,
) -> (Requests, impl Future<Output = Served> + use<'a, IO, D>)
where
    IO: Transport + 'static,
    D: Future<Output = Instant>,
{
    let slot = Arc::<Mutex<Slot>>::default();
    (Requests(slot.clone()), serve_to(io, settings, drain, Giver(slot)))
}

impl Requests {
    /// The next request; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<InboundConnect> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<InboundConnect>> {
        let giver = {
            let mut slot = self.0.lock();
            if let Some(request) = slot.request.take() {
                return Poll::Ready(Some(request));
            }
            if slot.ended {
                return Poll::Ready(None);
            }
            keep(&mut slot.taker, cx);
            slot.giver.take()
        };
        if let Some(giver) = giver {
            giver.wake();
        }
        Poll::Pending
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let (request, giver) = {
            let mut slot = self.0.lock();
            slot.closed = true;
            (slot.request.take(), slot.giver.take())
        };
        if let Some(request) = request {
            request.turn_away();
        }
        if let Some(giver) = giver {
            giver.wake();
        }
    }
}

impl Intake for Giver {
    fn poll_ready(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut slot = self.0.lock();
        if slot.closed || (slot.taker.is_some() && slot.request.is_none()) {
            return Poll::Ready(());
        }
        keep(&mut slot.giver, cx);
        Poll::Pending
    }

    fn take(&mut self, request: InboundConnect) {
        let taker = {
            let mut slot = self.0.lock();
            if slot.closed {
                // `turn_away` calls the library, so the lock must be released.
                drop(slot);
                return request.turn_away();
            }
            slot.request = Some(request);
            slot.taker.take()
        };
        if let Some(taker) = taker {
            taker.wake();
        }
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        let taker = {
            let mut slot = self.0.lock();
            slot.ended = true;
            slot.taker.take()
        };
        if let Some(taker) = taker {
            taker.wake();
        }
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
