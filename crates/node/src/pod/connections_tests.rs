use super::*;
use crate::shares::Shares;

#[test]
fn a_tunnel_takes_a_socket_of_the_pods_share_while_it_is_open() {
    let connections = Connections::new(Shares::of_this_process().join("a/b".into(), 2));
    let peer = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let _accepting = connections.accept_tunnels();
    let open = [1, 2].map(|port| connections.open_tunnel(peer(port), 10).unwrap_or_else(|e| panic!("{e}")));
    for full in [connections.open_tunnel(peer(3), 10).map(drop), connections.count().take_socket(Source::Own)] {
        assert!(matches!(full, Err(Failure::TooManySockets { most: 2, .. })), "{full:?}");
    }
    assert_eq!(connections.peers.lock().addresses[&peer(1).ip()], 2, "who is refused is not counted");
    drop(open);
    assert!(connections.peers.lock().addresses.is_empty());
    let first = connections.open_tunnel(peer(4), 1);
    let second = connections.open_tunnel(peer(5), 1).map(drop);
    assert!(first.is_ok() && matches!(second, Err(Failure::TooManyTunnels { most: 1, .. })), "{second:?}");
    assert!(connections.count().take_socket(Source::Own).is_ok(), "the peer's limit takes nothing of the share");
    drop(first);
    let [mut one, mut another] = [connections.count(), connections.count()];
    assert!(one.take_socket(Source::Own).is_ok() && another.take_socket(Source::Own).is_ok(), "given back");
}

#[test]
fn a_new_address_for_each_tunnel_does_not_help() {
    let connections = Connections::new(Shares::of_this_process().join("a/b".into(), 0));
    let address = |network: u16, host: u16| SocketAddr::from(([0x2001, 0xdb8, 0, network, 0, 0, 0, host], 1));
    let open = |network, host| connections.open_tunnel(address(network, host), 2);
    let held: Vec<_> = (1..=8).map(|host| open(1, host).unwrap_or_else(|e| panic!("{host}: {e}"))).collect();
    let refused = open(1, 9).map(drop).unwrap_err().to_string();
    assert!(refused.contains("network 2001:db8:0:1::/64 has 8 tunnels"), "{refused}");
    assert!(open(2, 1).is_ok(), "another network has its own");
    drop(held);
    let peers = connections.peers.lock();
    assert!(peers.addresses.is_empty() && peers.networks.is_empty());
}

#[test]
fn who_has_proved_who_they_are_has_that_identitys_share() {
    let connections = Connections::new(Shares::of_this_process().join("a/b".into(), 8));
    let peer = |host| SocketAddr::from(([10, 0, 0, host], 1));
    let identity = |account: &str| Identity::new("cluster.local", "a", account).unwrap();
    let tunnel = |host, account| {
        let mut tunnel = connections.open_tunnel(peer(host), 10)?;
        tunnel.proven(identity(account)).map(|()| tunnel)
    };
    // Each from another address: it is one identity nevertheless.
    let greedy: Vec<_> = (1..=6).map(|host| tunnel(host, "greedy").unwrap_or_else(|e| panic!("{host}: {e}"))).collect();
    let refused = tunnel(7, "greedy").map(drop).unwrap_err();
    assert!(matches!(&refused, Failure::TooManyOfSource { taken: 6, fair: 6, .. }), "{refused}");
    assert!(refused.to_string().contains("spiffe://cluster.local/ns/a/sa/greedy has 6"), "{refused}");
    let _modest = tunnel(8, "modest").unwrap_or_else(|e| panic!("{e}"));
    drop(greedy);
    assert!(tunnel(1, "greedy").is_ok());
}
