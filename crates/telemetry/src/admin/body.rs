//! The body of a response: complete, or in pieces as they are written.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::mpsc;

/// Size of one piece, bytes.
const PIECE: usize = 64 << 10;

/// Pieces that may wait for the reader. When there are as many, the writer waits.
const WAITING: usize = 2;

/// The body of a response.
#[derive(Debug)]
pub struct Body {
    carries: Carries,
    /// Counts the pieces that were taken.
    taken: Taken,
}

/// A count of pieces.
pub(super) type Taken = Arc<AtomicUsize>;

#[derive(Debug)]
enum Carries {
    Whole(Full<Bytes>),
    /// Pieces. An empty one is the end. Without it the response was broken off, and must look so.
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body {
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { carries: Carries::Whole(Full::new(bytes.into())), taken: Taken::default() }
    }

    /// The body that `write` writes, on a thread of its own, no faster than it is read.
    pub(super) fn written(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        let (sender, pieces) = mpsc::channel(WAITING);
        std::thread::Builder::new().name("answer".to_owned()).spawn(move || {
            let mut pieces = Pieces { sender, next: Vec::new() };
            if let Err(error) = write(&mut pieces).and_then(|()| pieces.end()) {
                tracing::debug!(%error, "an admin answer was broken off");
            }
        })?;
        Ok(Self { carries: Carries::Pieces(pieces), taken: Taken::default() })
    }

    /// Makes `taken` count the pieces.
    pub(super) fn count(&mut self, taken: Taken) {
        self.taken = taken;
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let pieces = match &mut self.carries {
            Carries::Whole(whole) => {
                return Pin::new(whole).poll_frame(cx).map_err(|never| match never {});
            }
            Carries::Pieces(pieces) => pieces,
        };
        Poll::Ready(match std::task::ready!(pieces.poll_recv(cx)) {
            Some(piece) if piece.is_empty() => {
                self.carries = Carries::Whole(Full::default());
                None
            }
            Some(piece) => {
                self.taken.fetch_add(1, Ordering::Relaxed);
                Some(Ok(Frame::data(piece)))
            }
            None => Some(Err(io::Error::other("whoever wrote the answer has broken it off"))),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.carries {
            Carries::Whole(whole) => whole.is_end_stream(),
            Carries::Pieces(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.carries {
            Carries::Whole(whole) => whole.size_hint(),
            Carries::Pieces(_) => SizeHint::default(),
        }
    }
}

/// Splits what is written into pieces.
struct Pieces {
    sender: mpsc::Sender<Bytes>,
    next: Vec<u8>,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.next);
        self.sender.blocking_send(piece.into()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn end(mut self) -> io::Result<()> {
        if !self.next.is_empty() {
            self.send()?;
        }
        self.send()
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.next.capacity() == 0 {
            self.next.reserve_exact(PIECE);
        }
        let taken = bytes.len().min(PIECE - self.next.len());
        self.next.extend_from_slice(&bytes[..taken]);
        if self.next.len() == PIECE {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.next.is_empty() { Ok(()) } else { self.send() }
    }
}
