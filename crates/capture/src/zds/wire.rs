//! Packets with descriptors, and what they mean.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use leno_proto::zds;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg};
use prost::Message;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{ANSWER_TIMEOUT, Error, MESSAGE_MAX, PodInfo, ProtocolError};

/// Read generously: only what is sent must keep to [`MESSAGE_MAX`].
const RECEIVE_BUFFER: usize = 16 * 1024;
/// As many descriptors as the kernel attaches to one packet (`SCM_MAX_FD`). With less room it would drop some silently.
const DESCRIPTORS_MAX: usize = 253;

/// One packet.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Channel(AsyncFd<Socket>);

impl Channel {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self(watched(socket)?))
    }

    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Self::new(socket)
    }

    /// Sends a message, with a descriptor if there is one. The kernel holds its own reference to it from then on.
    pub(super) async fn send(&self, message: &impl Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let bytes = message.encode_to_vec();
        if bytes.len() > MESSAGE_MAX {
            return Err(ProtocolError::TooLong(bytes.len()).into());
        }
        let raw: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let send = |socket: &Socket| {
            let rights = ControlMessage::ScmRights(&raw);
            let control = if raw.is_empty() { &[][..] } else { std::slice::from_ref(&rights) };
            let data = [IoSlice::new(&bytes)];
            // Without MSG_NOSIGNAL a peer that hung up would kill the process.
            let sent = sendmsg::<()>(socket.as_raw_fd(), &data, control, MsgFlags::MSG_NOSIGNAL, None);
            sent.map_err(io::Error::from)
        };
        tokio::time::timeout(ANSWER_TIMEOUT, self.0.async_io(Interest::WRITABLE, send))
            .await
            .map_err(|_| Error::Timeout(ANSWER_TIMEOUT))??;
        Ok(())
    }

    /// Receives a packet; `None` when the other end hung up. Cancelling loses nothing.
    pub(super) async fn receive(&self) -> Result<Option<Packet>, Error> {
        let (packet, truncated) = self.0.async_io(Interest::READABLE, receive).await?;
        if truncated {
            return Err(ProtocolError::TooLong(packet.bytes.len() + 1).into());
        }
        // No message of the protocol is empty, so this can only be the end.
        Ok((!packet.bytes.is_empty()).then_some(packet))
    }

    /// Receives a packet that must come within [`ANSWER_TIMEOUT`].
    pub(super) async fn receive_soon(&self) -> Result<Packet, Error> {
        tokio::time::timeout(ANSWER_TIMEOUT, self.receive())
            .await
            .map_err(|_| Error::Timeout(ANSWER_TIMEOUT))??
            .ok_or(Error::Closed)
    }
}

fn receive(socket: &Socket) -> io::Result<(Packet, bool)> {
    let mut bytes = vec![0; RECEIVE_BUFFER];
    let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut data = [IoSliceMut::new(&mut bytes)];
    // MSG_CMSG_CLOEXEC: no child process may inherit a pod's namespace.
    let received =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut data, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            descriptors.extend(raw.into_iter().map(adopt));
        }
    }
    let (length, truncated) = (received.bytes, received.flags.contains(MsgFlags::MSG_TRUNC));
    bytes.truncate(length);
    Ok((Packet { bytes, descriptors }, truncated))
}

