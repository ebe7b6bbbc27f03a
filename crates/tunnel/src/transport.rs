//! What an HBONE connection runs over.

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// What an HBONE connection runs over: bytes, already encrypted and authenticated, and what its owner
/// knows of them.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {
    /// When the connection stops taking new streams, because what proved its two sides will not hold for
    /// ever. Those that are open then go on. `None` for never.
    fn drains_at(&self) -> Option<Instant> {
        None
    }

    /// On the heap, where it stays.
    fn into_box(self) -> Box<dyn Transport>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

/// For who wants to keep the task of a connection small: a transport is moved about before it settles.
impl<IO: Transport + 'static> Transport for Box<IO> {
    fn drains_at(&self) -> Option<Instant> {
        (**self).drains_at()
    }

    fn into_box(self) -> Box<dyn Transport> {
        self
    }
}

impl Transport for TcpStream {}

impl Transport for DuplexStream {}
