//! Who may talk to whom, decided on arrival and again when policies change.

use std::io::{BufRead, BufReader};

use crate::stage::{Stage, eventually, run, skip};
use crate::topology::{self, ECHO};

const NEEDS: &[&str] = &["socat", "curl", "nsenter"];

const DENY_FAR: &str = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-far, namespace: mesh}
spec:
  selector: {matchLabels: {app: echo}}
  action: DENY
  rules:
  - from: [{source: {principals: [cluster.local/ns/mesh/sa/far]}}]
    to: [{operation: {ports: ['7000']}}]
";

fn echo_works(stage: &Stage, client: &str) -> bool {
    stage.sh(client, "echo hi | socat -t 5 - TCP:echo.mesh:7000").stdout == "hi\n"
}

#[track_caller]
fn becomes(stage: &Stage, client: &str, works: bool) {
    eventually(&format!("{client} works: {works}"), || {
        if echo_works(stage, client) == works { Ok(()) } else { Err("not yet".to_owned()) }
    });
}

#[test]
fn a_deny_policy_refuses_one_caller_and_says_why_everywhere_in_the_same_words() {
    if skip("a_deny_policy_refuses_one_caller_and_says_why_everywhere_in_the_same_words", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    assert!(echo_works(&stage, "mesh/far") && echo_works(&stage, "mesh/near"));
    stage.write("deny.yaml", DENY_FAR);
    becomes(&stage, "mesh/far", false);
    // The connection before this one may have been open when the policy came, and was cut. This one is refused.
    assert!(!echo_works(&stage, "mesh/far"));
    assert!(echo_works(&stage, "mesh/near"), "the policy is about far");
    assert!(echo_works(&stage, "plain/outsider"), "the policy is about far");

    let is_denied = |line: &&str| line.contains("mesh/no-far") && line.contains("sa/far");
    let log = stage.told(&["logs", "--node", "node-2"], |log| log.lines().any(|line| is_denied(&line)));
    let denied = log.lines().find(is_denied).unwrap();
    let explained = run(stage.command("explain").args(["mesh/far", "mesh/echo:7000", "-o", "json"])).stdout;
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    let reason = find_reason(&explained).unwrap_or_else(|| panic!("no reason in {explained:#}"));
    assert!(denied.contains(&reason), "explain says {reason:?}, the access log {denied}");
    eventually("the denial among the metrics", || {
        let metrics = stage.node_get("node-2", 15020, "/metrics");
        let is_counted = |line: &str| {
            line.starts_with("istio_tcp_connections_failed_total") && line.contains("response_flags=\"DENY\"")
        };
        if metrics.lines().any(is_counted) { Ok(()) } else { Err(metrics) }
    });

    stage.remove("deny.yaml");
    becomes(&stage, "mesh/far", true);
}

/// The first string, anywhere in the answer, that names the policy.
fn find_reason(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(s) if s.contains("mesh/no-far") && s.contains("den") => Some(s.clone()),
        serde_json::Value::Array(values) => values.iter().find_map(find_reason),
        serde_json::Value::Object(map) => {
            map.get("reason").and_then(find_reason).or_else(|| map.values().find_map(find_reason))
        }
        _ => None,
    }
}

#[test]
fn an_allow_policy_refuses_everyone_it_does_not_name() {
    if skip("an_allow_policy_refuses_everyone_it_does_not_name", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    stage.write(
        "allow.yaml",
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-near, namespace: mesh}
spec:
  action: ALLOW
  rules:
  - from: [{source: {serviceAccounts: [near]}}]
",
    );
    becomes(&stage, "mesh/far", false);
    becomes(&stage, "plain/outsider", false);
    assert!(echo_works(&stage, "mesh/near"));
    stage.write(
        "allow.yaml",
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-near, namespace: mesh, annotations: {istio.io/dry-run: 'true'}}
spec:
  action: ALLOW
  rules:
  - from: [{source: {serviceAccounts: [near]}}]
",
    );
    becomes(&stage, "mesh/far", true);
}

#[test]
fn strict_mtls_refuses_plaintext_but_not_the_probes() {
    if skip("strict_mtls_refuses_plaintext_but_not_the_probes", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    assert!(echo_works(&stage, "plain/outsider"));
    stage.write(
        "strict.yaml",
        "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: mesh}
spec: {mtls: {mode: STRICT}}
",
    );
    becomes(&stage, "plain/outsider", false);
    assert!(echo_works(&stage, "mesh/far") && echo_works(&stage, "mesh/near"));
    let explained = stage.explain("plain/outsider", "mesh/echo:7000");
    assert!(explained.to_lowercase().contains("mtls"), "{explained}");
    // A pod whose probes fail is taken out after three periods.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(stage.pod("mesh", "echo")["ready"], true);
}

#[test]
fn a_live_connection_is_closed_when_a_new_policy_denies_it() {
    if skip("a_live_connection_is_closed_when_a_new_policy_denies_it", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let hold = |client: &str| {
        // socat reports what it sees. It takes even a reset for the end of one direction, and lets the other go on for as
        // long as -t says.
        let mut child = stage.spawn(client, &["socat", "-d", "-d", "-t", "0.1", "-", "TCP:echo.mesh:7000"]);
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, b"one\n").unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "one\n");
        (child, stdin, out)
    };
    let (mut denied, _denied_in, mut denied_out) = hold("mesh/far");
    let (mut kept, mut kept_in, mut kept_out) = hold("mesh/near");
    stage.write("deny.yaml", DENY_FAR);
    let mut rest = String::new();
    // The exchange ends only because the connection was cut, and must not look like a complete answer.
    let _ = std::io::Read::read_to_string(&mut denied_out, &mut rest);
    let mut seen = String::new();
    std::io::Read::read_to_string(denied.stderr.as_mut().unwrap(), &mut seen).unwrap();
    assert!(seen.contains("Connection reset by peer"), "{seen}");
    std::io::Write::write_all(&mut kept_in, b"two\n").unwrap();
    let mut line = String::new();
    kept_out.read_line(&mut line).unwrap();
    assert_eq!(line, "two\n");
    for child in [&mut denied, &mut kept] {
        let _ = child.kill();
        let _ = child.wait();
    }
}
