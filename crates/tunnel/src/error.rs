//! Errors of a tunnel.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use h2::Reason;
use http::{HeaderMap, StatusCode};

/// Failure of a connection or of one of its streams. Cheap to clone, because everybody who waited for the same
/// connection gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The stream was reset (RFC 9113 §6.4).
    #[error("the stream was reset by {} ({code:?})", who(*.by_peer))]
    Reset {
        /// Code of the RST_STREAM frame.
        code: Reason,
        /// Whether the peer sent it.
        by_peer: bool,
    },
    /// The connection was ended by GOAWAY before this stream was done (RFC 9113 §6.8).
    #[error("the HBONE connection was closed by {} ({code:?}); the proxy there may be restarting", who(*.by_peer))]
    GoAway {
        /// Code of the GOAWAY frame.
        code: Reason,
        /// Whether the peer sent it.
        by_peer: bool,
    },
    /// The transport under the connection failed or ended.
    #[error("the HBONE connection was lost: {0}; the peer's pod or node may be gone")]
    Lost(Arc<io::Error>),
    /// The peer did not answer for too long.
    #[error("the HBONE peer answered no PING within {0:?}; its pod or node may be gone")]
    PingTimeout(Duration),
    /// Nothing came on a connection whose peer was silent when the request was made, or the connection was given up for
    /// that reason while the request waited. Nothing was passed on. Other peers should be tried before this one.
    #[error(
        "the HBONE peer has said nothing since a connection over an idle tunnel was asked for; its pod or node may be gone"
    )]
    Unheard,
    /// The transport works, but the peer did not start HTTP/2.
    #[error("the peer did not start HTTP/2 within {0:?}; is something else than HBONE listening there?")]
    HandshakeTimeout(Duration),
    /// The peer broke HTTP/2, or this crate was used wrongly.
    #[error("HTTP/2 failed: {0}")]
    Protocol(Arc<str>),
    /// The CONNECT request can't be expressed in HTTP.
    #[error("{0:?} is not an authority for CONNECT; expected host:port")]
    InvalidAuthority(Arc<str>),
}

fn who(by_peer: bool) -> &'static str {
    if by_peer { "the peer" } else { "this side" }
}

impl Error {
    /// Whether another attempt, on a new connection, may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Reset { code, .. } => *code == Reason::REFUSED_STREAM,
            Self::GoAway { by_peer, .. } => *by_peer,
            Self::Lost(_) | Self::PingTimeout(_) | Self::Unheard | Self::HandshakeTimeout(_) => true,
            Self::Protocol(_) | Self::InvalidAuthority(_) => false,
        }
    }

    /// Whether the peer or the network ended it, and not this side: by a frame or by going away.
    pub fn is_by_peer(&self) -> bool {
        match self {
            Self::Reset { by_peer, .. } | Self::GoAway { by_peer, .. } => *by_peer,
            Self::Lost(_) | Self::PingTimeout(_) | Self::Unheard => true,
            Self::HandshakeTimeout(_) | Self::Protocol(_) | Self::InvalidAuthority(_) => false,
        }
    }

    /// Whether the peer said that it did not process the request at all.
    pub(crate) fn is_refused_stream(&self) -> bool {
        matches!(self, Self::Reset { code: Reason::REFUSED_STREAM, by_peer: true })
    }

    /// Whether the peer said that it did nothing for the stream. An orderly GOAWAY ends only streams that came too late
    /// (RFC 9113 §6.8).
    pub(crate) fn is_unprocessed(&self) -> bool {
        self.is_refused_stream() || matches!(self, Self::GoAway { code: Reason::NO_ERROR, by_peer: true })
    }
}

impl From<h2::Error> for Error {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(code) if error.is_go_away() => Self::GoAway { code, by_peer: error.is_remote() },
            Some(code) if error.is_reset() => Self::Reset { code, by_peer: error.is_remote() },
            _ if error.is_io() => {
                let io = error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
                Self::Lost(Arc::new(io))
            }
            _ => Self::Protocol(error.to_string().into()),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Reset { .. } | Error::GoAway { .. } => io::ErrorKind::ConnectionReset,
            Error::Lost(source) => source.kind(),
            Error::PingTimeout(_) | Error::Unheard | Error::HandshakeTimeout(_) => io::ErrorKind::TimedOut,
            Error::Protocol(_) => io::ErrorKind::InvalidData,
            Error::InvalidAuthority(_) => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// Why a tunnel could not be opened. `E` is the caller's own error of setting up a transport.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError<E> {
    /// The transport could not be set up. Everybody who waited for it gets a copy.
    #[error("{0}")]
    Dial(E),
    /// The peer answered the CONNECT request with a status other than 200.
    #[error("the peer refused the connection: HTTP status {status}")]
    Refused {
        /// The status; Istio's proxies use 400, 401 and 503.
        status: StatusCode,
        /// The response's headers, which may hold the peer's reason.
        headers: Box<HeaderMap>,
    },
    /// The connection failed before the peer answered.
    #[error("{0}")]
    Tunnel(#[from] Error),
    /// The program whose first bytes were to be sent has reset its connection.
    #[error("the program gave up: {0}")]
    Program(Arc<io::Error>),
}

impl<E> OpenError<E> {
    /// Whether another attempt, possibly at another endpoint, may succeed. A failed dial counts
    /// as such; who knows better asks the inner error.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            Self::Tunnel(error) => error.is_retryable(),
            Self::Program(_) => false,
        }
    }
}

/// Why a relay ended before both directions had ended cleanly. Both sides were aborted.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The first end, a TCP connection, failed: most often its program reset it.
    #[error("the connection with the program of this pod failed: {0}")]
    Local(#[source] io::Error),
    /// The second end, a TCP connection, failed.
    #[error("the connection with the other side failed: {0}")]
    Remote(#[source] io::Error),
    /// The tunnel failed: the peer reset the stream or is gone.
    #[error(transparent)]
    Tunnel(#[from] Error),
    /// The caller's `cancel` completed.
    #[error("the connection was closed by the proxy")]
    Cancelled,
    /// One direction had ended, and the other was silent for too long.
    #[error("one side had closed, and the other was silent for {0:?}")]
    HalfClosed(Duration),
}

impl RelayError {
    /// Never: bytes may have been lost on the way, only the programs know which.
    pub fn is_retryable(&self) -> bool {
        false
    }

    /// Whether programs end connections like this every day, so that it deserves no alarm.
    pub fn is_reset(&self) -> bool {
        match self {
            Self::Local(error) | Self::Remote(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            Self::Tunnel(error) => matches!(error, Error::Reset { .. }),
            Self::Cancelled | Self::HalfClosed(_) => false,
        }
    }
}
