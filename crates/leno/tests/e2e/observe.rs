//! `leno observe` on a stage: who talks to whom, as both nodes' proxies report it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::clear::{CANARY, Watch};
use crate::stage::{Stage, eventually, run, skip, ztunnel};
use crate::topology::{self, ECHO};

const NEEDS: &[&str] = &["socat"];

const ONLY_NEAR: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-near, namespace: mesh}
spec:
  selector: {matchLabels: {app: echo}}
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/mesh/sa/near]}}]
";

/// The output of `leno observe -o json`.
#[track_caller]
fn observed(stage: &Stage, args: &[&str]) -> Value {
    let ran = run(stage.command("observe").args(["-o", "json"]).args(args)).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Waits until a connection is shown that satisfies `check`.
#[track_caller]
fn sees(stage: &Stage, args: &[&str], what: &str, check: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || {
        let all = observed(stage, args);
        let found = all["connections"].as_array().unwrap().iter().find(|connection| check(connection));
        found.cloned().ok_or_else(|| format!("{all:#}"))
    })
}

fn echo(stage: &Stage, client: &str, server: &str) -> bool {
    says(stage, client, server, "hi")
}

fn says(stage: &Stage, client: &str, server: &str, word: &str) -> bool {
    stage.sh(client, &format!("echo {word} | socat -t 5 - TCP:{server}:7000")).stdout.trim() == word
}

/// A program's connection that stays open. The program prints what the server sends back.
struct Held {
    program: Child,
}

