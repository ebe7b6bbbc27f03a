use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;

use super::*;
use crate::test_support::{PEER, PEER6, Pair, at, ip, may_run};

#[test]
fn occurrences_are_counted() {
    assert_eq!(occurrences(b"", b"x"), 0);
    assert_eq!(occurrences(b"abc", b""), 0);
    assert_eq!(occurrences(b"aaaa", b"aa"), 2);
    assert_eq!(occurrences(b"xabyabzab", b"ab"), 3);
    assert_eq!(occurrences(b"aab", b"ab"), 1);
    assert_eq!(occurrences(b"a", b"ab"), 0);
}

proptest! {
    #[test]
    fn parsing_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), version in prop_oneof![Just(0x45u8), Just(0x60u8), any::<u8>()]) {
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        tcp_segment(&bytes);
    }
}

#[test]
fn a_canary_on_the_wire_is_found() {
    if !may_run("a_canary_on_the_wire_is_found") {
        return;
    }
    const CANARY: &[u8] = b"leno-canary-7f3a";
    for (address, port) in [(PEER, 8080), (PEER6, 8080), (PEER, TUNNEL_PORT), (PEER6, TUNNEL_PORT)] {
        let pair = Pair::new();
        let listener = pair.peer.run(|| TcpListener::bind((ip(address), port)).unwrap()).unwrap();
        let sniffer = Sniffer::start(&pair.pod, Some("eth0"), CANARY).unwrap();
        let mut client = pair.pod.run(|| TcpStream::connect(at(address, port)).unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(CANARY).unwrap();
        server.read_exact(&mut [0; CANARY.len()]).unwrap();
        // Without the canary, then closed: these must not count as one.
        server.write_all(b"nothing to see").unwrap();
        client.read_exact(&mut [0; 14]).unwrap();
        let seen = sniffer.stop().unwrap();
        assert_eq!((seen.canaries, seen.dropped), (1, 0), "{address} {seen:?}");
        // Handshake of three, two data segments.
        if port == TUNNEL_PORT {
            assert!(seen.tunnel_packets >= 5 && seen.tunnel_bytes > 5 * 40, "{seen:?}");
            assert_eq!(seen.other_tcp_packets, 0, "{seen:?}");
        } else {
            assert!(seen.other_tcp_packets >= 5, "{seen:?}");
            assert_eq!((seen.tunnel_packets, seen.other_tcp_data_packets), (0, 2), "{seen:?}");
        }
    }
}

#[test]
fn another_interface_is_not_watched() {
    if !may_run("another_interface_is_not_watched") {
        return;
    }
    let pair = Pair::new();
    let sniffer = Sniffer::start(&pair.pod, Some("eth0"), b"loopback").unwrap();
    let everything = Sniffer::start(&pair.pod, None, b"loopback").unwrap();
    let listener = pair.pod.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut client = pair.pod.run(|| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
    client.write_all(b"loopback").unwrap();
    listener.accept().unwrap().0.read_exact(&mut [0; 8]).unwrap();
    assert_eq!(sniffer.stop().unwrap().canaries, 0);
    assert!(everything.stop().unwrap().canaries >= 1);
    assert_eq!(Sniffer::start(&pair.pod, Some("eth7"), b"x").unwrap_err().errno(), Some(libc::ENODEV));
}
