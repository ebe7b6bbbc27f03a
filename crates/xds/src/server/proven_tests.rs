use futures_util::FutureExt as _;

use super::*;

fn on_node(node: u32) -> Client {
    let node = Some(format!("node-{node}"));
    Client::of(&Caller { namespace: "a".into(), service_account: "proxy".into(), node, ..Caller::default() })
}

type Taken = (ProvenPlace, Arc<Notify>);

fn take(proven: &Arc<Proven>, node: u32) -> Result<Taken, Full> {
    let gave_way = Arc::new(Notify::new());
    Ok((proven.take(on_node(node), gave_way.clone())?, gave_way))
}

fn lost((_, gave_way): &Taken) -> bool {
    gave_way.notified().now_or_never().is_some()
}

#[test]
fn one_token_keeps_no_other_client_out() {
    let proven = Proven::new(64);
    let mut honest: Vec<_> = (1..=2).map(|_| take(&proven, 1).unwrap()).collect();
    let mut greedy: Vec<_> = (2..64).map(|_| take(&proven, 0).unwrap()).collect();
    assert!(matches!(take(&proven, 0), Err(Full)), "it takes from nobody");
    for node in 1..=20 {
        honest.extend((0..2).map(|_| take(&proven, node).expect("the greediest has more than its share")));
    }
    assert!(!honest.iter().any(lost));
    let lost: Vec<bool> = greedy.iter().map(lost).collect();
    assert_eq!(lost, (2..64).map(|number| number >= 24).collect::<Vec<_>>(), "those it took last");
    // A connection that gave way frees no place when it ends; one that still has its place does.
    greedy.truncate(22);
    assert!(matches!(take(&proven, 0), Err(Full)));
    drop(greedy.pop());
    assert!(take(&proven, 0).is_ok());
}

#[test]
fn where_nobody_has_more_than_a_share_who_comes_is_refused() {
    let proven = Proven::new(16);
    let places: Vec<_> = (0..16).map(|number| take(&proven, number / 8).unwrap()).collect();
    assert!(matches!(take(&proven, 9), Err(Full)));
    assert!(!places.iter().any(lost));
    drop(places);
    assert!(proven.taken.lock().clients.is_empty());
}

#[test]
fn clients_are_told_apart_by_node_or_else_by_pod() {
    let caller = Caller { namespace: "a".into(), service_account: "b".into(), ..Caller::default() };
    let node = Caller { node: Some("n".into()), pod_uid: Some("1".into()), ..caller.clone() };
    let pod = Caller { pod_uid: Some("1".into()), ..caller.clone() };
    assert_eq!(Client::of(&node), Client::of(&Caller { pod_uid: Some("2".into()), ..node.clone() }));
    assert_ne!(Client::of(&pod), Client::of(&Caller { pod_uid: Some("2".into()), ..pod.clone() }));
    // What a caller claims without proof does not identify it.
    assert_eq!(Client::of(&caller), Client::of(&Caller { cluster_id: "x".into(), ..caller.clone() }));
}

#[test]
fn a_connection_has_few_discovery_streams() {
    let place = take(&Proven::new(1), 0).unwrap().0;
    assert_eq!((0..10).filter(|_| place.begin_stream()).count(), STREAMS);
    place.end_stream();
    assert!(place.begin_stream() && !place.begin_stream());
}
