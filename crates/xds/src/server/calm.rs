//! Between TLS and the HTTP/2 library: bounds what a flooding client may cost, and ends its connection.
//!
//! The library handles and answers frames as long as there are any, without a limit for frames that carry nothing.
//! Anybody who reaches the port can send them, because clients prove their identity only by a token in a request.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leno_tunnel::calm::Calm;
use leno_tunnel::frame::{CONTINUATION, DATA, END_STREAM, HEAD, HEADERS, Head, PREFACE, Piece, Splitter};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes that the library gets in one turn, before all other tasks have had theirs.
const TURN: usize = 16 << 10;
/// The least that a frame counts as, bytes.
const FRAME: usize = 128;
/// Bytes read at once. Frames are counted after they have been read, so a turn is at most one such read longer than it should
/// be: 241 PINGs.
const READ: usize = 2 << 10;

/// Frames that a client may send within ten seconds that carry nothing, besides those that it earns by what it is sent. A
/// proxy sends one such frame for several that it receives. Its own bytes earn nothing: anybody can send some, on a stream
/// that was refused.
const MOST: u32 = 20_000;

/// The time for the final GOAWAY to arrive.
const FAREWELL: Duration = Duration::from_secs(1);

const ENHANCE_YOUR_CALM: u32 = 11;

/// A transport that counts frames.
pub(super) struct Calming<IO> {
    io: IO,
    peer: SocketAddr,
    received: Splitter,
    sent: Splitter,
    /// Bytes left in this turn.
    turn: usize,
    calm: Calm,
    last_stream: u32,
    leaving: Option<Leaving>,
}

/// The state of a connection that has flooded.
struct Leaving {
    /// The unsent rest of the final GOAWAY.
    word: Vec<u8>,
    said: bool,
    until: Pin<Box<Sleep>>,
}

impl<IO> Calming<IO> {
    pub(super) fn new(io: IO, peer: SocketAddr) -> Self {
        Self {
            io,
            peer,
            received: Splitter::new(PREFACE),
            sent: Splitter::new(0),
            turn: TURN,
            calm: Calm::bearing(MOST),
            last_stream: 0,
            leaving: None,
        }
    }

    fn came(&mut self, bytes: &[u8]) {
        let (mut cost, mut floods) = (bytes.len(), false);
        let (calm, last_stream) = (&mut self.calm, &mut self.last_stream);
        each_head(&mut self.received, bytes, |head| {
            cost += FRAME.saturating_sub(HEAD);
            let borne = match head.kind {
                DATA if head.length > 0 => calm.received(0),
                DATA if head.has(END_STREAM) => true,
                // The library puts few frames into a block.
                CONTINUATION => true,
                _ => calm.spend(1),
            };
            floods |= !borne;
            if head.kind == HEADERS {
                *last_stream = head.stream.max(*last_stream);
            }
        });
        self.turn = self.turn.saturating_sub(cost);
        if floods && self.leaving.is_none() {
            let peer = self.peer;
            tracing::warn!(%peer, "a client floods the control plane with frames that bring nothing: ENHANCE_YOUR_CALM");
            // In the middle of a frame it would be taken for a part of that frame.
            let word = if self.sent.is_between_frames() {
                Head::goaway(self.last_stream, ENHANCE_YOUR_CALM).to_vec()
            } else {
                Vec::new()
            };
            self.leaving = Some(Leaving { word, said: false, until: Box::pin(sleep(FAREWELL)) });
        }
    }

    fn went<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>, mut length: usize) {
        let calm = &mut self.calm;
        for slice in slices {
            let part = slice.len().min(length);
            length -= part;
            each_head(&mut self.sent, &slice[..part], |head| match head.kind {
                DATA => calm.sent(head.length as usize),
                // A HEADERS frame that ends the stream is a refusal.
                HEADERS if !head.has(END_STREAM) => calm.opened(),
                _ => {}
            });
        }
    }
}

/// Calls `found` with the head of each frame that begins in `bytes`.
fn each_head(splitter: &mut Splitter, bytes: &[u8], mut found: impl FnMut(Head)) {
    let mut at = 0;
    while let Some(piece) = splitter.next(bytes, &mut at) {
        if let Piece::Head(head) = piece {
            found(head);
        }
    }
}

fn floods() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the client flooded the connection with frames that bring nothing")
}

impl<IO: AsyncWrite + Unpin> Calming<IO> {
    /// Sends the final GOAWAY and reads no more. Ready when it is time to close: closing at once would discard the
    /// GOAWAY of a client that has not read it yet.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(leaving) = &mut self.leaving else { return Poll::Pending };
        while !leaving.said && leaving.until.as_mut().poll(cx).is_pending() {
            if leaving.word.is_empty() {
                leaving.said = ready!(Pin::new(&mut self.io).poll_flush(cx)).is_ok();
                if !leaving.said {
                    return Poll::Ready(());
                }
            } else {
                match ready!(Pin::new(&mut self.io).poll_write(cx, &leaving.word)) {
                    Ok(length) if length > 0 => drop(leaving.word.drain(..length)),
                    _ => return Poll::Ready(()),
                }
            }
        }
        leaving.until.as_mut().poll(cx)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Calming<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.leaving.is_none() {
            if this.turn == 0 {
                this.turn = TURN;
                // A task that wakes itself would get sixty more turns before the kernel is asked about others.
                let _ = pin!(tokio::task::yield_now()).poll(cx);
                return Poll::Pending;
            }
            let mut scratch = [0; READ];
            let mut part = ReadBuf::new(&mut scratch[..READ.min(buf.remaining())]);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut part))?;
            buf.put_slice(part.filled());
            this.came(part.filled());
            if this.leaving.is_none() {
                return Poll::Ready(Ok(()));
            }
            buf.set_filled(buf.filled().len() - part.filled().len());
        }
        this.poll_leave(cx).map(|()| Err(floods()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Calming<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.leaving.is_some() {
            return self.poll_leave(cx).map(|()| Err(floods()));
        }
        let length = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.went(std::iter::once(buf), length);
        Poll::Ready(Ok(length))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.leaving.is_some() {
            return self.poll_leave(cx).map(|()| Err(floods()));
        }
        let length = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices))?;
        self.went(slices.iter().map(|slice| &**slice), length);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.leaving.is_some() {
            return self.poll_leave(cx).map(|()| Err(floods()));
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "calm_tests.rs"]
mod tests;
