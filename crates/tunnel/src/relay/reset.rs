//! A program that resets its connection while nobody has room for what it sent before.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::standstill::Standstill;
use crate::rarely::{Rarely, rarely};

/// How long a reader that has stopped may stay after its sender is gone. Who reads on is not cut off in the middle of what
/// came before, as it isn't by its own kernel: a program that answers before it has read the whole request resets its
/// connection, too. Longer would keep others of a pair of pods waiting for the room that is taken.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Notices the failure of a socket that is not read meanwhile: that its program has reset it, or is not to be reached. A
/// read would notice, but there is none until the other side takes more, which it may never do: its connection and both
/// sockets would outlive the program that is gone.
///
/// Made when first asked, for most connections never have to wait for room.
#[derive(Default)]
pub(super) struct ResetWatch<'a>(Option<Box<State<'a>>>);

enum State<'a> {
    /// For the first of end and failure; true for a failure.
    Waiting(Rarely<Pin<Box<dyn Future<Output = bool> + Send + 'a>>>),
    /// It has failed. The error stays in the kernel meanwhile: what is asked for is cleared, and a read would then take
    /// what is left for the whole.
    Failed(Standstill),
    /// Its program had ended its half before. That is complete, and is delivered however slowly.
    Ended,
}

impl<'a> ResetWatch<'a> {
    /// Ready if the socket has failed before its program ended its half, and the relay stands still; `moved` is what
    /// it has moved so far. To be asked while the socket isn't read because there is no room.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, socket: &'a TcpStream, moved: u64) -> Poll<io::Error> {
        let state = self.0.get_or_insert_with(|| Box::new(State::Waiting(rarely(Box::pin(failure(socket))))));
        loop {
            **state = match &mut **state {
                State::Waiting(failed) => match Pin::new(failed).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(true) => State::Failed(Standstill::new(PATIENCE, moved)),
                    Poll::Ready(false) => State::Ended,
                },
                State::Failed(standstill) => match standstill.poll(cx, moved) {
                    Poll::Pending => return Poll::Pending,
                    // A broken pipe is the kernel's word for a reset after the end (`tcp_reset`), where both came too
                    // fast to be told apart before.
                    Poll::Ready(()) => match socket.take_error() {
                        Ok(Some(error)) if error.kind() != io::ErrorKind::BrokenPipe => return Poll::Ready(error),
                        _ => State::Ended,
                    },
                },
                State::Ended => return Poll::Pending,
            };
        }
    }
}

/// Waits for the end of what the other end sends, or a failure. Says whether it was a failure that came first.
async fn failure(socket: &TcpStream) -> bool {
    // There is no interest in an end without one in bytes, but among what comes with the former is the latter.
    match socket.ready(Interest::PRIORITY | Interest::ERROR).await {
        Ok(ready) => ready.is_error(),
        // The runtime ends.
        Err(_) => false,
    }
}

#[cfg(test)]
#[path = "reset_tests.rs"]
mod tests;
