//! Sockets that live in a pod's network namespace while their owner, the node proxy, does not.
//!
//! A socket belongs permanently to the namespace in which it was created. So the thread visits the pod for the one
//! `socket` call and does everything else at home. All sockets are non-blocking, ready for `tokio`'s `from_std`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::congestion::ShortPath;
use crate::error::{Error, Result};
use crate::marks::REPLY_MARK;
use crate::netns::NetworkNamespace;
use crate::sys::{get_option, set_option};

pub use crate::marks::PROXY_MARK;

/// Accepted but not yet fetched connections. The kernel drops handshakes beyond it and the client retries after a second, so
/// it must cover the connections that arrive while a busy worker is away; the customary 128 does not. `net.core.somaxconn`
/// (4096 since Linux 5.4) caps it.
pub const BACKLOG: i32 = 1024;

/// The longest time between two repetitions of what a tunnel has lost, milliseconds. The kernel takes no less.
const LONGEST_PAUSE_MS: i32 = 1000;

/// How the kernel finds out that the peer of an idle connection has vanished. Without it, its sockets would be held for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probes {
    /// Not at all. Within a namespace nothing can vanish without the kernel saying so, and the settings cost each connection
    /// four system calls.
    Never,
    /// Within half an hour: the values of real ztunnel.
    Slow,
    /// Within two minutes, for tunnels: the proxy asks for a sign of life only where something waits for the peer, so that
    /// idle ones keep nobody awake. The kernel's probes wake no process.
    Tunnel,
}

impl Probes {
    fn set(self, socket: &Socket) -> io::Result<()> {
        // Idle time before the first probe and between probes, and the number of unanswered ones that end a connection.
        let (time, interval, retries) = match self {
            Self::Never => return Ok(()),
            Self::Slow => (180, 180, 9),
            Self::Tunnel => (60, 10, 6),
        };
        let [time, interval] = [time, interval].map(Duration::from_secs);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries))?;
        if self == Self::Tunnel {
            repeat_often(socket);
        }
        Ok(())
    }
}

/// Has the kernel repeat what is lost every second at least. By itself it doubles the time between repetitions, up to two
/// minutes. The proxy takes a peer for dead that is silent for eight seconds: there are five repetitions in that time, all of
/// which are lost now and then where the network loses a fifth of all packets; this way there are ten. Before Linux 6.15 it
/// stays so.
fn repeat_often(socket: &Socket) {
    if let Err(error) = set_option(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_PAUSE_MS) {
        tracing::trace!(%error, "the time between a tunnel's repetitions is the kernel's");
    }
}

// linux/in6.h; not in libc for every target.
const IPV6_TRANSPARENT: i32 = 75;
const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
const SO_ORIGINAL_DST: i32 = 80;
// linux/tcp.h; not in libc yet.
const TCP_RTO_MAX_MS: i32 = 44;
const IP6T_SO_ORIGINAL_DST: i32 = 80;

const MIGRATE: &str = "/proc/sys/net/ipv4/tcp_migrate_req";

/// Properties of a listening socket. The default is what the proxy uses in pods.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// The mark of the socket and of all connections accepted from it.
    pub mark: Option<u32>,
    /// Whether another process of the same user may listen on the same port too, as a successor does during an upgrade.
    pub reuse_port: bool,
    /// Whether to ask for IP_TRANSPARENT. Being refused is not an error; see [`Listener::transparent`].
    pub transparent: bool,
    /// Accepted but not yet fetched connections.
    pub backlog: i32,
    /// How idle peers are probed.
    pub probes: Probes,
    /// The congestion control of its connections on short paths.
    pub path: ShortPath,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            mark: Some(PROXY_MARK),
            reuse_port: true,
            transparent: true,
            backlog: BACKLOG,
            probes: Probes::Slow,
            path: ShortPath::default(),
        }
    }
}

