//! Notices a program that resets its connection while what it sent before still waits for room.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;

use super::standstill::Standstill;
use crate::rarely::{Rarely, rarely};

/// How long a reader that has stopped may keep its connection after its sender is gone. A reader that goes on gets all
/// bytes that were sent before the reset, as from its own kernel: a program that answers before it has read the whole
/// request resets its connection as well. With a longer time, other connections between the two pods would wait for the
/// room that these bytes take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Notices that a socket has failed while it is not read: its program has reset it or can't be reached. A read would
/// notice, but there is none until the other side takes more, which may never happen. Then the connection and both sockets
/// would outlive the program.
///
/// The state is created at the first poll, because most connections never have to wait for room.
#[derive(Default)]
pub(super) struct ResetWatch<'a>(Option<Box<State<'a>>>);

enum State<'a> {
    /// Waits for the program's end or failure; true for a failure.
    Waiting(Rarely<Pin<Box<dyn Future<Output = bool> + Send + 'a>>>),
    /// It has failed. The error must stay in the kernel: asking for it clears it, and a later read would then report a
    /// complete stream.
    Failed(Standstill),
    /// Its program had ended its half before. The stream is complete, and is delivered however slowly.
    Ended,
}

impl<'a> ResetWatch<'a> {
    /// Ready if the socket has failed before its program ended its half, and the relay stands still. `moved` is the number
    /// of bytes that the relay has moved. Call it while the socket isn't read for want of room.
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
                    // The kernel reports a broken pipe for a reset after the end (`tcp_reset`), if both came too
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

/// Waits until the program has ended its half or the socket has failed. Returns whether the failure came first.
async fn failure(socket: &TcpStream) -> bool {
    // Tokio can't wait for an end alone, only for bytes or an end. Its answer tells which of them came.
    match socket.ready(Interest::PRIORITY | Interest::ERROR).await {
        Ok(ready) => ready.is_error(),
        // An error means that the runtime is ending.
        Err(_) => false,
    }
}

#[cfg(test)]
#[path = "reset_tests.rs"]
mod tests;
