//! Early data: a program's first bytes, sent before the peer has answered.
//!
//! They save a new connection one round trip between the nodes. They are sent to another endpoint only if the first one
//! has said that it passed on nothing; if a peer dies in between, the connection fails. So they are not sent early to a
//! peer that was silent for a second, that has not spoken HTTP/2 yet, or that has refused a request. Waypoints may
//! refuse bytes that come before their answer, so they get them afterwards.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use leno_tls::buffer::Buffer;
use tokio::net::TcpStream;

use crate::carrier::Lane;
use crate::sockets::try_read;

/// Most bytes sent before the peer has answered. Most requests fit, and little is sent in vain to a peer that refuses.
const MOST: usize = 4 << 10;

/// The first bytes of a connection. They are sent right after the request that opens the tunnel, which RFC 9113 §8.5
/// allows. The peer passes them on when it has connected, or never.
///
/// They are kept until a peer has answered, so that another one can be tried.
pub struct FirstBytes<'a> {
    program: &'a TcpStream,
    taken: Bytes,
    /// Whether this attempt needs no more bytes.
    done: bool,
    in_doubt: bool,
}

impl<'a> FirstBytes<'a> {
    /// For a connection of `program`.
    pub fn of(program: &'a TcpStream) -> Self {
        Self { program, taken: Bytes::new(), done: false, in_doubt: false }
    }

    /// The number of bytes taken from the program so far. The stream that is opened in the end carries them.
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Whether they were sent to a peer that may or may not have passed them on. Sending them to another one could make
    /// a program do something twice.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Begins another request for the same connection.
    pub(crate) fn begin(&mut self) {
        self.done = false;
    }

    /// Sends them as soon as there are any, before the answer.
    ///
    /// # Errors
    /// If the program has reset its connection. Nothing else would notice that.
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

    /// The peer has accepted the request. It gets what an earlier peer was sent in vain.
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
        // At the program's end of file there are no bytes; the relay passes the end on.
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