#[allow(unsafe_code)]
fn adopt(raw: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor in this process for the packet at hand, and it is adopted once.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Lets the runtime watch a socket.
#[allow(unsafe_code)]
fn watched(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: a `Socket` owns its descriptor, names the same one for as long as it lives, and closes it only when dropped,
    // which is after `AsyncFd` has deregistered it.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// A request of an agent to a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Serve this pod; its network namespace comes with it.
    Add(PodInfo),
    /// During the snapshot: go on serving this pod, by uid, if it is served.
    Keep(String),
    /// Stop serving this pod, by uid.
    Delete(String),
    /// These were all; stop serving the others.
    SnapshotSent,
}

/// Reads a request that came with `descriptors` file descriptors.
///
/// # Errors
/// When it isn't one, or has another number of descriptors than it needs.
pub fn decode_request(bytes: &[u8], descriptors: usize) -> Result<Request, ProtocolError> {
    use zds::workload_request::Payload;
    const WHAT: &str = "WorkloadRequest";
    let message = zds::WorkloadRequest::decode(bytes).map_err(|e| undecodable(WHAT, &e))?;
    let (request, name, expected) = match message.payload.ok_or(ProtocolError::Empty(WHAT))? {
        Payload::Add(add) => {
            let missing = |field| ProtocolError::Missing { message: "AddWorkload", field };
            let info = add.workload_info.ok_or(missing("workload_info"))?;
            if add.uid.is_empty() {
                return Err(missing("uid"));
            }
            let zds::WorkloadInfo { name, namespace, service_account } = info;
            (Request::Add(PodInfo { uid: add.uid, name, namespace, service_account }), "AddWorkload", 1)
        }
        Payload::Keep(keep) => (Request::Keep(keep.uid), "KeepWorkload", 0),
        Payload::Del(delete) => (Request::Delete(delete.uid), "DelWorkload", 0),
        Payload::SnapshotSent(_) => (Request::SnapshotSent, "SnapshotSent", 0),
    };
    if descriptors != expected {
        return Err(ProtocolError::Descriptors { message: name, expected, found: descriptors });
    }
    Ok(request)
}

/// Reads a proxy's answer: success, or its reason for not obliging.
///
/// # Errors
/// When it isn't one.
pub fn decode_response(bytes: &[u8]) -> Result<Result<(), String>, ProtocolError> {
    use zds::workload_response::Payload;
    const WHAT: &str = "WorkloadResponse";
    let message = zds::WorkloadResponse::decode(bytes).map_err(|e| undecodable(WHAT, &e))?;
    let Payload::Ack(ack) = message.payload.ok_or(ProtocolError::Empty(WHAT))?;
    Ok(if ack.error.is_empty() { Ok(()) } else { Err(ack.error) })
}

/// Reads a proxy's first message.
///
/// # Errors
/// When it isn't one or has another version than 1.
pub fn decode_hello(bytes: &[u8]) -> Result<(), ProtocolError> {
    let message = zds::ZdsHello::decode(bytes).map_err(|e| undecodable("ZdsHello", &e))?;
    if message.version == zds::Version::V1 as i32 { Ok(()) } else { Err(ProtocolError::Version(message.version)) }
}

fn undecodable(what: &'static str, error: &prost::DecodeError) -> ProtocolError {
    ProtocolError::Undecodable { what, reason: error.to_string() }
}

pub(super) fn hello() -> zds::ZdsHello {
    zds::ZdsHello { version: zds::Version::V1 as i32 }
}

pub(super) fn request(request: Request) -> zds::WorkloadRequest {
    use zds::workload_request::Payload;
    let payload = match request {
        Request::Add(PodInfo { uid, name, namespace, service_account }) => Payload::Add(zds::AddWorkload {
            uid,
            workload_info: Some(zds::WorkloadInfo { name, namespace, service_account }),
        }),
        Request::Keep(uid) => Payload::Keep(zds::KeepWorkload { uid }),
        Request::Delete(uid) => Payload::Del(zds::DelWorkload { uid }),
        Request::SnapshotSent => Payload::SnapshotSent(zds::SnapshotSent {}),
    };
    zds::WorkloadRequest { payload: Some(payload) }
}

/// An answer. A reason that is too long for the other end's buffer is cut.
pub(super) fn response(outcome: Result<(), String>) -> zds::WorkloadResponse {
    // Two nested length-delimited fields cost at most six bytes.
    const REASON_MAX: usize = MESSAGE_MAX - 8;
    let mut error = outcome.err().unwrap_or_default();
    if error.len() > REASON_MAX {
        let end = (0..=REASON_MAX).rev().find(|&at| error.is_char_boundary(at)).unwrap_or_default();
        error.truncate(end);
    }
    zds::WorkloadResponse { payload: Some(zds::workload_response::Payload::Ack(zds::Ack { error })) }
}

/// A listening socket at `path`, which only this user may connect to.
pub(super) fn listen(path: &Path) -> io::Result<AsyncFd<Socket>> {
    use std::os::unix::fs::PermissionsExt;
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    match socket.bind(&address) {
        // A socket file outlives its owner. Only if nobody answers there is it a leftover.
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let probe = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
            match probe.connect(&address) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                _ => return Err(e),
            }
            socket.bind(&address)?;
        }
        other => other?,
    }
    // Whoever connects gets the network namespaces of all pods.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.listen(16)?;
    watched(socket)
}

pub(super) async fn accept(listener: &AsyncFd<Socket>) -> io::Result<Channel> {
    let (socket, _) = listener.async_io(Interest::READABLE, Socket::accept).await?;
    Channel::new(socket)
}
