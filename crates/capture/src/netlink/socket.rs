//! A blocking netlink socket that belongs to one network namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType};

use super::message::{Attributes, HEADER, Message, Received, split, u32_at};
use crate::error::{Error, Result};
use crate::netns::NetworkNamespace;
use crate::sys::set_option;

pub(crate) const NLM_F_REQUEST: u16 = 0x01;
pub(crate) const NLM_F_ACK: u16 = 0x04;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NETLINK_CAP_ACK: i32 = 10;
const NETLINK_EXT_ACK: i32 = 11;
/// The kernel builds dump replies of at most 32 KiB; twice that never truncates.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// A dump is taken again when the tables changed underneath it. More often than this means that somebody churns them without
/// pause, and a slightly torn answer beats none.
const DUMP_ATTEMPTS: usize = 8;

/// A refusal by the kernel.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) sequence: u32,
    pub(crate) message: Option<String>,
    pub(crate) source: io::Error,
}

impl Refusal {
    pub(crate) fn into_error(self, operation: impl Into<String>) -> Error {
        Error::Netlink { operation: operation.into(), message: self.message, source: self.source }
    }
}

/// An acknowledgement (`Ok(sequence)`) or refusal found in an `NLMSG_ERROR` message.
fn acknowledgement(message: &Received<'_>) -> Result<u32, Refusal> {
    let code = u32_at(message.body, 0).map_or(-libc::EBADMSG, u32::cast_signed);
    if code == 0 {
        return Ok(message.sequence);
    }
    // The refused header is echoed behind the code; with NETLINK_CAP_ACK nothing else of the request is.
    let explanation = (message.flags & NLM_F_ACK_TLVS != 0)
        .then(|| Attributes::after(message.body, 4 + HEADER).string(NLMSGERR_ATTR_MSG))
        .flatten();
    Err(Refusal {
        sequence: message.sequence,
        message: explanation,
        source: io::Error::from_raw_os_error(code.wrapping_neg()),
    })
}

/// The end of a dump says whether it failed on the way, as that of sockets does where nobody knows their protocol.
fn finished(message: &Received<'_>) -> Result<(), Refusal> {
    match u32_at(message.body, 0).map_or(0, u32::cast_signed) {
        code if code < 0 => Err(Refusal {
            sequence: message.sequence,
            message: None,
            source: io::Error::from_raw_os_error(code.wrapping_neg()),
        }),
        _ => Ok(()),
    }
}

