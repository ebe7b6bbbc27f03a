use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::*;
use crate::test_support::may_run;

/// Longer than the kernel needs to say no on the loopback interface.
const NO_ANSWER: Duration = Duration::from_millis(200);

/// Whether a connection is refused (`false`), or waits for somebody to take it.
fn waits(pod: &NetworkNamespace, address: &str, port: u16) -> bool {
    let to = SocketAddr::new(address.parse().unwrap(), port);
    match pod.run(|| TcpStream::connect_timeout(&to, NO_ANSWER)).unwrap() {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
        Err(error) if error.kind() == ErrorKind::TimedOut => true,
        other => panic!("{other:?}"),
    }
}

/// The same for a question.
fn question_waits(pod: &NetworkNamespace, address: &str, port: u16) -> bool {
    let socket = pod.run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
    socket.set_read_timeout(Some(NO_ANSWER)).unwrap();
    socket.connect((address, port)).unwrap();
    socket.send(b"?").unwrap();
    match socket.recv(&mut [0; 9]) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
        Err(error) if error.kind() == ErrorKind::WouldBlock => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_nobody_takes_waits_instead_of_being_refused() {
    if !may_run("what_nobody_takes_waits_instead_of_being_refused") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    assert!(!waits(&pod, "127.0.0.1", OUTBOUND_PORT) && !question_waits(&pod, "127.0.0.1", DNS_PORT));
    install(&pod).unwrap();
    install(&pod).unwrap();
    for address in ["127.0.0.1", "::1"] {
        for port in [OUTBOUND_PORT, INBOUND_PORT, TUNNEL_PORT, DNS_PORT] {
            assert!(waits(&pod, address, port), "{address} {port}");
        }
        assert!(question_waits(&pod, address, DNS_PORT), "{address}");
        // What is the pod's own is none of the mesh's business.
        assert!(!waits(&pod, address, 80) && !question_waits(&pod, address, 53), "{address}");
    }
    remove(&pod).unwrap();
    remove(&pod).unwrap();
    assert!(!waits(&pod, "127.0.0.1", OUTBOUND_PORT) && !question_waits(&pod, "127.0.0.1", DNS_PORT));
}

#[test]
fn what_waits_is_taken_by_who_listens_next() {
    if !may_run("what_waits_is_taken_by_who_listens_next") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    install(&pod).unwrap();
    let connecting = std::thread::spawn({
        let pod = pod.clone();
        move || pod.run(|| TcpStream::connect_timeout(&([127, 0, 0, 1], OUTBOUND_PORT).into(), Duration::from_secs(20)))
    });
    // The first SYN has been dropped by now, or the connection is made at once: nothing tells.
    std::thread::sleep(NO_ANSWER);
    let listener = pod.run(|| TcpListener::bind(("127.0.0.1", OUTBOUND_PORT))).unwrap().unwrap();
    listener.accept().unwrap();
    connecting.join().unwrap().unwrap().unwrap();
}

/// A connection that exists is reset as ever.
#[test]
fn resets_pass() {
    if !may_run("resets_pass") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    install(&pod).unwrap();
    let listener = pod.run(|| TcpListener::bind(("127.0.0.1", OUTBOUND_PORT))).unwrap().unwrap();
    let client = pod.run(|| TcpStream::connect(("127.0.0.1", OUTBOUND_PORT))).unwrap().unwrap();
    let (accepted, _) = listener.accept().unwrap();
    socket2::SockRef::from(&accepted).set_linger(Some(Duration::ZERO)).unwrap();
    drop(accepted);
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ended = std::io::Read::read(&mut &client, &mut [0]).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
}
