//! What a program says before the peer has answered.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use leno_tls::buffer::Buffer;
use tokio::net::TcpStream;

use crate::carrier::Lane;
use crate::sockets::try_read;

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
    ///
    /// # Errors
    /// If the program has reset its connection. Nobody else could find that out any more.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, to: &Lane) -> io::Result<()> {
        if self.done {
            return Ok(());
        }
        if self.taken.is_empty() {
            match self.poll_read(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(bytes) => self.taken = bytes?,
            }
        }
        self.send(to);
        Ok(())
    }

    /// The peer has taken the request. What an earlier one was sent in vain goes to this one.
    pub(crate) fn accepted(&mut self, to: &Lane) {
        if !self.done {
            self.send(to);
        }
        self.in_doubt = false;
    }

    /// The peer has said that it passed on nothing.
    pub(crate) fn refused(&mut self) {
        self.in_doubt = false;
    }

    fn send(&mut self, to: &Lane) {
        self.done = true;
        // None at the program's end of file, which is the relay's to pass on.
        if !self.taken.is_empty() {
            self.in_doubt = true;
            to.send_soon(self.taken.clone());
        }
    }

    fn poll_read(&self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        loop {
            ready!(self.program.poll_read_ready(cx))?;
            let mut buffer = Buffer::holding(MOST);
            match try_read(self.program, &mut buffer[..MOST]) {
                Ok(length) => return Poll::Ready(Ok(buffer.freeze(length))),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "early_tests.rs"]
mod tests;
