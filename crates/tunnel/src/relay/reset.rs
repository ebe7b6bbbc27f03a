//! A program that resets its connection while nobody has room for what it sent before.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::rarely::{Rarely, rarely};

/// Notices a reset of a socket that is not read meanwhile. A read would notice, but there is none until the other side
/// takes more, which it may never do: its connection and both sockets would outlive the program that is gone.
///
/// Made when first asked, for most connections never have to wait for room.
#[derive(Default)]
pub(super) struct ResetWatch<'a>(Option<Rarely<Waiting<'a>>>);

type Waiting<'a> = Pin<Box<dyn Future<Output = io::Error> + Send + 'a>>;

impl<'a> ResetWatch<'a> {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, socket: &'a TcpStream) -> Poll<io::Error> {
        let waiting = self.0.get_or_insert_with(|| rarely(Box::pin(reset(socket)) as Waiting<'_>));
        Pin::new(waiting).poll(cx)
    }
}

/// Resolves if the other end resets the connection before it has ended its half. What it has ended is complete, and is
/// delivered however slowly: the kernel then calls a reset a broken pipe (`tcp_reset`), and keep-alive probes of a program
/// that is gone time out.
async fn reset(socket: &TcpStream) -> io::Error {
    match socket.ready(Interest::ERROR).await.and_then(|_| socket.take_error()) {
        Ok(Some(error)) if error.kind() == io::ErrorKind::ConnectionReset => error,
        _ => pending().await,
    }
}