impl Held {
    #[track_caller]
    fn open(stage: &Stage, client: &str, server: &str) -> Self {
        let mut program = stage.spawn(client, &["socat", "-", &format!("TCP:{server}:7000")]);
        program.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "hello\n");
        Self { program }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn who_talks_to_whom_is_shown_with_names_identities_encryption_and_verdict() {
    if skip("who_talks_to_whom_is_shown_with_names_identities_encryption_and_verdict", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let _held = Held::open(&stage, "mesh/far", "echo.mesh");
    let open = sees(&stage, &["--from", "mesh/far"], "the open connection", |c| {
        c["state"] == "open" && c["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
    });
    assert_eq!(open["reporter"], "both", "two proxies, one row: {open:#}");
    assert_eq!((open["source"]["pod"].as_str(), open["destination"]["pod"].as_str()), (Some("far"), Some("echo")));
    assert_eq!(open["source"]["identity"], "spiffe://cluster.local/ns/mesh/sa/far");
    assert_eq!(open["destination"]["identity"], "spiffe://cluster.local/ns/mesh/sa/echo");
    assert_eq!((open["service"].as_str(), open["port"].as_u64()), (Some("echo.mesh.svc.cluster.local"), Some(7000)));
    assert_eq!((open["encrypted"].as_bool(), open["why"].as_str()), (Some(true), Some("mutual TLS")));
    assert_eq!((open["bytes_sent"].as_u64(), open["bytes_received"].as_u64()), (Some(6), Some(6)), "{open:#}");

    assert!(echo(&stage, "plain/outsider", "echo.mesh"));
    let plain = sees(&stage, &["--from", "plain/outsider"], "one from outside", |c| c["bytes_sent"] == 3);
    assert_eq!((plain["state"].as_str(), plain["encrypted"].as_bool()), (Some("ended"), Some(false)));
    assert_eq!(plain["why"], "the source is not in the mesh");
    assert_eq!(plain["service"], "echo.mesh.svc.cluster.local");

    assert!(echo(&stage, "mesh/far", "echo.plain"));
    let out = sees(&stage, &["--to", "plain/echo"], "one to outside", |c| c["source"]["pod"] == "far");
    assert_eq!((out["encrypted"].as_bool(), out["reporter"].as_str()), (Some(false), Some("source")));
    assert_eq!(out["why"], "the destination is not in the mesh");

    stage.write("policy.yaml", ONLY_NEAR);
    eventually("far is turned away", || {
        if echo(&stage, "mesh/far", "echo.mesh") { Err("not yet".to_owned()) } else { Ok(()) }
    });
    // The policy may have cut the connection before this one, which was under way when the policy came.
    assert!(!echo(&stage, "mesh/far", "echo.mesh"));
    // The open connection is cut and a new one is refused. Both name the policy.
    for (what, words) in
        [("the cut", "closed after a policy change: not"), ("the refusal", "not allowed: no ALLOW policy")]
    {
        let denied = sees(&stage, &["--verdict", "denied"], what, |c| {
            c["reason"].as_str().is_some_and(|reason| reason.starts_with(words))
        });
        assert_eq!((denied["policy"].as_str(), denied["state"].as_str()), (Some("mesh/only-near"), Some("ended")));
        assert_eq!(denied["source"]["identity"], "spiffe://cluster.local/ns/mesh/sa/far");
    }
    assert!(echo(&stage, "mesh/near", "echo.mesh"));
    let allowed = sees(&stage, &["--from", "mesh/near", "--verdict", "allowed"], "one that may", |c| {
        c["policy"] == "mesh/only-near"
    });
    assert_eq!(allowed["nodes"], serde_json::json!(["node-2"]));
    let text = run(stage.command("observe").args(["--verdict", "denied"])).ok().stdout;
    assert!(text.contains("mesh/far (sa/far)") && text.contains("denied: not allowed"), "{text}");
    let nothing = run(stage.command("observe").args(["--namespace", "nowhere"])).ok();
    assert_eq!(nothing.stdout, "no connections\n");
}

#[test]
fn a_denied_connection_in_the_clear_names_its_service_in_log_metrics_and_stream() {
    if skip("a_denied_connection_in_the_clear_names_its_service_in_log_metrics_and_stream", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    stage.write("policy.yaml", ONLY_NEAR);
    eventually("the outsider is turned away", || {
        if echo(&stage, "plain/outsider", "echo.mesh") { Err("not yet".to_owned()) } else { Ok(()) }
    });
    // The policy may have cut the connection before this one, which was under way when the policy came. That one is denied, too,
    // but it had been opened, and only connections that never were count as failed.
    assert!(!echo(&stage, "plain/outsider", "echo.mesh"));
    let denied = sees(&stage, &["--verdict", "denied"], "the denial", |c| {
        c["source"]["pod"] == "outsider" && c["reason"].as_str().is_some_and(|reason| reason.starts_with("not allowed"))
    });
    assert_eq!(
        (denied["service"].as_str(), denied["port"].as_u64()),
        (Some("echo.mesh.svc.cluster.local"), Some(7000))
    );
    assert_eq!(denied["encrypted"], false);
    let is_denial = |line: &&str| line.contains("src.workload=\"outsider\"") && line.contains("error=\"not allowed");
    let log = stage.told(&["logs", "--node", "node-2"], |log| log.lines().any(|line| is_denial(&line)));
    let line = log.lines().find(is_denial).unwrap();
    assert!(line.contains("dst.service=\"echo.mesh.svc.cluster.local\""), "{line}");
    eventually("the denial among the metrics", || {
        let metrics = stage.node_get("node-2", 15020, "/metrics");
        let is_counted = |line: &str| {
            line.starts_with("istio_tcp_connections_failed_total")
                && line.contains("destination_service_name=\"echo\"")
                && line.contains("source_workload=\"outsider\"")
                && line.contains("response_flags=\"DENY\"")
        };
        if metrics.lines().any(is_counted) { Ok(()) } else { Err(metrics) }
    });
}

#[test]
fn following_shows_what_lasts_and_what_ends_also_after_a_proxy_was_replaced() {
    if skip("following_shows_what_lasts_and_what_ends_also_after_a_proxy_was_replaced", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let watch = Watch::begin(&stage, "echo.plain:7000");
    let before = Held::open(&stage, "mesh/near", "echo.mesh");
    let mut following = stage.command("observe");
    following.args(["-f", "-o", "json", "--to", "mesh/echo"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut following = following.spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let mut next = |what: &str, check: &dyn Fn(&Value) -> bool| {
        for line in &mut lines {
            let connection: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if check(&connection) {
                return connection;
            }
        }
        panic!("the stream ended before {what}");
    };
    let from =
        |pod: &'static str, state: &'static str| move |c: &Value| c["source"]["pod"] == pod && c["state"] == state;
    next("what was open before", &from("near", "open"));
    let held = Held::open(&stage, "mesh/far", "echo.mesh");
    next("what lasts", &from("far", "open"));
    drop(held);
    let ended = next("its end", &from("far", "ended"));
    assert_eq!((ended["reporter"].as_str(), ended["bytes_received"].as_u64()), (Some("both"), Some(6)), "{ended:#}");
    drop(before);
    next("the end of what was open before", &from("near", "ended"));

    let pid = stage.wait("the proxy of node-2", |ps| {
        ps["nodes"].as_array()?.iter().find(|node| node["name"] == "node-2")?["pid"].as_i64()
    });
    // Some come while the proxy dies.
    let asking = "for i in 1 2 3 4 5 6 7 8; do echo CANARY | socat -t 2 - TCP:echo.mesh:7000; done; true"
        .replace("CANARY", CANARY);
    let mut asking = stage.spawn("mesh/near", &["sh", "-c", &asking]);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGKILL).unwrap();
    stage.wait("the next proxy", |ps| {
        let node = ps["nodes"].as_array()?.iter().find(|node| node["name"] == "node-2")?.clone();
        (node["ready"] == true && node["pid"].as_i64()? != pid).then_some(())
    });
    eventually("a connection through the next proxy", || {
        if says(&stage, "mesh/far", "echo.mesh", CANARY) { Ok(()) } else { Err("not yet".to_owned()) }
    });
    // The next proxy reports its connections once it is asked.
    let told = (0..100).any(|_| {
        let _held = Held::open(&stage, "mesh/far", "echo.mesh");
        let open = next("what lasts through the next proxy", &from("far", "open"));
        open["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(|node| node == "node-2"))
    });
    assert!(told, "the next proxy is not heard");
    // A follower that ends leaves no resources behind.
    following.kill().unwrap();
    following.wait().unwrap();
    asking.wait().unwrap();
    watch.end(&stage);
}

#[test]
fn the_map_shows_pairs_with_rates() {
    if skip("the_map_shows_pairs_with_rates", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let _held = Held::open(&stage, "mesh/near", "echo.mesh");
    // Traffic goes on until the map has been taken.
    let busy = "while :; do echo hi | socat -t 5 - TCP:echo.mesh:7000 > /dev/null; done";
    let mut busy = stage.spawn("mesh/far", &["sh", "-c", busy]);
    let map = eventually("both pairs on the map", || {
        let map = observed(&stage, &["--map", "--window", "2"]);
        let pair = |source: &str| {
            let pairs = map["pairs"].as_array().unwrap();
            pairs.iter().find(|pair| pair["source"] == source && pair["destination"] == "mesh/echo").cloned()
        };
        match (pair("mesh/far"), pair("mesh/near")) {
            (Some(far), Some(near)) if far["connections_per_second"].as_f64() > Some(0.0) => Ok([far, near]),
            _ => Err(format!("{map:#}")),
        }
    });
    let [far, near] = map;
    assert_eq!((far["encrypted"].as_bool(), far["denied"].as_u64()), (Some(true), Some(0)), "{far:#}");
    assert!(far["sent_per_second"].as_f64() > Some(0.0), "{far:#}");
    assert_eq!((near["open"].as_u64(), near["connections_per_second"].as_f64()), (Some(1), Some(0.0)), "{near:#}");
    let text = run(stage.command("observe").args(["--map", "--window", "1"])).ok().stdout;
    assert!(text.contains("mesh/far") && text.contains("CONN/S"), "{text}");
    let _ = busy.kill();
    let _ = busy.wait();
}

#[test]
fn a_ztunnel_tells_nothing_and_that_is_said() {
    let test = "a_ztunnel_tells_nothing_and_that_is_said";
    if skip(test, NEEDS) {
        return;
    }
    let Some(ztunnel) = ztunnel(test) else { return };
    let proxy = format!("node-2={}", ztunnel.display());
    let stage = topology::up(&[ECHO], &["--node-proxy", &proxy]);
    assert!(echo(&stage, "mesh/far", "echo.mesh"));
    let seen = sees(&stage, &[], "the source's word", |c| c["source"]["pod"] == "far" && c["bytes_sent"] == 3);
    assert_eq!((seen["reporter"].as_str(), seen["encrypted"].as_bool()), (Some("source"), Some(true)));
    let all = observed(&stage, &[]);
    assert_eq!((all["nodes"][0]["tells"].as_bool(), all["nodes"][1]["tells"].as_bool()), (Some(true), Some(false)));
    let said = run(&mut stage.command("observe")).ok().stderr;
    assert!(said.contains("node-2: its proxy has no stream of connections"), "{said}");
    let alone = run(stage.command("observe").args(["--node", "node-2"]));
    assert_eq!(alone.code, 1, "there is nothing to show: {alone:?}");
}
