use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::test_support::may_run;

#[test]
fn an_answer_is_understood() {
    // From a 6.18 kernel: family, state, timer, retransmissions; ports and addresses in network order; more.
    let mut v4 = [0_u8; 72];
    (v4[0], v4[1]) = (2, 1);
    v4[4..8].copy_from_slice(&[0x1f, 0x90, 0xc3, 0x50]);
    v4[8..12].copy_from_slice(&[10, 99, 0, 1]);
    v4[24..28].copy_from_slice(&[10, 99, 0, 2]);
    let expected = Connection { local: "10.99.0.1:8080".parse().unwrap(), remote: "10.99.0.2:50000".parse().unwrap() };
    assert_eq!(parse(&v4), Some(expected));
    let mut mapped = v4;
    mapped[0] = 10;
    for (at, last) in [(8, 1), (24, 2)] {
        mapped[at..at + 16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 0, last]);
    }
    assert_eq!(parse(&mapped), Some(expected));
    let mut v6 = mapped;
    for (at, last) in [(8, 1), (24, 2)] {
        v6[at..at + 16].copy_from_slice(&[0xfd, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    let expected = Connection { local: "[fd99::1]:8080".parse().unwrap(), remote: "[fd99::2]:50000".parse().unwrap() };
    assert_eq!(parse(&v6), Some(expected));
    for length in 0..ID_IN_MESSAGE + ID {
        assert_eq!(parse(&v6[..length]), None);
    }
}

#[test]
fn connections_are_listed_and_nothing_else() {
    if !may_run("connections_are_listed_and_nothing_else") {
        return;
    }
    let namespace = NetworkNamespace::create().unwrap();
    crate::links::set_up(&namespace, "lo").unwrap();
    for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let (local, remote, kept) = namespace
            .run(|| {
                let listener = TcpListener::bind(address).unwrap();
                let mut at = listener.local_addr().unwrap();
                if at.ip().is_unspecified() {
                    at.set_ip("127.0.0.1".parse().unwrap());
                }
                let client = TcpStream::connect(at).unwrap();
                // Not yet accepted is a connection as well.
                (client.local_addr().unwrap(), at, (client, listener))
            })
            .unwrap();
        let both = HashSet::from([Connection { local, remote }, Connection { local: remote, remote: local }]);
        assert_eq!(list(&namespace).unwrap(), both, "{address}");
        drop(kept);
        // A busy machine's kernel may get to the last packets a little later.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !list(&namespace).unwrap().is_empty() {
            assert!(Instant::now() < deadline, "{address}: {:?}", list(&namespace));
            std::thread::yield_now();
        }
    }
}
