use leno_control::{Follower, Followers};
use serde_json::json;

use super::*;

fn page(connected: bool) -> String {
    page_with(connected, &[])
}

fn page_with(connected: bool, untold: &[&str]) -> String {
    json!({
        "node": "n1", "version": "0.1.0",
        "controlPlane": {"connected": connected, "reason": "refused: the token has ended"},
        "certificates": {"held": 3, "missing": 1, "firstEnds": "2026-11-26T19:00:00Z", "lastEnds": "2026-11-26T20:00:00Z"},
        "pods": 4, "pendingPods": 0, "untoldPods": untold, "connections": 12,
        "draining": [{"connections": 2, "until": null}, {"connections": 5, "until": null}],
    })
    .to_string()
}

fn follower(pod: &str, node: &str, in_sync: bool, refused: &[&str]) -> Follower {
    let refused = refused.iter().map(|why| (*why).to_owned()).collect();
    Follower { id: format!("ztunnel~10.0.0.1~{pod}.leno-system~x"), node: Some(node.to_owned()), in_sync, refused }
}

fn judged(connected: bool, followers: Vec<Follower>) -> Proxy {
    let mut proxy = Proxy::of(Ok(page(connected)));
    proxy.judge("n1", "leno-node-abc", &Ok(vec![Followers { proxies: followers }]));
    proxy
}

#[test]
fn a_row_tells_all_of_a_proxy() {
    let others = [follower("leno-node-old", "n1", false, &[]), follower("leno-node-xyz", "n2", false, &[])];
    let in_sync = judged(true, [&others[..], &[follower("leno-node-abc", "n1", true, &[])]].concat());
    let draining = in_sync.draining;
    let node = Node { in_mesh: 4, outside: 2, draining, proxy: in_sync, ..Node::default() };
    let nodes = BTreeMap::from([("n1".to_owned(), node)]);
    let troubles = vec!["the disk is full".to_owned()];
    let status = Status { of: json!({"stage": "x"}), components: None, nodes, troubles, waypoints: None };
    let text = text("stage x", &status);
    let (table, trouble) = text.rsplit_once("\n\n").unwrap();
    assert_eq!(trouble, "the disk is full");
    let row: Vec<_> =
        table.lines().last().unwrap().split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let expected =
        ["n1", "4", "0", "2", "yes", "0.1.0", "2026-11-26T19:00:00Z (1 missing)", "12", "2, with 7 connections"];
    assert_eq!(row, expected, "{text}");
    let json = serde_json::to_value(&status).unwrap();
    let proxy = &json["nodes"]["n1"]["proxy"];
    assert_eq!(
        (&proxy["in_sync"], &proxy["certificates"]["last_ends"]),
        (&json!(true), &json!("2026-11-26T20:00:00Z"))
    );
    assert_eq!((&json["nodes"]["n1"]["draining"], &proxy["draining_connections"]), (&json!(2), &json!(7)));
}

#[test]
fn what_is_wrong_with_a_proxy_is_told() {
    let behind = judged(true, vec![follower("leno-node-abc", "n1", false, &["policy x: no such action"])]);
    assert_eq!(behind.in_sync, Some(false));
    assert_eq!(behind.problem.as_deref(), Some("it has refused a part of the mesh: policy x: no such action"));
    let away = judged(false, Vec::new());
    assert_eq!(away.in_sync, Some(false));
    assert!(away.problem.as_ref().is_some_and(|why| why.contains("the token has ended")), "{away:?}");
    let mut unknown = Proxy::of(Ok(page(true)));
    unknown.judge("n1", "x", &Err("no control plane of Leno's runs".to_owned()));
    assert_eq!(unknown.in_sync, None);
    let node = Node { proxy: unknown, ..Node::default() };
    assert_eq!(row("n1", &node)[4], "?");
    let strangers = Proxy::of(Ok(page_with(true, &["shop/web-2"])));
    assert!(strangers.problem.as_ref().is_some_and(|why| why.contains("not been told of shop/web-2")), "{strangers:?}");
    let silent = Proxy::of(Err(anyhow::anyhow!("nobody listens")));
    assert_eq!(silent.problem.as_deref(), Some("nobody listens"));
}
