use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use leno_testkit::skips::skip;

use super::*;
use crate::links;
use crate::test_support::{PEER, PEER6, POD, POD6, Pair, at, ip, may_run};

/// A port that is the same for every test, each of which has its own namespaces.
const PORT: u16 = 15001;

fn accept(listener: &Listener) -> (TcpStream, SocketAddr) {
    listener.socket.set_nonblocking(false).unwrap();
    listener.socket.accept().unwrap()
}

fn connect(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    socket.set_nonblocking(false).unwrap();
    socket.connect(&to.into())?;
    Ok(socket.into())
}

#[test]
fn listens_on_both_families_inside_the_pod() {
    if !may_run("listens_on_both_families_inside_the_pod") {
        return;
    }
    let pair = Pair::new();
    let listener = listen_wildcard(&pair.pod, PORT, &ListenOptions::default()).unwrap();
    assert!(listener.transparent);
    for address in [POD, POD6] {
        let client = pair.peer.run(|| TcpStream::connect(at(address, PORT)).unwrap()).unwrap();
        let (server, peer) = accept(&listener);
        assert_eq!(SocketAddr::new(peer.ip().to_canonical(), peer.port()), client.local_addr().unwrap());
        // Inherited from the listener.
        let server = SockRef::from(&server);
        assert!(server.tcp_nodelay().unwrap() && server.keepalive().unwrap());
        assert_eq!(server.mark().unwrap(), PROXY_MARK);
        assert_eq!(server.tcp_keepalive_time().unwrap(), Duration::from_secs(180));
        assert_eq!(server.tcp_keepalive_interval().unwrap(), Duration::from_secs(180));
        assert_eq!(server.tcp_keepalive_retries().unwrap(), 9);
    }
    // A successor listens beside it; somebody who doesn't share can't.
    listen_wildcard(&pair.pod, PORT, &ListenOptions::default()).unwrap();
    let taken = listen_wildcard(&pair.pod, PORT, &ListenOptions::plain()).unwrap_err();
    assert_eq!(taken.errno(), Some(libc::EADDRINUSE), "{taken}");
    // The host's namespace is another world: the same port is free there.
    let home = NetworkNamespace::create().unwrap();
    listen_wildcard(&home, PORT, &ListenOptions::plain()).unwrap();
}

#[test]
fn what_programs_are_answered_is_unmarked() {
    if !may_run("what_programs_are_answered_is_unmarked") {
        return;
    }
    let pair = Pair::new();
    let listener = listen_wildcard(&pair.pod, PORT, &ListenOptions::for_programs()).unwrap();
    let _client = pair.peer.run(|| TcpStream::connect(at(POD, PORT)).unwrap()).unwrap();
    assert_eq!(SockRef::from(&accept(&listener).0).mark().unwrap(), 0);
}

#[test]
fn a_connection_to_a_program_takes_its_replies_mark_once_it_is_established() {
    if !may_run("a_connection_to_a_program_takes_its_replies_mark_once_it_is_established") {
        return;
    }
    let pair = Pair::new();
    let _listener = listen(&pair.peer, at(PEER, PORT), &ListenOptions::default()).unwrap();
    let socket = connector(&pair.pod, at(PEER, PORT), None, &ConnectOptions::default()).unwrap();
    assert_eq!(socket.mark().unwrap(), PROXY_MARK);
    let stream = connect(socket, at(PEER, PORT)).unwrap();
    established(&stream);
    assert_eq!(SockRef::from(&stream).mark().unwrap(), REPLY_MARK);
}

