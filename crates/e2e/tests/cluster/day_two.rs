//! A user's commands against the cluster, and what each account may not do.

use std::process::Command;

use leno_e2e::{Namespace, Pod};
use leno_testkit::archive::unpacked;
use serde_json::Value;

use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::stand;

/// What `leno` prints; the cluster is named by a flag, because a stage may run on this machine.
fn leno(stand: &Stand, arguments: &[&str]) -> String {
    let kubeconfig = stand.cluster.kubectl().kubeconfig().to_str().unwrap().to_owned();
    let mut all = arguments.to_vec();
    all.extend(["--kubeconfig", &kubeconfig]);
    stand.leno.run(&all).unwrap()
}

fn json(stand: &Stand, arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.extend(["-o", "json"]);
    let answer: Value = serde_json::from_str(&leno(stand, &all)).unwrap();
    assert_eq!(answer["of"]["namespace"], SYSTEM, "{arguments:?} names what it is about");
    assert!(answer["of"]["cluster"].as_str().is_some_and(|server| server.starts_with("https://")));
    answer
}

pub(crate) fn commands_tell_how_things_are(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-day-two", &[AMBIENT]).unwrap();
    let (client, server) = (Pod::new("client", &here), Pod::new("server", &there));
    namespace.apply(&server.service("server", false)).unwrap();
    namespace.start(&[client, server]).unwrap();
    let ask = || namespace.ask("client", &["http://server:8080/".to_owned()]).unwrap()[0].outcome.is_ok();
    stand::comes_true("the client reaches the server", ask);

    let to = format!("{}/server", namespace.name());
    stand::comes_true("observe shows the encrypted connection", || {
        ask();
        let seen = json(stand, &["observe", "-n", namespace.name(), "--to", &to]);
        let connections = seen["connections"].as_array().unwrap();
        connections.iter().any(|one| one["encrypted"] == true && one["source"]["pod"] == "client")
    });
    let map = leno(stand, &["observe", "--map", "-n", namespace.name(), "--window", "1"]);
    assert!(map.contains("SOURCE") || map.contains("no connections"), "{map}");

    let config = json(stand, &["config", "workloads"]);
    let nodes = config["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), stand.cluster.nodes().len());
    for node in nodes {
        let workloads = node["workloads"].as_array().unwrap();
        let known =
            |name: &str| workloads.iter().any(|one| one["name"] == name && one["namespace"] == namespace.name());
        assert!(known("client") && known("server"), "{}", node["node"]);
    }
    stand::comes_true("status finds every proxy in sync", || {
        let status = json(stand, &["status"]);
        let told = status["nodes"].as_object().unwrap();
        assert_eq!(told.len(), nodes.len(), "{status}");
        told.values().all(|node| {
            let proxy = &node["proxy"];
            assert_eq!(proxy["version"], env!("CARGO_PKG_VERSION"), "{status}");
            proxy["in_sync"] == true
        })
    });
    let status = json(stand, &["status"]);
    for node in [&here, &there] {
        let told = &status["nodes"][node];
        assert!(told["proxy"]["pods"].as_u64() >= Some(1), "{status}");
        assert!(told["proxy"]["certificates"]["first_ends"].is_string(), "{status}");
    }
    let certificates = leno(stand, &["config", "certificates", &here]);
    assert!(certificates.contains(&format!("/ns/{}/sa/default", namespace.name())), "{certificates}");

    let metrics = json(stand, &["metrics", "--metric", "istio_tcp_connections_opened"]);
    assert_eq!(metrics["nodes"].as_array().unwrap().len(), nodes.len());
    let control = leno(stand, &["metrics", "control", "--metric", "pilot_xds"]);
    assert!(control.contains(&format!("\npilot_xds {}", nodes.len())), "{control}");

    let explained = leno(stand, &["explain", &format!("{}/client", namespace.name()), &format!("{to}:8080")]);
    assert!(explained.lines().next().is_some_and(|line| line.ends_with(": allowed")), "{explained}");
    assert!(explained.contains("path: HBONE (mTLS)"), "{explained}");

    let logs = leno(stand, &["logs"]);
    for part in ["control/", &format!("agent/{here}"), &format!("node/{there}")] {
        assert!(logs.lines().any(|line| line.split(' ').nth(1).is_some_and(|label| label.starts_with(part))), "{part}");
    }
    let times: Vec<_> = logs.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(times.is_sorted(), "lines are in their order");
    stand::comes_true("check finds nothing", || {
        let ran = stand.leno.call(&["check"]).unwrap();
        let well = ran.code == 0;
        if !well {
            eprintln!("{}", ran.stdout);
        }
        well
    });
    collected(stand);
}

/// The archive of a report has what it should, and not the authority's key.
fn collected(stand: &Stand) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.tar.gz");
    let said = leno(stand, &["debug", "collect", "-o", file.to_str().unwrap()]);
    assert!(!said.contains("could not be read"), "{said}");
    let texts = unpacked(&file, tempfile::tempdir().unwrap().path());
    for wanted in ["check.json", "status.json", "config_dump.json", "connections.jsonl", "metrics.txt", ".log"] {
        assert!(texts.iter().any(|(name, text)| name.ends_with(wanted) && !text.is_empty()), "{wanted}");
    }
    let secret = stand.cluster.kubectl().json(&["get", "secret", "leno-ca", "-n", SYSTEM]).unwrap();
    let data = secret["data"].as_object().unwrap();
    let keys: Vec<_> = data.iter().filter(|(name, _)| name.ends_with("key.pem")).collect();
    assert!(!keys.is_empty(), "{:?}", data.keys());
    let mut secrets = vec!["PRIVATE KEY".to_owned()];
    for (_, key) in keys {
        let key = key.as_str().unwrap();
        secrets.push(key.to_owned());
        // As text: the first two lines of its PEM have all of the private part. The third is the public key, which certificates
        // have, too.
        let decoded = Command::new("sh").args(["-c", "printf %s \"$0\" | base64 -d", key]).output().unwrap().stdout;
        let pem = String::from_utf8(decoded).unwrap();
        secrets.extend(pem.lines().filter(|line| line.len() == 64).take(2).map(str::to_owned));
    }
    for (name, text) in &texts {
        assert!(!secrets.iter().any(|secret| text.contains(secret.as_str())), "a private key is in {name}");
    }
}

