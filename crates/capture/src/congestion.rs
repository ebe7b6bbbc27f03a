//! Congestion control where there is no congestion.
//!
//! BBR spaces packets out in time. Where no queueing discipline does that for it (`lo`, `veth`), the kernel starts a timer for
//! each packet of 64 KiB at most: a quarter of what a byte costs on its way through two proxies (lab/results). On a path whose
//! round trip takes a fraction of a millisecond that buys nothing. Loss-based algorithms start no timers, so a node that uses
//! BBR for its long paths need not pay for it on short ones.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Protocol, SockRef, Socket, Type};

use crate::netns::NetworkNamespace;
use crate::sys::get_option;

/// Round trips from here on leave the machine room: the system's algorithm is to decide. Between zones of one region
/// they take about as long, within a zone a tenth.
const LONG: Duration = Duration::from_millis(1);

/// In place of an algorithm that paces; the first that the kernel has. Linux's default, and the one that can't be left out.
const UNPACED: [&[u8]; 2] = [b"cubic", b"reno"];

/// Offset and length of `tcpi_rtt` in `struct tcp_info` (linux/tcp.h), microseconds. The kernel fills as much as is asked for.
const RTT_OFFSET: usize = 68;
const INFO_LENGTH: usize = RTT_OFFSET + 4;

/// What connections of one namespace use on short paths. By default: what they use on all.
#[derive(Debug, Clone, Default)]
pub struct ShortPath(Option<Arc<Paced>>);

#[derive(Debug)]
struct Paced {
    /// The namespace's own, which paces.
    system: Vec<u8>,
    unpaced: &'static [u8],
}

impl ShortPath {
    /// What suits the namespace: another algorithm where its own paces.
    ///
    /// # Errors
    /// When the namespace can't be entered or has no TCP.
    pub fn of(namespace: &NetworkNamespace) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let probe = namespace.socket(any, Type::STREAM, Protocol::TCP)?;
        let system = in_use(&probe)?;
        if !system.starts_with(b"bbr") {
            return Ok(Self(None));
        }
        let unpaced = UNPACED.into_iter().find(|name| probe.set_tcp_congestion(name).is_ok());
        Ok(Self(unpaced.map(|unpaced| Arc::new(Paced { system, unpaced }))))
    }

    /// Takes a socket for one that will have a short path. Only before it is connected or listens: BBR, once begun, leaves
    /// its pacing behind.
    pub(crate) fn assume(&self, socket: &Socket) {
        // It was granted when the pod came; whatever has changed since, a connection is worth more.
        if let Some(paced) = &self.0
            && let Err(error) = socket.set_tcp_congestion(paced.unpaced)
        {
            tracing::debug!(%error, "a connection's congestion control stays as it is");
        }
    }

    /// Corrects what was assumed, once a connection has been made and before much is sent, if its handshake took a long
    /// path's time.
    ///
    /// # Errors
    /// When the socket isn't a connected TCP socket.
    pub fn verify(&self, socket: &impl AsFd) -> io::Result<()> {
        if self.0.is_none() { Ok(()) } else { self.settle(socket, round_trip(socket)?) }
    }

    fn settle(&self, socket: &impl AsFd, round_trip: Duration) -> io::Result<()> {
        match &self.0 {
            // Zero: not measured, which a flood of connections brings about (SYN cookies).
            Some(paced) if round_trip.is_zero() || round_trip >= LONG => {
                SockRef::from(socket).set_tcp_congestion(&paced.system)
            }
            _ => Ok(()),
        }
    }
}

/// Name of the algorithm that a socket uses; the kernel pads it with zeros.
fn in_use(socket: &impl AsFd) -> io::Result<Vec<u8>> {
    let mut name = SockRef::from(socket).tcp_congestion()?;
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    Ok(name)
}

/// What a connection's round trip takes, as measured by the kernel; at first by the handshake.
fn round_trip(socket: &impl AsFd) -> io::Result<Duration> {
    let info = get_option::<INFO_LENGTH>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let mut microseconds = [0; 4];
    microseconds.copy_from_slice(&info[RTT_OFFSET..]);
    Ok(Duration::from_micros(u32::from_ne_bytes(microseconds).into()))
}

#[cfg(test)]
#[path = "congestion_tests.rs"]
mod tests;
