//! What a request to the server asks for, and the connections that it comes by.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

/// The longest answer of `/bytes/N`.
pub(super) const BODY_MAX: usize = 64 << 20;

/// The length of the body that a path asks for: its end is `/bytes/N`.
pub(super) fn size_in(path: &str) -> Option<usize> {
    path.rsplit_once("/bytes/").and_then(|(_, size)| size.parse().ok())
}

/// Neither a lack of descriptors nor a client that is already gone may end the server.
pub(super) async fn usable(accepted: io::Result<(TcpStream, SocketAddr)>) -> io::Result<Option<TcpStream>> {
    match accepted {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                Ok(None)
            }
            Some(libc::ECONNABORTED) => Ok(None),
            _ => Err(error),
        },
    }
}
