use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::links;
use crate::sockets::{ConnectOptions, ListenOptions, connector, listen_wildcard};
use crate::test_support::{POD, Pair, at, may_run};

const PORT: u16 = 15008;

fn named(socket: &impl AsFd) -> String {
    String::from_utf8(in_use(socket).unwrap()).unwrap()
}

/// Two namespaces with BBR as their own; `None` where the kernel has none.
fn with_bbr() -> Option<Pair> {
    let pair = Pair::new();
    for namespace in [&pair.pod, &pair.peer] {
        links::set_sysctl(namespace, "net.ipv4.tcp_congestion_control", "bbr").ok()?;
    }
    Some(pair)
}

#[test]
fn leaves_alone_what_does_not_pace() {
    if !may_run("leaves_alone_what_does_not_pace") {
        return;
    }
    let pair = Pair::new();
    links::set_sysctl(&pair.pod, "net.ipv4.tcp_congestion_control", "reno").unwrap();
    let path = ShortPath::of(&pair.pod).unwrap();
    let listener = listen_wildcard(&pair.pod, PORT, &ListenOptions { path, ..ListenOptions::default() }).unwrap();
    assert_eq!(named(&listener.socket), "reno");
}

#[test]
fn a_short_path_is_not_paced_and_a_long_one_is() {
    if !may_run("a_short_path_is_not_paced_and_a_long_one_is") {
        return;
    }
    let Some(pair) = with_bbr() else {
        leno_testkit::skips::skip("a_short_path_is_not_paced_and_a_long_one_is", "this kernel has no BBR");
        return;
    };
    let (here, there) = (ShortPath::of(&pair.peer).unwrap(), ShortPath::of(&pair.pod).unwrap());
    let options = ListenOptions { path: there.clone(), ..ListenOptions::default() };
    let listener = listen_wildcard(&pair.pod, PORT, &options).unwrap();
    listener.socket.set_nonblocking(false).unwrap();
    let options = ConnectOptions { path: here.clone(), ..ConnectOptions::default() };
    let socket = connector(&pair.peer, at(POD, PORT), None, &options).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.connect(&at(POD, PORT).into()).unwrap();
    let (client, server): (TcpStream, _) = (socket.into(), listener.socket.accept().unwrap().0);

    // Not by `verify`: on a busy machine this handshake, too, may take a long path's time.
    here.settle(&client, LONG / 2).unwrap();
    there.settle(&server, LONG / 2).unwrap();
    assert_ne!(named(&client), "bbr");
    assert_ne!(named(&server), "bbr");

    // Both ends take a path as long for a long one: what each of them measured is put in the kernel's place.
    for (end, path) in [(&client, &here), (&server, &there)] {
        path.settle(end, LONG).unwrap();
        assert_eq!(named(end), "bbr");
    }
    // The connection works on after the change.
    (&client).write_all(b"ping").unwrap();
    let mut got = [0; 4];
    (&server).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");

    // What nobody told of a short path keeps the namespace's own.
    let plain = connector(&pair.peer, at(POD, PORT), None, &ConnectOptions::default()).unwrap();
    assert_eq!(named(&plain), "bbr");
}

#[test]
fn the_kernel_tells_a_connections_round_trip() {
    if !may_run("the_kernel_tells_a_connections_round_trip") {
        return;
    }
    let pair = Pair::new();
    let listener = listen_wildcard(&pair.pod, PORT, &ListenOptions::default()).unwrap();
    listener.socket.set_nonblocking(false).unwrap();
    let client = pair.peer.run(|| TcpStream::connect(at(POD, PORT)).unwrap()).unwrap();
    let (server, _) = listener.socket.accept().unwrap();
    for end in [&client, &server] {
        let measured = round_trip(end).unwrap();
        // Usually some 50 µs; a second more if the first packet met a link that was just coming up.
        assert!(!measured.is_zero() && measured < Duration::from_secs(5), "{measured:?}");
        ShortPath::of(&pair.pod).unwrap().verify(end).unwrap();
    }
}
