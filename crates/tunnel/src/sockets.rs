//! Reading from and writing to programs' sockets without waiting.

use std::io::{self, IoSlice};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Writes as much as the socket takes now, which may be nothing.
pub(crate) fn write_now(socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let written = match slices {
        // The kernel has less to do than for a vector of one.
        [only] => socket.try_write(only),
        many => socket.try_write_vectored(many),
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written,
    }
}

/// Reads what has come into `room`. If that does not fill `room`, the socket is taken to be empty, which saves a system
/// call; the kernel reports when more comes.
pub(crate) fn try_read(socket: &TcpStream, room: &mut [u8]) -> io::Result<usize> {
    let most = room.len();
    unless_exhausted(socket, Interest::READABLE, most, || io::Read::read(&mut &*SockRef::from(socket), room))
}

/// Writes as much of `bytes` as there is room for. If that is not all of them, the socket is taken to be full.
pub(crate) fn try_write(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    unless_exhausted(socket, Interest::WRITABLE, bytes.len(), || io::Write::write(&mut &*SockRef::from(socket), bytes))
}

/// Reads or writes. If some but fewer than `most` bytes were moved, the runtime waits for the kernel before the next attempt.
fn unless_exhausted(
    socket: &TcpStream,
    interest: Interest,
    most: usize,
    attempt: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut moved = None;
    let tried = socket.try_io(interest, || {
        let length = attempt()?;
        moved = Some(length);
        if length > 0 && length < most { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match moved {
        Some(length) => Ok(length),
        None => Err(tried.err().unwrap_or_else(|| io::ErrorKind::WouldBlock.into())),
    }
}
