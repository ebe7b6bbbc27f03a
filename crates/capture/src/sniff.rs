//! Watching a wire, to prove that no plaintext is on it.
//!
//! A [`Sniffer`] reads every packet of an interface and counts those that contain a canary: a byte string that an application
//! sends and that nobody should be able to read on the way. A canary that happens to be split over two packets is not found,
//! so send it often, or at the start of a connection. Only counters are kept, never contents.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socket};

use crate::error::{Error, Result};
use crate::links;
use crate::netns::NetworkNamespace;
use crate::pod_rules::TUNNEL_PORT;
use crate::sys::{bind_packet, get_option, set_option};

/// Longest packet looked at: segmentation offload hands over up to 64 KiB, "BIG TCP" up to 512 KiB, of which the rest is
/// counted but not searched.
const BUFFER: usize = 256 * 1024;
/// Room for bursts between two reads; what doesn't fit is reported as dropped.
const QUEUE: i32 = 32 * 1024 * 1024;
const SOL_PACKET: i32 = 263;
const PACKET_STATISTICS: i32 = 6;
const TCP: u8 = 6;

/// What was seen on the wire, in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Packets of any kind.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
    /// TCP segments to or from port 15008.
    pub tunnel_packets: u64,
    /// Their bytes, from the IP header on.
    pub tunnel_bytes: u64,
    /// TCP segments that carry data and are neither to nor from port 15008.
    pub other_tcp_data_packets: u64,
    /// TCP segments without tunnel port, with data or without.
    pub other_tcp_packets: u64,
    /// How often the canary was found.
    pub canaries: u64,
    /// Packets that the kernel had no room for. Unless this is 0, an absence of canaries proves nothing.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    tunnel_packets: AtomicU64,
    tunnel_bytes: AtomicU64,
    other_tcp_data_packets: AtomicU64,
    other_tcp_packets: AtomicU64,
    canaries: AtomicU64,
    dropped: AtomicU64,
}

impl Counters {
    fn read(&self) -> Seen {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Seen {
            packets: get(&self.packets),
            bytes: get(&self.bytes),
            tunnel_packets: get(&self.tunnel_packets),
            tunnel_bytes: get(&self.tunnel_bytes),
            other_tcp_data_packets: get(&self.other_tcp_data_packets),
            other_tcp_packets: get(&self.other_tcp_packets),
            canaries: get(&self.canaries),
            dropped: get(&self.dropped),
        }
    }

    fn add(&self, packet: &[u8], length: usize, canary: &[u8]) {
        let length = length as u64;
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(length, Ordering::Relaxed);
        if let Some(segment) = tcp_segment(packet) {
            if segment.source == TUNNEL_PORT || segment.destination == TUNNEL_PORT {
                self.tunnel_packets.fetch_add(1, Ordering::Relaxed);
                self.tunnel_bytes.fetch_add(length, Ordering::Relaxed);
            } else {
                self.other_tcp_packets.fetch_add(1, Ordering::Relaxed);
                self.other_tcp_data_packets.fetch_add(u64::from(segment.has_data), Ordering::Relaxed);
            }
        }
        self.canaries.fetch_add(occurrences(packet, canary), Ordering::Relaxed);
    }
}

