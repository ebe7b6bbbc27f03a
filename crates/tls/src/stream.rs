//! An established TLS connection as a byte stream.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::alert::{Alert, FATAL, PeerAlert, WARNING};
use crate::effort::Effort;
use crate::incoming::{Incoming, Opened};
use crate::keys::{KEY_UPDATE_MESSAGE, Keys};
use crate::outgoing::Outgoing;
use crate::record::Content;
use crate::violation::Violation;

/// A TLS connection over `IO`.
///
/// Written bytes are gathered, so that small writes share a record and a system call. They leave with the next flush,
/// or when 256 KiB have gathered. When idle, the connection holds no buffer.
pub struct TlsStream<IO> {
    io: IO,
    /// Boxed, because a cipher's key schedule is large and a stream is moved several times while it is set up.
    keys: Box<Keys>,
    incoming: Incoming,
    outgoing: Outgoing,
    alpn: Option<Box<[u8]>>,
    /// The peer has announced that nothing follows (close_notify).
    receive_ended: bool,
    /// We have announced that, or sent a fatal alert. Nothing may follow.
    send_ended: bool,
    /// Why nothing more is received. Returned again to further reads.
    failure: Option<Violation>,
    /// The error of the connection underneath, if what came before it had to be delivered first.
    io_failure: Option<io::Error>,
    /// How many more `user_canceled` alerts are accepted. They have no meaning.
    warnings_left: u8,
    /// How many more records without content are accepted in a row.
    empty_left: u8,
    effort: Effort,
}

/// A read with at least this much room, bytes, gets as much as has come, if necessary by several system calls. A
/// smaller read gets what one call brings. A bulk receiver passes on in one piece what it gets in one; for a small
/// message, a second call would find nothing.
const GATHER_FROM: usize = 64 << 10;

/// Most `user_canceled` alerts. The TLS library has the same limit.
const WARNINGS: u8 = 4;

/// Most records without content in a row (RFC 8446 §5.4 allows them as padding of the traffic). The TLS library has the
/// same limit.
const EMPTY_RECORDS: u8 = 32;

impl<IO> TlsStream<IO> {
    /// `received` is what the peer sent after its handshake.
    pub(crate) fn new(io: IO, keys: Keys, received: &[u8], alpn: Option<Box<[u8]>>) -> Self {
        Self {
            io,
            keys: Box::new(keys),
            incoming: Incoming::new(received),
            outgoing: Outgoing::default(),
            alpn,
            receive_ended: false,
            send_ended: false,
            failure: None,
            io_failure: None,
            warnings_left: WARNINGS,
            empty_left: EMPTY_RECORDS,
            effort: Effort::default(),
        }
    }

    /// The connection underneath, for socket options.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }

    /// The connection underneath. Reading from or writing to it breaks the TLS connection.
    pub fn get_mut(&mut self) -> &mut IO {
        &mut self.io
    }

    /// The connection underneath, without the TLS state. Nothing more can be sent over it.
    pub fn into_inner(self) -> IO {
        self.io
    }

    /// Its transport and its keys, for tests that continue by themselves.
    pub(crate) fn into_parts(self) -> (IO, Box<Keys>) {
        (self.io, self.keys)
    }

    /// The agreed application protocol (RFC 7301).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> TlsStream<IO> {
    /// Sends sealed records until there are none.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.sealed().is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, self.outgoing.sealed()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Opens the next complete record. Data is then in `out`, or in `incoming.plain()` if it did not fit there. Returns
    /// `false` if there is no complete record.
    fn open_next(&mut self, out: &mut ReadBuf<'_>) -> Result<bool, Violation> {
        let before = out.filled().len();
        let Some((opened, record)) = self.incoming.open(&mut self.keys.opening, out)? else { return Ok(false) };
        self.effort.record(record);
        if self.keys.is_within_message() && !matches!(opened, Opened::Handshake(_)) {
            out.set_filled(before);
            let beside = self.incoming.plain().len();
            self.incoming.consume(beside);
            return Err(Violation::Interleaved);
        }
        self.empty_left = if opened.is_empty() {
            self.empty_left.checked_sub(1).ok_or(Violation::TooManyEmpty)?
        } else {
            EMPTY_RECORDS
        };
        match opened {
            Opened::Handshake(bytes) => {
                let messages = self.keys.handshake_received(&bytes)?;
                self.effort.messages(messages);
            }
            Opened::Data(_) => self.keys.data_received(),
            Opened::Alert(alert) => self.alert_received(&alert)?,
        }
        Ok(true)
    }

