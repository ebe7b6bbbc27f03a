//! A tunnel or a TCP connection as the HTTP library sees it.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use leno_tunnel::{TunnelStream, timers};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::Sleep;

use super::concurrent_streams::{FirstSettings, Streams};
use super::h2_budget::{Common, PAUSE};
use crate::transport::h1_smuggling::{Doubt, Framing};
use crate::transport::h2_flood::{Frames, Look, Requests};
use crate::transport::write_coalescing::Cork;

/// How long the peer of a connection that this side has ended may take to end its half. A stream that is dropped before
/// is reset, and the reset may overtake what was sent last.
const LINGER: Duration = Duration::from_secs(5);

/// How long a client may take to hear why its HTTP/2 connection ends.
const HEED: Duration = Duration::from_millis(500);

/// Bytes that are read before others of the thread have their turn. For frames of HTTP/2 there is another limit
/// ([`crate::transport::h2_flood`]).
const TURN: usize = 64 << 10;

/// A client sends too many HTTP/2 frames that bring nothing.
#[derive(Debug, thiserror::Error)]
#[error("the client floods its connection with HTTP/2 frames that bring nothing (ENHANCE_YOUR_CALM)")]
struct Flood;

/// The bytes of an HTTP connection.
pub(crate) struct Wire {
    /// `None` only while it is dropped.
    inner: Option<Inner>,
    /// What others know of it.
    signs: Option<Arc<Signs>>,
    /// Follows what a client sends.
    watch: Watch,
    /// Bytes that have been read without a break.
    read: usize,
    /// Nothing is read before it ends.
    pause: Option<Pin<Box<Sleep>>>,
}

/// What is looked for in a client's bytes.
enum Watch {
    /// It is no client, or one in the clear.
    Nothing,
    /// Requests in HTTP/1.1 that may be read in two ways.
    Framing(Box<Framing>),
    /// Floods of HTTP/2 frames.
    Frames(Box<Frames>),
    /// An endpoint's SETTINGS.
    Settings(Box<FirstSettings>),
}

/// What a connection tells those who watch it, and they tell it.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// Bytes have come.
    pub(crate) heard: AtomicBool,
    /// If it is dropped unfinished, what was sent is to arrive, and looks complete. Otherwise it looks cut.
    pub(crate) complete: AtomicBool,
    /// A request that may be read in two ways.
    pub(crate) doubt: Doubt,
}

enum Inner {
    Tunnel(TunnelStream),
    Tcp(TokioIo<TcpStream>),
    /// One on which HTTP/2 is spoken.
    Corked(TokioIo<OwnedReadHalf>, Arc<Cork>),
}

impl Wire {
    pub(crate) fn tunnel(stream: TunnelStream) -> Self {
        Self { inner: Some(Inner::Tunnel(stream)), signs: None, watch: Watch::Nothing, read: 0, pause: None }
    }

    pub(crate) fn tcp(stream: TcpStream) -> Self {
        Self { inner: Some(Inner::Tcp(TokioIo::new(stream))), signs: None, watch: Watch::Nothing, read: 0, pause: None }
    }

    /// HTTP/2 is spoken on it. If there is a cork then, whoever drives the connection releases it after each turn.
    pub(crate) fn corked(mut self) -> (Self, Option<Arc<Cork>>) {
        match self.inner.take() {
            Some(Inner::Tcp(stream)) => {
                let (read, write) = stream.into_inner().into_split();
                let cork = Arc::new(Cork::new(write));
                self.inner = Some(Inner::Corked(TokioIo::new(read), cork.clone()));
                (self, Some(cork))
            }
            // The tunnel's own task writes, as much as it has.
            inner => {
                self.inner = inner;
                (self, None)
            }
        }
    }

    /// Whether bytes have come that nobody has read.
    pub(crate) fn has_unread(&self) -> bool {
        match &self.inner {
            Some(Inner::Tunnel(stream)) => !stream.unread_bytes().is_empty(),
            // What the system has for a connection in the clear is not looked at: its first bytes count when they are read.
            Some(Inner::Tcp(_) | Inner::Corked(..)) | None => false,
        }
    }

    /// A client's that speaks HTTP/1.1. Others may watch it.
    pub(crate) fn http1(mut self, signs: Arc<Signs>) -> Self {
        self.signs = Some(signs);
        self.watch = Watch::Framing(Box::default());
        self
    }

    /// A client's that speaks HTTP/2.
    pub(crate) fn http2(mut self, requests: Arc<Requests>, pace: Arc<Common>) -> Self {
        self.watch = Watch::Frames(Box::new(Frames::new(requests, pace)));
        self
    }

    /// To an endpoint that speaks HTTP/2.
    pub(crate) fn endpoint(mut self, streams: Arc<Streams>) -> Self {
        self.watch = Watch::Settings(Box::new(FirstSettings::new(streams)));
        self
    }