#[test]
fn does_without_ipv6_where_it_is_switched_off() {
    if !may_run("does_without_ipv6_where_it_is_switched_off") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    links::set_sysctl(&pod, "net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    let dns = listen_dns(&pod, 15053, &ListenOptions::default()).unwrap();
    assert_eq!((dns.udp.len(), dns.tcp.len()), (1, 1));
    let listener = listen_wildcard(&pod, PORT, &ListenOptions::default()).unwrap();
    pod.run(|| TcpStream::connect(at("127.0.0.1", PORT)).unwrap()).unwrap();
    accept(&listener);
}

#[test]
fn dns_listens_on_loopback_only() {
    if !may_run("dns_listens_on_loopback_only") {
        return;
    }
    let pair = Pair::new();
    let dns = listen_dns(&pair.pod, 15053, &ListenOptions::default()).unwrap();
    let addresses: Vec<_> = dns.udp.iter().map(|socket| socket.local_addr().unwrap()).collect();
    assert_eq!(addresses, [at("127.0.0.1", 15053), at("::1", 15053)]);
    let tcp: Vec<_> = dns.tcp.iter().map(|l| l.socket.local_addr().unwrap()).collect();
    assert_eq!(tcp, addresses);
    let refused = pair.peer.run(|| TcpStream::connect(at(POD, 15053))).unwrap().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // Taken is an error, not a reason to do without.
    let taken = listen_dns(&pair.pod, 15053, &ListenOptions::plain()).unwrap_err();
    assert_eq!(taken.errno(), Some(libc::EADDRINUSE), "{taken}");
}

#[test]
fn connects_from_the_pod_with_its_own_address() {
    if !may_run("connects_from_the_pod_with_its_own_address") {
        return;
    }
    let pair = Pair::new();
    for (to, from) in [(PEER, POD), (PEER6, POD6)] {
        let listener = listen(&pair.peer, at(to, PORT), &ListenOptions::default()).unwrap();
        let socket = connector(&pair.pod, at(to, PORT), None, &ConnectOptions::default()).unwrap();
        assert_eq!(socket.mark().unwrap(), PROXY_MARK);
        assert!(socket.tcp_nodelay().unwrap());
        let mut client = connect(socket, at(to, PORT)).unwrap();
        let (mut server, peer) = accept(&listener);
        assert_eq!(peer.ip(), ip(from));
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        // Nothing redirected this.
        assert_eq!(original_destination(&server).unwrap(), at(to, PORT));
    }
    let _listener = listen(&pair.peer, at(PEER, PORT), &ListenOptions::default()).unwrap();
    let mapped = "[::ffff:10.99.0.2]:15001".parse().unwrap();
    assert!(
        connect(connector(&pair.pod, mapped, None, &ConnectOptions::default()).unwrap(), at(PEER, PORT)).is_ok(),
        "mapped means IPv4"
    );
}

#[test]
fn many_connections_share_a_source_port() {
    if !may_run("many_connections_share_a_source_port") {
        return;
    }
    let pair = Pair::new();
    // With two ephemeral ports, four connections to two destinations fit only if ports are chosen per destination.
    links::set_sysctl(&pair.pod, "net.ipv4.ip_local_port_range", "40000 40001").unwrap();
    let mut open = Vec::new();
    for port in [7001, 7002] {
        let listener = listen(&pair.peer, at(PEER, port), &ListenOptions::default()).unwrap();
        for _ in 0..2 {
            let socket = connector(&pair.pod, at(PEER, port), Some(at(POD, 0)), &ConnectOptions::default()).unwrap();
            open.push(connect(socket, at(PEER, port)).unwrap());
        }
        open.push(accept(&listener).0);
    }
}

#[test]
fn asking_a_datagram_socket_for_its_original_destination_fails() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let fd: OwnedFd = socket.into();
    // Not connected: the local address is all there is, and that is what is returned for untracked sockets.
    assert!(original_destination(&fd).is_ok_and(|a| a.ip() == ip("127.0.0.1")) || original_destination(&fd).is_err());
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(original_destination(&unix).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Whether a connection whose handshake was not over when its listener closed is one of the next listener.
fn survives_a_change_of_listeners(pod: &NetworkNamespace) -> bool {
    let here = SocketAddr::from(([127, 0, 0, 1], PORT));
    let first = listen(pod, here, &ListenOptions::default()).unwrap();
    // The listener takes no notice of the handshake's last packet, as if it were late, until there are data.
    set_option(&first.socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 30).unwrap();
    let mut client = pod.run(|| TcpStream::connect(here)).unwrap().unwrap();
    let next = listen(pod, here, &ListenOptions::default()).unwrap();
    drop(first);
    let _ = client.write_all(b"x");
    client.set_nonblocking(true).unwrap();
    for _ in 0..2000 {
        if next.socket.accept().is_ok() {
            return true;
        }
        match client.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(10)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return false,
            other => panic!("{other:?}"),
        }
    }
    panic!("neither taken nor reset");
}

#[test]
fn a_handshake_that_is_not_over_goes_on_with_the_next_listener() {
    if !may_run("a_handshake_that_is_not_over_goes_on_with_the_next_listener") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    if !pod.run(|| std::path::Path::new(MIGRATE).exists()).unwrap() {
        return;
    }
    assert!(!survives_a_change_of_listeners(&pod), "this is what the kernel does by itself");
    hand_on_what_waits(&pod);
    assert!(survives_a_change_of_listeners(&pod));
}

#[test]
fn what_a_tunnel_loses_is_repeated_often() {
    if !may_run("what_a_tunnel_loses_is_repeated_often") {
        return;
    }
    let pair = Pair::new();
    let tunnels = ListenOptions { probes: Probes::Tunnel, ..ListenOptions::default() };
    let longest = |fd: &dyn AsFd| {
        let fd = fd.as_fd();
        get_option::<4>(&fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS).map(i32::from_ne_bytes)
    };
    let listener = listen(&pair.pod, at(POD, PORT), &tunnels).unwrap();
    if longest(&listener.socket).is_err() {
        skip("what_a_tunnel_loses_is_repeated_often", "needs Linux 6.15");
        return;
    }
    for probes in [Probes::Tunnel, Probes::Slow] {
        let options = ConnectOptions { probes, ..ConnectOptions::default() };
        let stream = connect(connector(&pair.peer, at(POD, PORT), None, &options).unwrap(), at(POD, PORT)).unwrap();
        let (accepted, _) = accept(&listener);
        assert_eq!(longest(&accepted).unwrap(), LONGEST_PAUSE_MS);
        assert_eq!(longest(&stream).unwrap() == LONGEST_PAUSE_MS, probes == Probes::Tunnel);
    }
}
