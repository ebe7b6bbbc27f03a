//! Pods without containers: network namespaces on one switch.

#![allow(clippy::unwrap_used, reason = "test code: a network that can't be built shall stop the test")]

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use leno_capture::links::{self, Route, VethOptions};
use leno_capture::{NAMED_DIR, NetworkNamespace};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

/// Whether `test` can use namespaces. If not, reports the skipped test by name, past the test harness's capture: a
/// skipped test must not look like a passed one.
///
/// # Panics
/// For root, if namespaces don't work: then the test has to run.
pub fn may_run(test: &str) -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    crate::skips::skip(test, crate::skips::NEEDS_ROOT);
    false
}

/// Different from the stage's own names: `leno down` would report namespaces with those.
const PREFIX: &str = "test-leno-";

/// A named network namespace. It is removed when this is dropped, also by a panic.
#[derive(Debug)]
pub struct TestNamespace {
    namespace: NetworkNamespace,
    name: String,
}

impl TestNamespace {
    /// Makes one, called `test-leno-<process>-<number>`, with `lo` up.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(remove_leftovers);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let namespace = NetworkNamespace::create_named(Path::new(NAMED_DIR), &name).unwrap();
        // Without duplicate address detection an address is usable at once instead of after a second.
        links::disable_address_detection(&namespace).unwrap();
        Self { namespace, name }
    }

    /// The namespace.
    pub fn handle(&self) -> &NetworkNamespace {
        &self.namespace
    }
}

impl Default for TestNamespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        if let Err(error) = NetworkNamespace::delete_named(Path::new(NAMED_DIR), &self.name) {
            let _ = writeln!(io::stderr(), "{} stays behind: {error}", self.name);
        }
    }
}

/// Removes what killed test processes left.
fn remove_leftovers() {
    for name in NetworkNamespace::list(Path::new(NAMED_DIR)).unwrap_or_default() {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = NetworkNamespace::delete_named(Path::new(NAMED_DIR), &name);
        }
    }
}

/// The switch that all pods are connected to: a bridge in its own namespace, and their default router.
#[derive(Debug)]
pub struct Network {
    switch: TestNamespace,
    next: u16,
}

impl Network {
    /// The IPv4 address of the switch, where everything outside the pods is.
    pub const OUTSIDE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
    /// Its IPv6 address.
    pub const OUTSIDE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));

    /// An empty network.
    pub fn new() -> Self {
        let switch = TestNamespace::new();
        links::create_bridge(switch.handle(), "br0").unwrap();
        for (address, prefix) in [(Self::OUTSIDE_V4, 16), (Self::OUTSIDE_V6, 64)] {
            links::add_address(switch.handle(), "br0", address, prefix).unwrap();
        }
        links::set_up(switch.handle(), "br0").unwrap();
        Self { switch, next: 10 }
    }

    /// A place outside: a peer whose traffic is not captured.
    pub fn outside(&self) -> Host<'_> {
        Host { namespace: self.switch.handle(), v4: Self::OUTSIDE_V4, v6: Self::OUTSIDE_V6 }
    }

    /// A new pod, not captured yet.
    pub fn pod(&mut self) -> PodNetwork {
        let number = self.next;
        self.next += 1;
        let namespace = TestNamespace::new();
        let (pod, switch) = (namespace.handle(), self.switch.handle());
        let port = format!("pod{number}");
        links::create_veth(pod, "eth0", switch, &port, &VethOptions::default()).unwrap();
        links::set_master(switch, &port, "br0").unwrap();
        links::set_up(switch, &port).unwrap();
        let [high, low] = number.to_be_bytes();
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 77, high, low));
        let v6 = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number));
        links::add_address(pod, "eth0", v4, 16).unwrap();
        links::add_address(pod, "eth0", v6, 64).unwrap();
        links::set_up(pod, "eth0").unwrap();
        links::add_route(pod, &Route::default_v4().via(Self::OUTSIDE_V4)).unwrap();
        links::add_route(pod, &Route::default_v6().via(Self::OUTSIDE_V6)).unwrap();
        PodNetwork { namespace, port, v4, v6 }
    }

    /// Cuts a pod off silently: all packets to it and from it are lost.
    pub fn unplug(&self, pod: &PodNetwork) {
        links::set_down(self.switch.handle(), &pod.port).unwrap();
    }

    /// Undoes [`Self::unplug`].
    pub fn plug_in(&self, pod: &PodNetwork) {
        links::set_up(self.switch.handle(), &pod.port).unwrap();
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

/// A pod and its place in the network.
#[derive(Debug)]
pub struct PodNetwork {
    namespace: TestNamespace,
    /// Its port on the switch.
    port: String,
    /// Its IPv4 address.
    pub v4: IpAddr,
    /// Its IPv6 address.
    pub v6: IpAddr,
}

impl PodNetwork {
    /// Where its programs run.
    pub fn host(&self) -> Host<'_> {
        Host { namespace: self.namespace.handle(), v4: self.v4, v6: self.v6 }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &NetworkNamespace {
        self.namespace.handle()
    }
}

/// A place where programs run. Their sockets are made here.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The namespace.
    pub namespace: &'a NetworkNamespace,
    /// Its IPv4 address.
    pub v4: IpAddr,
    /// Its IPv6 address.
    pub v6: IpAddr,
}

impl Host<'_> {
    /// Its address of the same family as `like`.
    pub fn address_like(&self, like: IpAddr) -> IpAddr {
        if like.is_ipv4() { self.v4 } else { self.v6 }
    }

    /// A socket that is not connected yet.
    pub fn socket(&self, like: IpAddr) -> TcpSocket {
        let open = || if like.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        self.namespace.run(open).unwrap().unwrap()
    }

    /// Connects as an ordinary program does.
    ///
    /// # Errors
    /// Those of connect(2).
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.socket(to.ip()).connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Listens on all addresses of one family.
    pub fn listen(&self, address: IpAddr, port: u16) -> TcpListener {
        self.listen_with(address, port, 1024)
    }

    /// Listens with room for `backlog` connections that wait to be accepted.
    pub fn listen_with(&self, address: IpAddr, port: u16, backlog: u32) -> TcpListener {
        let socket = self.socket(address);
        socket.set_reuseaddr(true).unwrap();
        socket.bind(SocketAddr::new(address, port)).unwrap();
        socket.listen(backlog).unwrap()
    }

    /// A datagram socket.
    pub fn udp(&self, address: IpAddr, port: u16) -> UdpSocket {
        let bind = || std::net::UdpSocket::bind((address, port));
        let socket = self.namespace.run(bind).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        UdpSocket::from_std(socket).unwrap()
    }
}
