//! Congestion control on short paths.
//!
//! BBR spaces packets out in time. On links without a queueing discipline that does this (`lo`, `veth`), the kernel
//! starts a timer for each packet of at most 64 KiB. That is a quarter of what a byte costs on its way through two
//! proxies (lab/results), and on a path whose round trip takes a fraction of a millisecond it has no benefit.
//! Loss-based algorithms need no timers. So a node that uses BBR for its long paths need not pay for it on short ones.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Protocol, SockRef, Socket, Type};

use crate::netns::NetworkNamespace;
use crate::sys::get_option;

/// Round trips from this value on leave the machine room, and the system's algorithm decides. Between zones of one
/// region they take about this long, within a zone a tenth of it.
const LONG: Duration = Duration::from_millis(1);

/// The algorithms that replace one that paces; the first that the kernel has is used. The first is Linux's default, the
/// second can't be left out of a kernel.
const UNPACED: [&[u8]; 2] = [b"cubic", b"reno"];

/// Offset of `tcpi_rtt` in `struct tcp_info` (linux/tcp.h), and the length up to its end. The kernel fills as much as
/// is requested.
const RTT_OFFSET: usize = 68;
const INFO_LENGTH: usize = RTT_OFFSET + 4;

/// The congestion control of a namespace's connections on short paths. By default, the same as on all paths.
#[derive(Debug, Clone, Default)]
pub struct ShortPath(Option<Arc<Paced>>);

#[derive(Debug)]
struct Paced {
    /// The namespace's own algorithm, which paces.
    system: Vec<u8>,
    unpaced: &'static [u8],
}

impl ShortPath {
    /// The algorithm for the namespace: another one if its own paces.
    ///
    /// # Errors
    /// If the namespace can't be entered or has no TCP.
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

    /// Prepares a socket for a short path. Only before it is connected or listens: once BBR has begun, its pacing
    /// stays.
    pub(crate) fn assume(&self, socket: &Socket) {
        // It was permitted when the pod came. Whatever has changed since, the connection matters more.
        if let Some(paced) = &self.0
            && let Err(error) = socket.set_tcp_congestion(paced.unpaced)
        {
            tracing::debug!(%error, "a connection's congestion control stays as it is");
        }
    }

    /// Corrects the assumption if the handshake shows a long path. Call it when a connection has been made and before
    /// much is sent.
    ///
    /// # Errors
    /// When the socket isn't a connected TCP socket.
    pub fn verify(&self, socket: &impl AsFd) -> io::Result<()> {
        if self.0.is_none() { Ok(()) } else { self.settle(socket, round_trip(socket)?) }
    }

    fn settle(&self, socket: &impl AsFd, round_trip: Duration) -> io::Result<()> {
        match &self.0 {
            // Zero means not measured, which happens in a flood of connections (SYN cookies).
            Some(paced) if round_trip.is_zero() || round_trip >= LONG => {
                SockRef::from(socket).set_tcp_congestion(&paced.system)
            }
            _ => Ok(()),
        }
    }
}

/// The name of the algorithm that a socket uses. The kernel pads it with zeros.
fn in_use(socket: &impl AsFd) -> io::Result<Vec<u8>> {
    let mut name = SockRef::from(socket).tcp_congestion()?;
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    Ok(name)
}

/// The round-trip time of a connection, as the kernel has measured it; at first from the handshake.
fn round_trip(socket: &impl AsFd) -> io::Result<Duration> {
    let info = get_option::<INFO_LENGTH>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let mut microseconds = [0; 4];
    microseconds.copy_from_slice(&info[RTT_OFFSET..]);
    Ok(Duration::from_micros(u32::from_ne_bytes(microseconds).into()))
}

#[cfg(test)]
#[path = "congestion_tests.rs"]
mod tests;