/// A running capture. Dropping it ends the capture too.
#[derive(Debug)]
pub struct Sniffer {
    counters: Arc<Counters>,
    /// Closing it wakes and ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Sniffer {
    /// Watches `interface`, or all interfaces of the namespace, for `canary`. Packets sent after this returns are seen.
    /// Without an interface, a packet that crosses several of them is counted on each, and loopback traffic twice.
    ///
    /// # Errors
    /// When the interface doesn't exist or the caller lacks CAP_NET_RAW.
    pub fn start(namespace: &NetworkNamespace, interface: Option<&str>, canary: &[u8]) -> Result<Self> {
        let fail = |e: io::Error| Error::system(format!("capturing packets in {namespace}"), e);
        let index = interface.map_or(Ok(0), |name| links::link_index(namespace, name))?;
        // Protocol 0 receives nothing yet; otherwise packets of other interfaces would slip in before the bind.
        let capture = namespace
            .run(|| socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None))?
            .map_err(|e| fail(e.into()))?;
        // Forcing needs CAP_NET_ADMIN of the host; the unforced call is capped by net.core.rmem_max.
        set_option(&capture, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, QUEUE)
            .or_else(|_| set_option(&capture, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE))
            .map_err(fail)?;
        bind_packet(&capture, index).map_err(fail)?;
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let counters = Arc::new(Counters::default());
        let thread = std::thread::Builder::new()
            .name("sniffer".into())
            .spawn({
                let (counters, canary) = (Arc::clone(&counters), canary.to_vec());
                move || watch(&capture, &stopped, &counters, &canary)
            })
            .map_err(fail)?;
        Ok(Self { counters, stop: Some(stop), thread: Some(thread) })
    }

    /// What has been seen so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.counters.read()
    }

    /// Ends the capture, after counting what has arrived by now.
    ///
    /// # Errors
    /// When reading packets failed at some point, for instance because the interface went away.
    pub fn stop(mut self) -> Result<Seen> {
        self.finish().map_err(|e| Error::system("capturing packets", e))?;
        Ok(self.counters.read())
    }

    fn finish(&mut self) -> io::Result<()> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(io::Error::other("the capturing thread panicked")),
        }
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "a packet capture ended early");
        }
    }
}

fn watch(capture: &OwnedFd, stopped: &UnixStream, counters: &Counters, canary: &[u8]) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let mut events =
            [PollFd::new(capture.as_fd(), PollFlags::POLLIN), PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        match poll(&mut events, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(e) => return Err(e.into()),
        }
        // Looked at before draining: what arrived before the request to stop is then counted.
        let last = events[1].any().unwrap_or(true);
        loop {
            match recv(capture.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC) {
                Ok(length) => counters.add(&buffer[..length.min(BUFFER)], length, canary),
                Err(nix::Error::EAGAIN) => break,
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        // `struct tpacket_stats`: packets, drops; reading resets them.
        let statistics = get_option::<8>(capture, SOL_PACKET, PACKET_STATISTICS)?;
        let [_, _, _, _, a, b, c, d] = statistics;
        counters.dropped.fetch_add(u64::from(u32::from_ne_bytes([a, b, c, d])), Ordering::Relaxed);
        if last {
            return Ok(());
        }
    }
}

struct Segment {
    source: u16,
    destination: u16,
    has_data: bool,
}

/// The TCP header of an IP packet, if it is one (RFC 791 §3.1, RFC 8200 §3 and §4, RFC 9293 §3.1).
fn tcp_segment(packet: &[u8]) -> Option<Segment> {
    let (header, end) = match packet.first()? >> 4 {
        4 => {
            let fragment_offset = be16(packet, 6)? & 0x1fff;
            if packet.get(9) != Some(&TCP) || fragment_offset != 0 {
                return None;
            }
            (usize::from(packet[0] & 0xf) * 4, ip_length(be16(packet, 2)?, 0, packet))
        }
        6 => {
            let end = ip_length(be16(packet, 4)?, 40, packet);
            let (mut next, mut at) = (*packet.get(6)?, 40);
            // Hop-by-hop options, routing, destination options; a fragment's ports are not looked for.
            while matches!(next, 0 | 43 | 60) {
                next = *packet.get(at)?;
                at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
            }
            if next != TCP {
                return None;
            }
            (at, end)
        }
        _ => return None,
    };
    let data = header + usize::from(packet.get(header + 12)? >> 4) * 4;
    Some(Segment { source: be16(packet, header)?, destination: be16(packet, header + 2)?, has_data: end > data })
}

/// The end of the packet by its own account. A length of 0 marks one too long for the field.
fn ip_length(field: u16, header: usize, packet: &[u8]) -> usize {
    if field == 0 { packet.len() } else { usize::from(field) + header }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// How often `needle` is in `hay`, without overlaps. An empty needle is nowhere.
fn occurrences(mut hay: &[u8], needle: &[u8]) -> u64 {
    let Some((&first, rest)) = needle.split_first() else { return 0 };
    let mut count = 0;
    while let Some(at) = hay.iter().position(|&byte| byte == first) {
        hay = &hay[at + 1..];
        if hay.starts_with(rest) {
            count += 1;
            hay = &hay[rest.len()..];
        }
    }
    count
}

#[cfg(test)]
#[path = "sniff_tests.rs"]
mod tests;