impl ListenOptions {
    /// For servers outside any pod: no mark, no sharing of the port, no privileges needed.
    #[must_use]
    pub fn plain() -> Self {
        Self { mark: None, reuse_port: false, transparent: false, ..Self::default() }
    }

    /// For connections that the pod's own programs make, which come by redirection: what the proxy answers needs no mark, for
    /// redirection is decided on a connection's first packet. With the mark, the pod's rules would take these for connections
    /// *to* a program, mark both directions as replies and have the kernel route every packet a second time (3 % of the
    /// processor time of a small message).
    #[must_use]
    pub fn for_programs() -> Self {
        Self { mark: None, ..Self::default() }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    /// The socket; non-blocking. Connections accepted from it send without delay (TCP_NODELAY) and probe idle peers.
    pub socket: TcpListener,
    /// Whether IP_TRANSPARENT was granted: then [`connector`] may use foreign source addresses in this namespace.
    pub transparent: bool,
}

/// Listens on one address.
///
/// # Errors
/// When the address is taken or isn't there, or the caller lacks CAP_NET_ADMIN for the mark.
pub fn listen(namespace: &NetworkNamespace, address: SocketAddr, options: &ListenOptions) -> Result<Listener> {
    let fail = |e| Error::system(format!("listening on {address} in {namespace}"), e);
    let socket = namespace.socket(address, Type::STREAM, Protocol::TCP).map_err(fail)?;
    listen_on(socket, address, options).map_err(fail)
}

/// Listens on a port of all addresses, IPv6 and IPv4 by one socket; IPv4 only where the kernel has no IPv6.
///
/// # Errors
/// As [`listen`].
pub fn listen_wildcard(namespace: &NetworkNamespace, port: u16, options: &ListenOptions) -> Result<Listener> {
    let outcome = listen(namespace, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), options);
    match outcome {
        // EADDRNOTAVAIL: IPv6 is compiled in but switched off for this namespace by sysctl.
        Err(error) if matches!(error.errno(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            listen(namespace, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), options)
        }
        other => other,
    }
}

/// Has what waits at a listener of this namespace when it closes, handshakes that are not over among it, go to another one
/// on the same port. Otherwise, connections that come while one proxy hands over to the next would be reset. For all
/// listeners from now on. Where the kernel can't (before Linux 5.14), or `/proc/sys` is read-only, nothing changes.
pub fn hand_on_what_waits(namespace: &NetworkNamespace) {
    let set = namespace.run(|| std::fs::write(MIGRATE, "1"));
    if let Err(error) = set.and_then(|set| set.map_err(|e| Error::system(format!("writing {MIGRATE}"), e))) {
        tracing::debug!(%error, "connections that wait for a proxy that ends are not handed to the next");
    }
}

fn listen_on(socket: Socket, address: SocketAddr, options: &ListenOptions) -> io::Result<Listener> {
    if address.is_ipv6() {
        // Only the wildcard can take both families; the distribution's default (bindv6only) must not decide.
        socket.set_only_v6(address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED))?;
    }
    // A restarted proxy must not wait a minute for the last one's connections to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(options.reuse_port)?;
    if let Some(mark) = options.mark {
        socket.set_mark(mark)?;
    }
    let transparent = options.transparent && set_transparent(&socket, address).is_ok();
    set_connection_defaults(&socket, options.probes)?;
    options.path.assume(&socket);
    socket.bind(&address.into())?;
    socket.listen(options.backlog)?;
    Ok(Listener { socket: socket.into(), transparent })
}

/// The sockets of a pod's DNS server, on the loopback address of each family that the pod has.
#[derive(Debug)]
pub struct DnsSockets {
    /// For datagrams; at least one, IPv4 first.
    pub udp: Vec<UdpSocket>,
    /// For connections; at least one, IPv4 first.
    pub tcp: Vec<Listener>,
}

