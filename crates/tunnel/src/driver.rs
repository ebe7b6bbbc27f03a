//! One turn of a connection's task, for clients and servers: adjust the receive window to what waits, pass on what has
//! come, poll the library if it asked for that, send what was gathered. [`Side`] holds the differences.
//!
//! A turn reads about 256 KiB and handles a limited number of frames, so that the thread's other tasks get their turns
//! and a flood costs its sender only. It flushes once, at its end, so many small answers share a TLS record and a
//! system call. When each wake-up of the thread brings a single message, the message is sent at once
//! ([`crate::thread_sleeps`]).

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use crate::carrier::{Guard, Handle, Role, Violation};
use crate::rarely::Asked;
use crate::window::Window;
use crate::{Error, Settings, Transport};

/// The carrier of one connection. Dropping it closes the connection.
pub(crate) struct Driver {
    guard: Guard,
    window: Window,
    /// Polls the library only when it has asked for it.
    library: Asked,
}

/// The parts of a turn that differ between client and server, in order.
pub(crate) trait Side {
    /// Why a connection ended unexpectedly.
    type Error;

    /// Checks timers and requests to end the connection. Ready: it is over.
    fn poll_due(&mut self, cx: &mut Context<'_>, library: &Asked) -> Poll<Self::Error>;

    /// All that has come was passed on. `broken` is set once, if the peer broke a rule. Ready: the connection is over.
    fn poll_received(&mut self, cx: &mut Context<'_>, broken: Option<Violation>, library: &Asked) -> Poll<Self::Error>;

    /// Polls the library until it has nothing more. Ready: the connection is over.
    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// The transport failed, so the connection ends.
    fn lost(&mut self, error: io::Error) -> Self::Error;

    /// All that was gathered was given to the transport.
    fn turn_ends(&mut self) {}
}

impl Driver {
    /// For a connection that begins on `io`.
    pub(crate) fn new<IO: Transport + 'static>(io: IO, role: Role, settings: &Settings) -> Self {
        let window = Window::new(settings.connection_window, settings.window_budget.clone());
        let carrier = Handle::new(io.into_box(), role, settings, window.ledger().clone());
        Self { guard: Guard(carrier), window, library: Asked::new() }
    }

    pub(crate) fn carrier(&self) -> &Handle {
        &self.guard.0
    }

    /// Drives the connection to its end, after the library has begun it.
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