    fn alert_received(&mut self, alert: &[u8]) -> Result<(), Violation> {
        let &[level, description] = alert else { return Err(Violation::AlertLength(alert.len())) };
        let alert = Alert(description);
        match (level, alert) {
            (WARNING | FATAL, Alert::CLOSE_NOTIFY) => self.receive_ended = true,
            (WARNING, _) => {
                self.warnings_left = self.warnings_left.checked_sub(1).ok_or(Violation::TooManyWarnings)?;
                // The only warning of TLS 1.3 besides close_notify. It has no meaning (RFC 8446 §6.1).
                if alert != Alert::USER_CANCELED {
                    return Err(Violation::AlertReceived { level, alert: PeerAlert(alert) });
                }
            }
            _ => return Err(Violation::AlertReceived { level, alert: PeerAlert(alert) }),
        }
        Ok(())
    }

    /// Ends the connection because of the peer's violation, and sends an alert as far as that is possible now.
    fn fail(&mut self, cx: &mut Context<'_>, violation: Violation) -> io::Error {
        if let Some(alert) = violation.alert().filter(|_| !self.send_ended)
            && let message = [FATAL, alert.0]
            && self.outgoing.control(&mut self.keys.sealing, Content::Alert, &message).unwrap_or(false)
        {
            // Regardless of Tokio's budget for this turn: there is no later turn in which the alert could be sent.
            let drained = tokio::task::unconstrained(poll_fn(|cx| self.poll_drain(cx)));
            let _ = pin!(drained).poll(cx);
        }
        self.send_ended = true;
        self.failure = Some(violation.clone());
        violation.into()
    }

    /// Sends a record without data. Waits for room.
    fn poll_control(&mut self, cx: &mut Context<'_>, content: Content, plain: &[u8]) -> Poll<io::Result<()>> {
        while !self.outgoing.control(&mut self.keys.sealing, content, plain)? {
            ready!(self.poll_drain(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_push(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.send_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        if self.keys.wants_update() {
            ready!(self.poll_control(cx, Content::Handshake, &KEY_UPDATE_MESSAGE))?;
            self.keys.update_sealing()?;
        }
        loop {
            let taken = self.outgoing.push(&mut self.keys.sealing, slices)?;
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            self.outgoing.finish(&mut self.keys.sealing)?;
            ready!(self.poll_drain(cx))?;
        }
    }
}

impl<IO> fmt::Debug for TlsStream<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let gathers = buf.remaining() >= GATHER_FROM;
        if let Some(error) = this.io_failure.take() {
            return Poll::Ready(Err(error));
        }
        loop {
            let plain = this.incoming.plain();
            if !plain.is_empty() {
                let length = plain.len().min(buf.remaining());
                buf.put_slice(&plain[..length]);
                this.incoming.consume(length);
            }
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let has_some = buf.filled().len() > before;
            // An error is returned when everything before it has been.
            match &this.failure {
                _ if this.receive_ended => return Poll::Ready(Ok(())),
                Some(_) if has_some => return Poll::Ready(Ok(())),
                Some(violation) => return Poll::Ready(Err(violation.clone().into())),
                None => {}
            }
            if this.effort.poll_paid(cx).is_pending() {
                return if has_some { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            match this.open_next(buf) {
                Ok(true) => continue,
                Ok(false) if has_some && !gathers => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(violation) => {
                    let error = this.fail(cx, violation);
                    return Poll::Ready(if has_some { Ok(()) } else { Err(error) });
                }
            }
            let io = &mut this.io;
            let read = this.incoming.fill(
                |room| {
                    let mut room = ReadBuf::new(room);
                    Pin::new(io).poll_read(cx, &mut room).map_ok(|()| room.filled().len())
                },
                |read| if let Poll::Ready(Ok(length)) = read { *length } else { 0 },
            );
            match read {
                // The next read handles what follows.
                Poll::Pending | Poll::Ready(Ok(0)) if has_some => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) if has_some => {
                    this.io_failure = Some(error);
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // Without close_notify, it is unknown whether the peer had more to send.
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(_)) => {}
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_push(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_push(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.outgoing.finish(&mut this.keys.sealing)?;
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.send_ended {
            let close_notify = [WARNING, Alert::CLOSE_NOTIFY.0];
            ready!(this.poll_control(cx, Content::Alert, &close_notify))?;
            this.send_ended = true;
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
