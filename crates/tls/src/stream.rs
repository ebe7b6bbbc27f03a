//! An established TLS connection as a byte stream.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A TLS connection over `IO`.
///
/// Idle, it holds one 4 KiB read buffer; a blocked write holds at most 64 KiB of records.
pub struct TlsStream<IO> {
    inner: tokio_rustls::TlsStream<IO>,
}

impl<IO> TlsStream<IO> {
    pub(crate) fn new(inner: tokio_rustls::TlsStream<IO>) -> Self {
        Self { inner }
    }

    /// The connection underneath, for socket options.
    pub fn get_ref(&self) -> &IO {
        self.inner.get_ref().0
    }

    /// The connection underneath. Reading from or writing to it breaks the TLS connection.
    pub fn get_mut(&mut self) -> &mut IO {
        self.inner.get_mut().0
    }

    /// The connection underneath, without the TLS state: nothing can be said over it any more.
    pub fn into_inner(self) -> IO {
        match self.inner {
            tokio_rustls::TlsStream::Client(stream) => stream.into_inner().0,
            tokio_rustls::TlsStream::Server(stream) => stream.into_inner().0,
        }
    }

    /// The application protocol both sides agreed on (RFC 7301).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.inner.get_ref().1.alpn_protocol()
    }
}

impl<IO> fmt::Debug for TlsStream<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(ready!(Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)).map_err(explain))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// A fatal alert of the peer's (RFC 8446 §6.2), in words.
///
/// In TLS 1.3 a client has finished its handshake before the server judges its certificate, so
/// that refusal arrives as the error of the first read: look for this type with
/// [`PeerAlert::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAlert(u8);

impl PeerAlert {
    pub(crate) fn new(alert: AlertDescription) -> Self {
        Self(u8::from(alert))
    }

    /// The alert's number.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The alert behind the error of a read, if that is what it was.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref().and_then(|inner| inner.downcast_ref::<Self>()).copied()
    }
}

impl fmt::Display for PeerAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match AlertDescription::from(self.0) {
            AlertDescription::UnknownCA => f.write_str(
                "it does not trust our certificate's issuer (unknown_ca); check that both sides use the same root",
            ),
            AlertDescription::CertificateExpired => {
                f.write_str("it considers our certificate expired (certificate_expired); check both clocks")
            }
            AlertDescription::CertificateRequired => {
                f.write_str("it wants a client certificate and got none (certificate_required)")
            }
            AlertDescription::NoApplicationProtocol => {
                f.write_str("it speaks none of our application protocols (no_application_protocol)")
            }
            AlertDescription::HandshakeFailure => {
                f.write_str("it shares no cipher suite or key exchange with us (handshake_failure)")
            }
            AlertDescription::ProtocolVersion => f.write_str("it does not speak TLS 1.3 (protocol_version)"),
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied
            | AlertDescription::UnsupportedCertificate => write!(
                f,
                "it does not accept our identity ({:?}); its log names the reason",
                AlertDescription::from(self.0)
            ),
            other => write!(f, "TLS alert {other:?}"),
        }
    }
}

impl std::error::Error for PeerAlert {}

/// Puts a peer's alert into words; leaves other errors as they are.
fn explain(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => {
            io::Error::new(io::ErrorKind::ConnectionAborted, PeerAlert::new(*alert))
        }
        _ => error,
    }
}
