use super::*;

fn peer(number: u8) -> Source {
    Source::Address([10, 0, 0, number].into())
}

/// All that the source gets now, at most so many.
fn take(share: &Arc<Share>, source: &Source, most: usize) -> Vec<Sockets> {
    (0..most).map_while(|_| share.take(source.clone()).ok()).collect()
}

fn all(share: &Arc<Share>, source: &Source) -> Vec<Sockets> {
    take(share, source, usize::MAX)
}

fn refusal(share: &Arc<Share>, source: &Source) -> String {
    share.take(source.clone()).map(drop).unwrap_err().to_string()
}

#[test]
fn who_has_much_leaves_room_for_the_others() {
    let shares = Shares::of(400);
    let (greedy, second, third) =
        (shares.join("a/b".into(), 0), shares.join("a/c".into(), 0), shares.join("a/d".into(), 0));
    let mut held = all(&greedy, &peer(1));
    assert_eq!(held.len(), 300, "alone, it may have what there is plenty of");
    let refused = refusal(&greedy, &peer(1));
    assert!(refused.contains("pod a/b") && refused.contains("300"), "{refused}");
    let others = [all(&second, &peer(1)), all(&third, &peer(2))];
    assert_eq!(others.each_ref().map(Vec::len), [100, 100], "a third each");
    held.truncate(50);
    assert!(greedy.take(peer(1)).is_ok());
    drop((others, second, third));
    assert_eq!(shares.pods.load(Relaxed), 1);
}

#[test]
fn a_limit_of_its_own_holds_while_there_is_plenty() {
    let shares = Shares::of(400);
    let pod = shares.join("a/b".into(), 8);
    let mut held = [peer(1), peer(2), Source::Own].map(|source| take(&pod, &source, 3));
    assert_eq!(held.each_ref().map(Vec::len), [3, 3, 2], "what two have of the limit leaves a place each");
    for full in [peer(4), Source::Own] {
        assert!(matches!(pod.take(full), Err(Failure::TooManySockets { most: 8, .. })));
    }
    held[0].pop();
    assert!(matches!(pod.take(peer(4)), Err(Failure::RestIsKept { taken: 7, .. })), "the last is not for strangers");
    assert!(pod.take(Source::Own).is_ok());
}

#[test]
fn who_takes_a_pods_share_leaves_room_for_the_pods_other_peers() {
    // Of all there is, and of a limit of the pod's own.
    for (descriptors, most) in [(400, 0), (4000, 400)] {
        let shares = Shares::of(descriptors);
        let pod = shares.join("a/b".into(), most);
        let greedy = all(&pod, &peer(1));
        assert_eq!(greedy.len(), 300);
        let mut others = Vec::new();
        for (number, other) in [peer(2), peer(3), Source::Own].into_iter().enumerate() {
            let got = take(&pod, &other, 20);
            assert_eq!(got.len(), 20, "number {number} of {most}");
            others.push((other, got));
        }
        let refused = refusal(&pod, &peer(1));
        for part in ["10.0.0.1 has 300 of the sockets of pod a/b", "its share of them, 50"] {
            assert!(refused.contains(part), "{refused}");
        }
        drop(greedy);
        assert_eq!(take(&pod, &peer(1), 80).len(), 80, "there is plenty again");
    }
}

#[test]
fn a_source_that_has_given_all_back_is_forgotten() {
    let shares = Shares::of(400);
    let pod = shares.join("a/b".into(), 0);
    let mut held = all(&pod, &Source::Own);
    held[0].count_another();
    assert_eq!((shares.taken.load(Relaxed), pod.taken.lock().all), (301, 301));
    drop(held);
    assert_eq!((shares.taken.load(Relaxed), pod.taken.lock().all), (0, 0));
    let taken = pod.taken.lock();
    assert!(taken.sources.is_empty() && taken.parties.is_empty());
    assert_eq!((taken.of_kind, taken.beyond), ([0; KINDS], 0));
}

