//! The transport of an HBONE connection.

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The transport of an HBONE connection: encrypted and authenticated bytes, and what its owner knows about them.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {
    /// When the connection stops taking new streams, because a certificate that it depends on will expire. Open streams
    /// go on. `None` for never.
    fn drains_at(&self) -> Option<Instant> {
        None
    }

    /// What the peer's system has acknowledged. Asked only about a peer that is silent for long. `None` if it can't be
    /// told.
    fn acknowledged(&self) -> Option<Acknowledged> {
        None
    }

    /// Moves it to the heap, where it stays.
    fn into_box(self) -> Box<dyn Transport>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

/// How much of what was sent has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Bytes that the peer's system has acknowledged.
    pub bytes: u64,
    /// Whether it has more to acknowledge.
    pub more_is_on_its_way: bool,
}

/// For callers that want a small task: a transport is moved several times before it settles.
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
