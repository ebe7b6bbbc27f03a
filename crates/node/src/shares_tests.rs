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
    assert!(matches!(pod.take(peer(4)), Err(Failure::TooManySockets { most: 8, .. })));
    held[0].pop();
    assert!(pod.take(peer(4)).is_ok());
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
        for part in ["10.0.0.1 has 300 of the sockets of pod a/b", "its share of them, 75"] {
            assert!(refused.contains(part), "{refused}");
        }
        // With three others it may go on once it has fewer than a quarter.
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
    assert!(pod.taken.lock().sources.is_empty());
}
