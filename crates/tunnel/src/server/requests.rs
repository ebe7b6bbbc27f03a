//! A connection's requests, taken one by one: who looks into each takes the next when it has room for it.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{InboundConnect, Intake, Served, serve_to};
use crate::waking::keep;
use crate::{Settings, Transport};

/// The requests of one connection. Those that come when it was dropped are turned away.
#[derive(Debug)]
pub struct Requests(Arc<Mutex<Slot>>);

/// Gives them to it.
struct Giver(Arc<Mutex<Slot>>);

#[derive(Debug, Default)]
struct Slot {
    request: Option<InboundConnect>,
    /// Who waits for one.
    taker: Option<Waker>,
    /// The connection, where it waits for somebody to ask.
    giver: Option<Waker>,
    /// Nobody will ask any more.
    closed: bool,
    /// No more will come.
    ended: bool,
}

/// Serves one connection as [`super::serve`] does, but accepts a request only where somebody waits for it:
/// until then it is the library's, and what the peer says on it waits in its window. All else goes on.
///
/// The future is the connection: it is to be polled, by a task of its own, to its end.
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
    /// The next; `None` once the connection has ended.
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
                // It calls the library.
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