    /// Waits while the client has sent more than it may.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let Watch::Frames(frames) = &mut self.watch else { return Poll::Ready(()) };
            if frames.may_go_on() {
                return Poll::Ready(());
            }
            self.pause = Some(Box::pin(timers::sleep(PAUSE)));
        }
    }

    /// Reads what may be an endpoint's SETTINGS from TCP.
    fn poll_settings(&mut self, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; 256];
        let most = bytes.len().min(buf.remaining());
        let mut read = ReadBuf::new(&mut bytes[..most]);
        ready!(match self.parts()? {
            Inner::Tcp(stream) => Pin::new(stream).poll_read(cx, read.unfilled()),
            Inner::Corked(stream, _) => Pin::new(stream).poll_read(cx, read.unfilled()),
            Inner::Tunnel(_) => return Poll::Ready(Ok(())),
        })?;
        self.note(read.filled())?;
        buf.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }

    /// Bytes have come. Returns how many of them are read now.
    fn note(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut length = bytes.len();
        match &mut self.watch {
            Watch::Nothing => {}
            Watch::Settings(settings) => {
                if settings.look(bytes) {
                    self.watch = Watch::Nothing;
                }
            }
            Watch::Framing(framing) => {
                self.read += length;
                if let Some(signs) = &self.signs {
                    signs.heard.store(true, Relaxed);
                    if let Err(what) = framing.look(bytes) {
                        signs.doubt.tell(framing.requests(), what);
                    }
                }
            }
            Watch::Frames(frames) => {
                self.read += length;
                match frames.look(bytes) {
                    Look::All => {}
                    Look::Turn(some) => (length, self.read) = (some, TURN),
                    Look::Flood => return Err(io::Error::other(Flood)),
                }
            }
        }
        Ok(length)
    }

    fn sent(&mut self, written: Poll<io::Result<usize>>, of: usize) -> Poll<io::Result<usize>> {
        if let (Watch::Frames(frames), Poll::Ready(Ok(bytes))) = (&mut self.watch, &written) {
            frames.sent(*bytes, of);
        }
        written
    }

    fn parts(&mut self) -> io::Result<&mut Inner> {
        self.inner.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Read for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        ready!(self.poll_pause(cx));
        let so_far = std::mem::take(&mut self.read);
        if let Watch::Frames(frames) = &mut self.watch {
            if so_far >= TURN {
                frames.rest_for_this_turn();
            }
            if frames.is_resting() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        } else if so_far >= TURN {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if matches!((&self.watch, &self.inner), (Watch::Settings(_), Some(Inner::Tcp(_) | Inner::Corked(..)))) {
            return self.poll_settings(cx, buf);
        }
        let polled = match self.parts()? {
            Inner::Tcp(stream) => return Pin::new(stream).poll_read(cx, buf),
            Inner::Corked(stream, _) => return Pin::new(stream).poll_read(cx, buf),
            Inner::Tunnel(stream) => stream.poll_chunk(cx),
        };
        let Poll::Ready(chunk) = polled else {
            if let Watch::Frames(frames) = &mut self.watch {
                frames.rest();
            }
            return Poll::Pending;
        };
        let Some(mut chunk) = chunk? else { return Poll::Ready(Ok(())) };
        self.read = so_far;
        let length = self.note(&chunk[..chunk.len().min(room)])?;
        buf.put_slice(&chunk.split_to(length));
        if let Some(Inner::Tunnel(stream)) = &mut self.inner {
            stream.release(length);
            if !chunk.is_empty() {
                stream.unread(chunk);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = match self.parts()? {
            Inner::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Inner::Corked(_, cork) => cork.poll_write(cx, &[IoSlice::new(buf)]),
            Inner::Tunnel(stream) => tokio::io::AsyncWrite::poll_write(Pin::new(stream), cx, buf),
        };
        self.sent(written, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match self.parts()? {
            Inner::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Inner::Corked(_, cork) => cork.poll_write(cx, slices),
            Inner::Tunnel(stream) => tokio::io::AsyncWrite::poll_write_vectored(Pin::new(stream), cx, slices),
        };
        self.sent(written, slices.iter().map(|slice| slice.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.parts()? {
            Inner::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            // The connection's own task writes as soon as it can.
            Inner::Tunnel(_) | Inner::Corked(..) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.parts()? {
            Inner::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Inner::Corked(_, cork) => cork.poll_shutdown(cx),
            Inner::Tunnel(stream) => stream.poll_finished(cx).map_err(io::Error::from),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let Some(Inner::Tunnel(mut stream)) = self.inner.take() else { return };
        let has_runtime = tokio::runtime::Handle::try_current().is_ok();
        if let (Watch::Frames(frames), true) = (&self.watch, has_runtime)
            && frames.is_broken()
        {
            // What is missing of a response shows in HTTP/2 itself.
            leave(stream, frames.farewell());
            return;
        }
        let complete = stream.has_finished() || self.signs.as_ref().is_some_and(|signs| signs.complete.load(Relaxed));
        if !complete || stream.has_finished() && stream.has_ended() || !has_runtime {
            return;
        }
        tokio::spawn(timers::timeout(LINGER, async move {
            if poll_fn(|cx| stream.poll_finished(cx)).await.is_err() {
                return;
            }
            while let Ok(Some(chunk)) = stream.chunk().await {
                stream.release(chunk.len());
            }
        }));
    }
}

/// Ends a connection whose client has broken the protocol, with what it is told last. Nothing that it sends is read any more.
pub(crate) fn leave(mut stream: TunnelStream, farewell: Option<[u8; 17]>) {
    tokio::spawn(timers::timeout(LINGER, async move {
        if let Some(farewell) = farewell
            && stream.write_all(&farewell).await.is_err()
        {
            return;
        }
        if poll_fn(|cx| stream.poll_finished(cx)).await.is_ok() {
            timers::sleep(HEED).await;
        }
    }));
}

/// Writes all of `bytes` to a TCP connection.
pub(crate) async fn write_all(stream: &TcpStream, mut bytes: Bytes) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(&bytes) {
            Ok(written) => drop(bytes.split_to(written)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