/// One of the many addresses of a network.
fn of_network(network: u16, host: u16) -> Source {
    Source::Address([0x2001, 0xdb8, 0, network, 0, 0, 0, host].into())
}

/// What is to be divided: of the process's descriptors, and of a limit of the pod's own.
const DIVIDED: [(usize, usize); 2] = [(400, 0), (4000, 400)];

#[test]
fn who_has_a_network_of_addresses_has_one_hosts_share() {
    for (descriptors, most) in DIVIDED {
        let shares = Shares::of(descriptors);
        let pod = shares.join("a/b".into(), most);
        let mut honest = take(&pod, &peer(1), 2);
        let flood: Vec<_> = (0..2000).filter_map(|host| pod.take(of_network(1, host)).ok()).collect();
        assert_eq!(flood.len(), 298, "what there is plenty of");
        let refused = refusal(&pod, &of_network(1, 3000));
        assert!(refused.contains("the network 2001:db8:0:1::/64 has 298"), "{refused}");
        honest.extend(take(&pod, &peer(1), 10));
        assert_eq!(honest.len(), 12, "who was there before goes on");
        for newcomer in [peer(2), of_network(2, 1), Source::Own] {
            assert_eq!(take(&pod, &newcomer, 10).len(), 10, "{newcomer} of {most}");
        }
    }
}

#[test]
fn a_neighbour_of_one_that_has_much_is_let_in() {
    for (descriptors, most) in DIVIDED {
        let shares = Shares::of(descriptors);
        let pod = shares.join("a/b".into(), most);
        let greedy = take(&pod, &of_network(1, 1), 298);
        assert_eq!(greedy.len(), 298);
        let another_nodes = take(&pod, &of_network(2, 1), 20);
        assert_eq!(another_nodes.len(), 20);
        let neighbours = take(&pod, &of_network(1, 2), 10);
        assert_eq!(neighbours.len(), 10, "of the same network, but it has little");
        assert!(pod.take(of_network(1, 1)).is_err());
        drop(neighbours);
        assert_eq!(pod.taken.lock().beyond, 0);
    }
}

#[test]
fn strangers_without_number_leave_room_for_the_pods_programs_and_proven_peers() {
    for (descriptors, most) in DIVIDED {
        let shares = Shares::of(descriptors);
        let pod = shares.join("a/b".into(), most);
        let flood: Vec<_> = (0..2000).filter_map(|network| pod.take(of_network(network, 1)).ok()).collect();
        assert_eq!(flood.len(), 350, "half of the last quarter is not for them");
        let refused = refusal(&pod, &peer(1));
        assert!(refused.contains("what is left is kept for its own programs"), "{refused}");
        assert_eq!(take(&pod, &Source::Own, 10).len(), 10);
        let mut tunnels = take(&pod, &Source::Unproven([10, 0, 0, 9].into()), 1);
        tunnels[0].give_to(Source::Peer(Identity::new("cluster.local", "a", "b").unwrap())).unwrap();
        let proven = Source::Peer(Identity::new("cluster.local", "a", "b").unwrap());
        assert_eq!(take(&pod, &proven, 10).len(), 10);
    }
}

#[test]
fn who_is_refused_the_share_of_an_identity_keeps_what_there_was() {
    let shares = Shares::of(4000);
    let pod = shares.join("a/b".into(), 8);
    let proven = Source::Peer(Identity::new("cluster.local", "a", "b").unwrap());
    let greedy = all(&pod, &proven);
    assert_eq!(greedy.len(), 6);
    let mut tunnel = pod.take(Source::Unproven([10, 0, 0, 9].into())).unwrap();
    assert!(tunnel.give_to(proven.clone()).is_err());
    assert_eq!((pod.taken.lock().all, shares.taken.load(Relaxed)), (7, 7));
    drop((tunnel, greedy));
    assert_eq!((pod.taken.lock().of_kind, shares.taken.load(Relaxed)), ([0; KINDS], 0));
}
