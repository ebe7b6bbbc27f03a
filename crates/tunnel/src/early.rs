//! What a program says before the peer has answered.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use leno_tls::buffer::Buffer;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// At most so much is sent before the peer has answered, bytes: most requests fit, and a peer
/// that refuses has not been sent much for nothing.
const MOST: usize = 4 << 10;

/// The first bytes of a connection, sent after the request that opens its tunnel without waiting
/// for the answer: one way there and back between the nodes less. RFC 9113 §8.5 lets a client do
/// so; the peer passes them on once it has connected, or never.
///
/// They are kept until a peer has answered, so that another one can be asked for the same.
pub struct FirstBytes<'a> {
    program: &'a TcpStream,
    taken: Bytes,
    /// This attempt needs no more of them.
    done: bool,
    in_doubt: bool,
}

impl<'a> FirstBytes<'a> {
    /// What will come first from `program`.
    pub fn of(program: &'a TcpStream) -> Self {
        Self { program, taken: Bytes::new(), done: false, in_doubt: false }
    }

    /// How many were taken from the program. The stream that is opened in the end carries them.
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// They were sent to a peer of which nobody knows whether it has passed them on: to send them
    /// to another could make a program do something twice.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Another request is made for the same connection.
    pub(crate) fn begin(&mut self) {
        self.done = false;
    }

    /// Sends them as soon as there are any, before the answer.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, to: &mut SendStream<Bytes>) {
        if self.done {
            return;
        }
        if self.taken.is_empty() {
            match self.poll_read(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(bytes)) => self.taken = bytes,
                // The relay finds it again, or who watches for it.
                Poll::Ready(Err(_)) => {}
            }
        }
        self.send(to);
    }

    /// The peer has taken the request. What an earlier one was sent in vain goes to this one.
    pub(crate) fn accepted(&mut self, to: &mut SendStream<Bytes>) {
        if !self.done {
            self.send(to);
        }
        self.in_doubt = false;
    }

    /// The peer has said that it passed on nothing.
    pub(crate) fn refused(&mut self) {
        self.in_doubt = false;
    }

    fn send(&mut self, to: &mut SendStream<Bytes>) {
        self.done = true;
        // None at the program's end of file, which is the relay's to pass on.
        if !self.taken.is_empty() {
            self.in_doubt = true;
            // HTTP/2 keeps what its windows have no room for. A stream that is gone says so itself.
            let _ = to.send_data(self.taken.clone(), false);
        }
    }

    fn poll_read(&self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        loop {
            ready!(self.program.poll_read_ready(cx))?;
            let mut buffer = Buffer::holding(MOST);
            match self.program.try_read(&mut buffer[..MOST]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(len) => {
                    if (1..MOST).contains(&len) {
                        // There is no more for now. The relay would otherwise ask the kernel for it.
                        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
                        let _ = self.program.try_io(Interest::READABLE, nothing);
                    }
                    return Poll::Ready(Ok(buffer.freeze(len)));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

#[cfg(test)]
#[path = "early_tests.rs"]
mod tests;
