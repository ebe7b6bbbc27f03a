//! What the task of a connection does each time it is polled, be it a client's or a server's: the receive
//! window follows what waits, what has come is passed on, the library looks at what is its own, and what was
//! gathered leaves. [`Side`] is what the two do differently.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use crate::carrier::{Guard, Handle, Role, Violation};
use crate::rarely::Asked;
use crate::window::Window;
use crate::{Error, Settings, Transport};

/// One connection's carrier, held: dropped, the connection is closed.
pub(crate) struct Driver {
    guard: Guard,
    window: Window,
    /// The library is polled only where it has asked for that.
    library: Asked,
}

/// What a client or a server does in a turn, in this order.
pub(crate) trait Side {
    /// Why the connection ended that nobody wanted to end.
    type Error;

    /// Looks at the clock, and at who wants the connection to end. Ready: it is over.
    fn poll_due(&mut self, cx: &mut Context<'_>, library: &Asked) -> Poll<Self::Error>;

    /// All that has come was passed on. `broken` is told once, if the peer broke a rule by it. Ready: the
    /// connection is over.
    fn poll_received(&mut self, cx: &mut Context<'_>, broken: Option<Violation>, library: &Asked) -> Poll<Self::Error>;

    /// Polls the library until it has nothing more. Ready: the connection is over.
    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// The transport failed, and so the connection ends.
    fn lost(&mut self, error: io::Error) -> Self::Error;

    /// All that was gathered has been given to the transport.
    fn turn_ends(&mut self) {}
}

impl Driver {
    /// Of a connection that begins on `io`.
    pub(crate) fn new<IO: Transport + 'static>(io: IO, role: Role, settings: &Settings) -> Self {
        let window = Window::new(settings.connection_window, settings.window_budget.clone());
        let carrier = Handle::new(io.into_box(), role, settings, window.ledger().clone());
        Self { guard: Guard(carrier), window, library: Asked::new() }
    }

    pub(crate) fn carrier(&self) -> &Handle {
        &self.guard.0
    }

    /// Drives the connection to its end, once the library has begun it.
    pub(crate) async fn run<S: Side>(&mut self, side: &mut S) -> Result<(), S::Error> {
        poll_fn(|cx| self.poll_turn(cx, side)).await
    }

    fn poll_turn<S: Side>(&mut self, cx: &mut Context<'_>, side: &mut S) -> Poll<Result<(), S::Error>> {
        let carrier = &self.guard.0;
        if let Poll::Ready(error) = side.poll_due(cx, &self.library) {
            return Poll::Ready(Err(error));
        }
        if let Some(size) = self.window.turn(cx) {
            carrier.resize_window(size);
        }
        let broken = carrier.begin_turn(cx).err();
        if let Poll::Ready(error) = side.poll_received(cx, broken, &self.library) {
            return Poll::Ready(Err(error));
        }
        let ended = self.library.poll(cx, |cx| side.poll_library(cx));
        if let Err(error) = carrier.end_turn(cx)
            && ended.is_pending()
        {
            return Poll::Ready(Err(side.lost(error)));
        }
        side.turn_ends();
        ended
    }

    /// Closes the connection; open streams end with this error.
    pub(crate) fn close(self, error: &Error) {
        self.guard.0.close(error);
    }
}