/// Opens a pod's DNS server sockets. IPv6 is left out when the pod's loopback has none: one pod without IPv6 must not keep
/// the node's proxy from serving it.
///
/// # Errors
/// When the port is taken or the caller lacks CAP_NET_ADMIN for the mark.
pub fn listen_dns(namespace: &NetworkNamespace, port: u16, options: &ListenOptions) -> Result<DnsSockets> {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut sockets =
        DnsSockets { udp: vec![udp(namespace, v4, options)?], tcp: vec![listen(namespace, v4, options)?] };
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    match udp(namespace, v6, options).and_then(|udp| Ok((udp, listen(namespace, v6, options)?))) {
        Ok((udp, tcp)) => {
            sockets.udp.push(udp);
            sockets.tcp.push(tcp);
        }
        Err(error) if matches!(error.errno(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            tracing::debug!(%namespace, %error, "no IPv6 loopback here; serving DNS on IPv4 only");
        }
        Err(error) => return Err(error),
    }
    Ok(sockets)
}

/// Opens a datagram socket bound to an address; port 0 lets the kernel choose. For queries to a resolver, bind to the
/// unspecified address of the resolver's family.
///
/// # Errors
/// When the address is taken or isn't there, or the caller lacks CAP_NET_ADMIN for the mark.
pub fn udp(namespace: &NetworkNamespace, address: SocketAddr, options: &ListenOptions) -> Result<UdpSocket> {
    let fail = |e| Error::system(format!("binding UDP {address} in {namespace}"), e);
    let socket = namespace.socket(address, Type::DGRAM, Protocol::UDP).map_err(fail)?;
    let bind = || -> io::Result<()> {
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // Two sockets of one process on a kernel-chosen port would be a bug, so sharing is for fixed ports only.
        socket.set_reuse_port(options.reuse_port && address.port() != 0)?;
        if let Some(mark) = options.mark {
            socket.set_mark(mark)?;
        }
        socket.bind(&address.into())
    };
    bind().map_err(fail)?;
    Ok(socket.into())
}

/// Properties of a connecting socket.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// How an idle peer is probed.
    pub probes: Probes,
    /// The congestion control on a short path.
    pub path: ShortPath,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { probes: Probes::Slow, path: ShortPath::default() }
    }
}

/// A TCP socket that is about to connect to `destination` from inside the namespace, marked with [`PROXY_MARK`], and set up as
/// connections accepted from a [`Listener`] are.
///
/// With a `source`, the connection comes from that address although it isn't the namespace's own: this is how an application
/// sees its client instead of the proxy. The unspecified address leaves that to the kernel and asks for the port only. A source
/// port of 0 is chosen at connect time, per destination, so that one source address isn't limited to one ephemeral range for
/// all destinations.
///
/// # Errors
/// When the families differ or the caller lacks CAP_NET_ADMIN.
pub fn connector(
    namespace: &NetworkNamespace,
    destination: SocketAddr,
    source: Option<SocketAddr>,
    options: &ConnectOptions,
) -> Result<Socket> {
    let fail = |e| Error::system(format!("opening a socket towards {destination} in {namespace}"), e);
    let destination_ip = destination.ip().to_canonical();
    let socket = namespace.socket(SocketAddr::new(destination_ip, 0), Type::STREAM, Protocol::TCP).map_err(fail)?;
    let prepare = || -> io::Result<()> {
        socket.set_mark(PROXY_MARK)?;
        set_connection_defaults(&socket, options.probes)?;
        options.path.assume(&socket);
        let Some(source) = source else { return Ok(()) };
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        // Also permits the foreign address.
        if !source.ip().is_unspecified() {
            set_transparent(&socket, source)?;
        }
        if source.port() == 0 {
            set_option(&socket, libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)?;
        } else {
            // Allows one source for several destinations, and its reuse while the last use is in TIME_WAIT.
            socket.set_reuse_address(true)?;
        }
        socket.bind(&source.into())
    };
    prepare().map_err(fail)?;
    Ok(socket)
}

