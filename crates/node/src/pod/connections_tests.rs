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
    assert_eq!(connections.peers.lock()[&peer(1).ip()], 2, "who is refused is not counted");
    drop(open);
    assert!(connections.peers.lock().is_empty());
    let first = connections.open_tunnel(peer(4), 1);
    let second = connections.open_tunnel(peer(5), 1).map(drop);
    assert!(first.is_ok() && matches!(second, Err(Failure::TooManyTunnels { most: 1, .. })), "{second:?}");
    assert!(connections.count().take_socket(Source::Own).is_ok(), "the peer's limit takes nothing of the share");
    drop(first);
    let [mut one, mut another] = [connections.count(), connections.count()];
    assert!(one.take_socket(Source::Own).is_ok() && another.take_socket(Source::Own).is_ok(), "given back");
}
