use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;

use super::*;
use crate::sockets::{ListenOptions, Listener, listen, listen_wildcard};
use crate::test_support::may_run;

fn inode(listener: &Listener) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::File::from(listener.socket.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().ino()
}

#[test]
fn another_listener_shows_on_every_port_or_not_at_all() {
    if !may_run("another_listener_shows_on_every_port_or_not_at_all") {
        return;
    }
    let pod = NetworkNamespace::create().unwrap();
    let options = ListenOptions { mark: None, transparent: false, ..ListenOptions::default() };
    let open = |port| listen_wildcard(&pod, port, &options).unwrap();
    let own = [open(15001), open(15008)];
    let inodes: BTreeSet<u64> = own.iter().map(inode).collect();
    let ports = BTreeSet::from([15001, 15008]);
    let others = || others_listen(&pod, &ports, &inodes).unwrap();
    assert!(!others());
    let _first = listen(&pod, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 15001)), &options).unwrap();
    assert!(!others(), "it has not opened all of them yet");
    let second = open(15008);
    assert!(others());
    drop(second);
    assert!(!others());
}