/// Tells the kernel that a connection made with a [`connector`] to the pod's own program is established.
///
/// The pod's rules have marked the connection by now and give each of its packets that mark instead of the socket's; a packet
/// whose mark a rule has changed is routed once more. So the socket takes the connection's mark itself. Not earlier: the first
/// packet's is what the rules know the connection by.
pub fn established(connection: &impl AsFd) {
    // Without it everything works, for more processor time.
    let _ = SockRef::from(connection).set_mark(REPLY_MARK);
}

fn set_transparent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        set_option(socket, libc::SOL_IPV6, IPV6_TRANSPARENT, 1)
    } else {
        set_option(socket, libc::SOL_IP, libc::IP_TRANSPARENT, 1)
    }
}

/// The properties that connections inherit from their listener and that connectors set themselves.
fn set_connection_defaults(socket: &Socket, probes: Probes) -> io::Result<()> {
    // The proxy writes what it read, in whole chunks; waiting for more would add up to 40 ms per exchange.
    socket.set_tcp_nodelay(true)?;
    probes.set(socket)
}

/// Offsets and length in `struct tcp_info` (linux/tcp.h) of `tcpi_unacked` (segments), `tcpi_bytes_acked` and
/// `tcpi_notsent_bytes`.
const UNACKED: usize = 24;
const BYTES_ACKED: usize = 120;
const NOTSENT: usize = 144;
const INFO_LENGTH: usize = NOTSENT + 4;

/// Bytes of a connection that the peer's system has acknowledged, and whether there are others that it has not.
///
/// # Errors
/// When the socket isn't a connected TCP socket, or the kernel doesn't tell (before Linux 4.6).
pub fn acknowledged(socket: &impl AsFd) -> io::Result<(u64, bool)> {
    let info = get_option::<INFO_LENGTH>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&info[BYTES_ACKED..BYTES_ACKED + 8]);
    let any = |at: usize| info[at..at + 4] != [0; 4];
    Ok((u64::from_ne_bytes(bytes), any(UNACKED) || any(NOTSENT)))
}

/// The destination of a client's connection before a rule redirected it here; the address at which it arrived if none
/// did. IPv4 addresses are never returned in their IPv6-mapped form.
///
/// # Errors
/// When the socket isn't a connected TCP socket.
pub fn original_destination(socket: &impl AsFd) -> io::Result<SocketAddr> {
    original_destination_of(socket, arrival(socket)?)
}

/// As [`original_destination`], for callers that know one end of the connection already. Saves one system call.
///
/// # Errors
/// As [`original_destination`].
pub fn original_destination_of(socket: &impl AsFd, end: SocketAddr) -> io::Result<SocketAddr> {
    // The family is that of the connection, not of the socket: a dual-stack socket answers the IPv4 question for an IPv6
    // connection with whatever its unused IPv4 fields match.
    let tracked = if end.ip().to_canonical().is_ipv4() {
        get_option::<16>(socket, libc::SOL_IP, SO_ORIGINAL_DST).map(|address| {
            let [_, _, high, low, a, b, c, d, ..] = address;
            SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])))
        })
    } else {
        get_option::<28>(socket, libc::SOL_IPV6, IP6T_SO_ORIGINAL_DST).map(|address| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&address[8..24]);
            SocketAddr::from((Ipv6Addr::from(ip), u16::from_be_bytes([address[2], address[3]])))
        })
    };
    match tracked {
        // ENOENT: not tracked. ENOPROTOOPT: the namespace has no connection tracking at all. Either way not redirected.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP)) => {
            arrival(socket)
        }
        tracked => tracked,
    }
}

/// The address a connection arrived at, IPv4 ones never in their IPv6-mapped form.
///
/// # Errors
/// When the socket isn't an internet socket.
pub fn arrival(socket: &impl AsFd) -> io::Result<SocketAddr> {
    let local = SockRef::from(socket)
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not an internet socket"))?;
    Ok(SocketAddr::new(local.ip().to_canonical(), local.port()))
}

#[cfg(test)]
#[path = "sockets_tests.rs"]
mod tests;