/// A netlink socket. Requests on it act on the namespace in which it was opened, whatever thread uses it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    pub(crate) fn open(namespace: &NetworkNamespace, protocol: SockProtocol) -> Result<Self> {
        let fd = namespace
            .run(|| socket::socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol))?
            .map_err(|e| Error::system("opening a netlink socket", e))?;
        // Old kernels lack these; they only make errors more readable.
        let _ = set_option(&fd, libc::SOL_NETLINK, NETLINK_EXT_ACK, 1);
        let _ = set_option(&fd, libc::SOL_NETLINK, NETLINK_CAP_ACK, 1);
        Ok(Self { fd, sequence: 0 })
    }

    fn next_sequence(&mut self) -> u32 {
        // Zero is what unsolicited messages carry.
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn send(&self, bytes: &[u8]) -> nix::Result<()> {
        loop {
            match socket::send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Err(nix::Error::EINTR) => {}
                other => return other.map(drop),
            }
        }
    }

    fn receive(&self, buffer: &mut [u8], flags: MsgFlags) -> nix::Result<usize> {
        loop {
            match socket::recv(self.fd.as_raw_fd(), buffer, flags) {
                Err(nix::Error::EINTR) => {}
                other => return other,
            }
        }
    }

    /// Sends one request and waits for the kernel's verdict.
    pub(crate) fn request(&mut self, message: Message) -> Result<(), Refusal> {
        let sequence = self.next_sequence();
        let refuse = |source: io::Error| Refusal { sequence, message: None, source };
        self.send(&message.finish(sequence, NLM_F_REQUEST | NLM_F_ACK)).map_err(|e| refuse(e.into()))?;
        let mut buffer = vec![0; RECEIVE_BUFFER];
        loop {
            let length = self.receive(&mut buffer, MsgFlags::empty()).map_err(|e| refuse(e.into()))?;
            for reply in split(&buffer[..length]) {
                if reply.sequence == sequence && reply.kind == NLMSG_ERROR {
                    return acknowledgement(&reply).map(drop);
                }
            }
        }
    }

    /// Asks for one object and returns its description (fixed part and attributes).
    pub(crate) fn get(&mut self, message: Message) -> Result<Vec<u8>, Refusal> {
        let sequence = self.next_sequence();
        let refuse = |source: io::Error| Refusal { sequence, message: None, source };
        self.send(&message.finish(sequence, NLM_F_REQUEST)).map_err(|e| refuse(e.into()))?;
        let mut buffer = vec![0; RECEIVE_BUFFER];
        loop {
            let length = self.receive(&mut buffer, MsgFlags::empty()).map_err(|e| refuse(e.into()))?;
            let answer = split(&buffer[..length]).find(|reply| reply.sequence == sequence);
            match answer {
                None => {}
                Some(reply) if reply.kind == NLMSG_ERROR => return acknowledgement(&reply).map(|_| Vec::new()),
                Some(reply) => return Ok(reply.body.to_vec()),
            }
        }
    }

    /// Sends a dump request and collects the bodies (fixed part and attributes) of all answers.
    pub(crate) fn dump(&mut self, message: &Message) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut answers = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            let torn;
            (answers, torn) = self.dump_once(message.clone())?;
            if !torn {
                break;
            }
        }
        Ok(answers)
    }

    fn dump_once(&mut self, message: Message) -> Result<(Vec<Vec<u8>>, bool), Refusal> {
        let sequence = self.next_sequence();
        let refuse = |source: io::Error| Refusal { sequence, message: None, source };
        self.send(&message.finish(sequence, NLM_F_REQUEST | NLM_F_DUMP)).map_err(|e| refuse(e.into()))?;
        let mut buffer = vec![0; RECEIVE_BUFFER];
        let (mut answers, mut torn) = (Vec::new(), false);
        loop {
            let length = self.receive(&mut buffer, MsgFlags::empty()).map_err(|e| refuse(e.into()))?;
            for reply in split(&buffer[..length]) {
                if reply.sequence != sequence {
                    continue;
                }
                torn |= reply.flags & NLM_F_DUMP_INTR != 0;
                match reply.kind {
                    NLMSG_DONE => return finished(&reply).map(|()| (answers, torn)),
                    NLMSG_ERROR => return acknowledgement(&reply).map(|_| (answers, torn)),
                    _ => answers.push(reply.body.to_vec()),
                }
            }
        }
    }

    /// Sends several messages as one datagram, which is how nf_tables takes a transaction, and reports the first refusal.
    /// Message `i` is refused under sequence `i + 1`.
    pub(crate) fn transact(&mut self, messages: Vec<Message>) -> Result<(), Refusal> {
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::new();
        for (sequence, message) in (1u32..).zip(messages) {
            // One acknowledgement proves that the kernel read the whole transaction. It is asked of the last message before
            // the closing one, because kernels before 6.14 answer nothing to the closing one. Asking for more would only
            // risk overflowing the receive queue of a big transaction.
            let acknowledge = if sequence + 1 == count { NLM_F_ACK } else { 0 };
            bytes.extend(message.finish(sequence, NLM_F_REQUEST | acknowledge));
        }
        let refuse = |source: io::Error| Refusal { sequence: 0, message: None, source };
        self.make_room(bytes.len()).map_err(refuse)?;
        self.send(&bytes).map_err(|e| refuse(e.into()))?;
        // The kernel has done all its work, and queued all its answers, before `send` returns.
        let mut buffer = vec![0; RECEIVE_BUFFER];
        let (mut refusal, mut confirmed) = (None, false);
        loop {
            let length = match self.receive(&mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(nix::Error::EAGAIN) => break,
                Err(e) => return Err(refuse(e.into())),
            };
            for reply in split(&buffer[..length]).filter(|r| r.kind == NLMSG_ERROR) {
                match acknowledgement(&reply) {
                    Ok(sequence) => confirmed |= sequence + 1 == count,
                    Err(new) => {
                        refusal.get_or_insert(new);
                    }
                }
            }
        }
        match refusal {
            Some(refusal) => Err(refusal),
            None if confirmed => Ok(()),
            None => Err(refuse(io::Error::other("the kernel did not confirm the transaction"))),
        }
    }

    /// A netlink datagram must fit the send buffer as a whole.
    fn make_room(&self, length: usize) -> io::Result<()> {
        // Below the default of net.core.wmem_default there is room already. The slack covers the kernel's own bookkeeping.
        const DEFAULT: usize = 128 * 1024;
        if length <= DEFAULT {
            return Ok(());
        }
        let wanted = i32::try_from(length + DEFAULT).map_err(io::Error::other)?;
        set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, wanted)
            .or_else(|_| set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_dump_tells_whether_it_failed() {
        let end = |body: &[u8]| finished(&Received { kind: NLMSG_DONE, flags: 0, sequence: 7, body });
        assert!(end(&[]).is_ok() && end(&0_i32.to_ne_bytes()).is_ok() && end(&3_i32.to_ne_bytes()).is_ok());
        let refusal = end(&(-libc::ENOENT).to_ne_bytes()).unwrap_err();
        assert_eq!((refusal.sequence, refusal.source.raw_os_error()), (7, Some(libc::ENOENT)));
    }
}
