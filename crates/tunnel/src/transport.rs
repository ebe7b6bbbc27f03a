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

    /// What the peer's system has acknowledged; asked only of a peer that is silent for long. `None` where
    /// that can't be told.
    fn acknowledged(&self) -> Option<Acknowledged> {
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

/// How far what was sent has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Bytes that the peer's system has acknowledged.
    pub bytes: u64,
    /// There are more that it has not.
    pub more_is_on_its_way: bool,
}

/// For who wants to keep the task of a connection small: a transport is moved about before it settles.
impl<IO: Transport + 'static> Transport for Box<IO> {
    fn drains_at(&self) -> Option<Instant> {
        (**self).drains_at()
    }

    fn acknowledged(&self) -> Option<Acknowledged> {
        (**self).acknowledged()
    }

    fn into_box(self) -> Box<dyn Transport> {
        self
    }
}

impl Transport for TcpStream {}

impl Transport for DuplexStream {}