/// With the token that an agent has, which names its node: what it may write on pods of its node and on others.
fn an_agent_writes_on_its_own_nodes_pods_only(stand: &Stand) {
    let (here, there) = stand::two_nodes(&stand.cluster);
    let namespace = Namespace::new(&stand.cluster, "e2e-own-pods", &[]).unwrap();
    namespace.start(&[Pod::new("here", &here), Pod::new("there", &there)]).unwrap();
    let kubectl = stand.cluster.kubectl();
    let agents = kubectl.json(&["get", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=leno-agent"]).unwrap();
    let agents = agents["items"].as_array().unwrap();
    let agent = agents.iter().find(|pod| pod["spec"]["nodeName"] == *here).unwrap();
    let (name, uid) = (agent["metadata"]["name"].as_str().unwrap(), agent["metadata"]["uid"].as_str().unwrap());
    let bound = ["--bound-object-kind", "Pod", "--bound-object-name", name, "--bound-object-uid", uid];
    let token = |more: &[&str]| {
        kubectl.run(&[&["create", "token", "leno-agent", "-n", SYSTEM], more].concat()).unwrap().trim().to_owned()
    };
    let (of_here, of_nowhere) = (token(&bound), token(&[]));
    let server = kubectl.run(&["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]).unwrap();
    // kubectl would read the object first, which an agent may not do by this way.
    let patch = |token: &str, pod: &str, what: &str| {
        let url = format!("{server}/api/v1/namespaces/{}/pods/{pod}/status", namespace.name());
        let (bearer, kind) = (format!("Authorization: Bearer {token}"), "Content-Type: application/merge-patch+json");
        let arguments = ["-skS", "-X", "PATCH", "-H", &bearer, "-H", kind, "-d", what, "-w", "\n%{http_code}", &url];
        let said = String::from_utf8(Command::new("curl").args(arguments).output().unwrap().stdout).unwrap();
        (said.ends_with("\n200"), said)
    };
    // What it may read is not narrowed: RBAC is deaf to selectors. docs/security.md says so, and what would help.
    for selector in ["", "?fieldSelector=spec.nodeName%3D"] {
        let of_there = if selector.is_empty() { String::new() } else { format!("{selector}{there}") };
        let url = format!("{server}/api/v1/namespaces/{}/pods{of_there}", namespace.name());
        let bearer = format!("Authorization: Bearer {of_here}");
        let said = Command::new("curl").args(["-skS", "-H", &bearer, &url]).output().unwrap().stdout;
        let list: Value = serde_json::from_slice(&said).unwrap();
        let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|pod| &pod["metadata"]["name"]).collect();
        assert!(
            names.contains(&&Value::from("there")),
            "an agent's reading is narrowed now, and docs/security.md is wrong: {names:?}"
        );
    }
    let annotate = r#"{"metadata":{"annotations":{"e2e":"x"}}}"#;
    let (may, said) = patch(&of_here, "here", annotate);
    assert!(may, "an agent may annotate a pod of its node: {said}");
    for (token, pod, what, why) in [
        (&of_here, "there", annotate, "of its own node only"),
        (&of_nowhere, "here", annotate, "of its own node only"),
        (&of_here, "here", r#"{"status":{"message":"x"}}"#, "annotations only"),
    ] {
        let (may, said) = patch(token, pod, what);
        assert!(!may && said.contains(why), "{pod}: {said}");
    }
}

/// Each account is refused what it does not need. What it needs is tested by all that works. kubectl takes `pods/exec` for a
/// pod of that name, so subresources are named by its flag.
pub(crate) fn accounts_are_refused_the_rest(stand: &Stand) {
    let kubectl = stand.cluster.kubectl();
    let may = |account: &str, words: &[&str]| {
        let who = format!("system:serviceaccount:{SYSTEM}:{account}");
        let mut arguments = vec!["auth", "can-i", "--as", &who];
        arguments.extend(words);
        String::from_utf8_lossy(&kubectl.output(&arguments).unwrap().stdout).trim() == "yes"
    };
    assert!(
        may("leno-agent", &["watch", "pods", "-A"]) && may("leno-control", &["get", "secrets/leno-ca", "-n", SYSTEM])
    );
    for account in ["leno-agent", "leno-node", "leno-control"] {
        for refused in [
            &["get", "secrets", "-A"][..],
            &["list", "secrets", "-n", SYSTEM],
            &["create", "pods", "-A"],
            &["create", "pods", "--subresource", "exec", "-A"],
            &["create", "pods", "--subresource", "portforward", "-A"],
            &["create", "serviceaccounts", "--subresource", "token", "-A"],
            &["delete", "pods", "-A"],
            &["update", "daemonsets", "-n", SYSTEM],
            &["create", "clusterrolebindings"],
            &["get", "nodes", "--subresource", "proxy"],
        ] {
            assert!(!may(account, refused), "{account} may {refused:?}");
        }
    }
    for account in ["leno-agent", "leno-node"] {
        for refused in [
            &["get", "secrets/leno-ca", "-n", SYSTEM][..],
            &["create", "tokenreviews"],
            &["patch", "authorizationpolicies", "--subresource", "status", "-A"],
            &["update", "configmaps", "-n", SYSTEM],
        ] {
            assert!(!may(account, refused), "{account} may {refused:?}");
        }
    }
    an_agent_writes_on_its_own_nodes_pods_only(stand);
    for refused in [&["list", "pods", "-A"][..], &["list", "namespaces"], &["get", "configmaps", "-n", SYSTEM]] {
        assert!(!may("leno-node", refused), "leno-node may {refused:?}");
    }
}
