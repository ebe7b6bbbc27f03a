//! The messages between a pod's first process and the supervisor, over a `SOCK_SEQPACKET` pair: one JSON message per
//! packet, with file descriptors beside it.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Largest message. A SOCK_SEQPACKET packet must fit the socket's send buffer, 208 KiB by
/// default; a command line with its environment stays below that.
pub(crate) const MAX_MESSAGE: usize = 128 * 1024;

/// Supervisor to pod.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// Start a process; its standard input, output and error come with the message.
    Spawn {
        /// Chosen by the supervisor; names the process from here on.
        id: u64,
        /// Program and arguments.
        argv: Vec<String>,
        /// The complete environment.
        env: Vec<(String, String)>,
        /// Working directory.
        cwd: Option<String>,
    },
    /// Send a signal to the process group of a process.
    Signal {
        /// Which.
        id: u64,
        /// Signal number.
        signal: i32,
    },
}

/// Pod to supervisor.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum FromInit {
    /// The namespaces are set up; the text is a warning for the operator, if there is one.
    Ready {
        /// What could not be set up.
        warning: Option<String>,
    },
    /// A process runs.
    Started {
        /// Which.
        id: u64,
    },
    /// A process could not be started.
    Failed {
        /// Which.
        id: u64,
        /// The exit code a shell would give.
        code: i32,
        /// Why.
        reason: String,
    },
    /// A process ended.
    Exited {
        /// Which.
        id: u64,
        /// Exit code, or 128 + signal as a shell says it.
        code: i32,
    },
}

/// Sends one message.
pub(crate) fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(io::Error::other)?;
    if body.len() > MAX_MESSAGE {
        return Err(io::Error::other("the command line and its environment are larger than 128 KiB"));
    }
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&body)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one message; `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let (length, fds) = receive_bytes(socket, &mut buffer)?;
    if length == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&buffer[..length]).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}

/// One `recvmsg` call, with up to four descriptors.
pub(crate) fn receive_bytes(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([std::os::fd::RawFd; 4]);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            fds.extend(received.into_iter().map(own));
        }
    }
    Ok((message.bytes, fds))
}

#[allow(unsafe_code)]
fn own(fd: std::os::fd::RawFd) -> OwnedFd {
    // SAFETY: the kernel has just installed this descriptor for us in `recvmsg`; nobody else
    // knows its number.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
