use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A node's directory, with or without an agent.
struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("cni.sock")
    }

    fn in_mesh(&self, namespaces: &[&str]) {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        state::write(&self.dir.path().join("state.json"), &State { namespaces }).unwrap();
    }

    /// An agent that answers one question. Returns the question's path and body.
    fn agent(&self, status: &'static str, body: &'static str) -> JoinHandle<(String, Value)> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut path, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(rest) = line.strip_prefix("POST ") {
                    path = rest.split(' ').next().unwrap().to_owned();
                }
                if let Some(rest) = line.strip_prefix("content-length: ") {
                    length = rest.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut question = vec![0; length];
            reader.read_exact(&mut question).unwrap();
            stream.write_all(format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n{body}").as_bytes()).unwrap();
            (path, serde_json::from_slice(&question).unwrap())
        })
    }

    fn config(&self, extra: Value) -> Vec<u8> {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": NAME,
            "socket": self.socket(), "stateFile": self.dir.path().join("state.json"), "agentNamespace": "leno-system",
        });
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        config.to_string().into_bytes()
    }

    fn call(&self, command: &str, namespace: &str) -> Result<String, Failure> {
        run(&environment(command, namespace), &self.config(previous()))
    }
}

fn environment(command: &str, namespace: &str) -> Environment {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=web;K8S_POD_UID=u-1");
    Environment::new(command, "c-1".into(), "/run/netns/x".into(), args).unwrap()
}

fn previous() -> Value {
    json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.4/24"}, {"address": "fd00::4/64"}], "dns": {}}})
}

#[test]
fn a_pod_that_is_captured_gets_the_network_it_had() {
    let node = Node::new();
    let asked = node.agent("200 OK", "{\"captured\":true}");
    // To the letter: numbers and unknown fields of the plugins before it are not this one's to change.
    let text = r#"{ "ips" : [{"address":"10.1.0.4/24"}],  "x": 1.50, "y": "ä" }"#;
    let config = String::from_utf8(node.config(json!({"prevResult": "HERE"}))).unwrap().replace("\"HERE\"", text);
    assert_eq!(run(&environment("ADD", "shop"), config.as_bytes()).unwrap(), text);
    let (path, question) = asked.join().unwrap();
    assert_eq!(path, "/cmdadd");
    let expected = json!({
        "Netns": "/run/netns/x", "PodName": "web", "PodNamespace": "shop", "PodUID": "u-1", "ContainerID": "c-1",
        "IPs": [{"Address": {"IP": "10.1.0.4"}}],
    });
    assert_eq!(question, expected);
}

#[test]
fn what_the_agent_refuses_is_told_in_cnis_form() {
    for (status, code) in [("409 Conflict", 11), ("500 Internal Server Error", 100)] {
        let node = Node::new();
        let asked = node.agent(status, "no node proxy is connected\n");
        let failure = node.call("ADD", "shop").unwrap_err();
        asked.join().unwrap();
        let told: Value = serde_json::to_value(&failure).unwrap();
        let expected = "pod shop/web is not captured for the mesh: no node proxy is connected";
        assert_eq!(told, json!({"cniVersion": "1.0.0", "code": code, "msg": expected}));
    }
}

#[test]
fn without_an_agent_only_pods_that_may_be_in_the_mesh_wait() {
    let node = Node::new();
    node.in_mesh(&["shop"]);
    let failure = node.call("ADD", "shop").unwrap_err();
    assert_eq!(failure.code, 11);
    assert!(
        failure.msg.contains("its namespace is in the mesh") && failure.msg.contains("no agent is there"),
        "{failure:?}"
    );
    node.call("ADD", "other").unwrap();
    node.call("ADD", "kube-system").unwrap();
}

#[test]
fn an_agent_that_is_not_ready_is_none() {
    let node = Node::new();
    node.in_mesh(&["shop"]);
    for (namespace, starts) in [("shop", false), ("other", true)] {
        let asked = node.agent("503 Service Unavailable", "starting");
        assert_eq!(node.call("ADD", namespace).is_ok(), starts);
        asked.join().unwrap();
        std::fs::remove_file(node.socket()).unwrap();
    }
}

/// An agent that is replaced delays a pod of the mesh, and nobody else.
#[test]
fn a_pod_of_the_mesh_waits_for_the_next_agent() {
    let node = Node::new();
    node.in_mesh(&["shop"]);
    let mut config = previous();
    config["agentWaitSeconds"] = 600.into();
    let config = node.config(config);
    run(&environment("ADD", "other"), &config).unwrap();
    let waiting = std::thread::spawn(move || run(&environment("ADD", "shop"), &config));
    std::thread::yield_now();
    node.agent("200 OK", "").join().unwrap();
    waiting.join().unwrap().unwrap();
}

/// Somebody has removed the agent's directory, or its disk is broken.
#[test]
fn when_nothing_is_known_all_wait_but_those_that_bring_the_agent_back() {
    let node = Node::new();
    for _ in 0..2 {
        assert_eq!(node.call("ADD", "shop").unwrap_err().code, 11);
        node.call("ADD", "kube-system").unwrap();
        node.call("ADD", "leno-system").unwrap();
        std::fs::write(node.dir.path().join("state.json"), "{").unwrap();
    }
}

#[test]
fn the_end_of_a_pod_never_fails() {
    let node = Node::new();
    assert_eq!(node.call("DEL", "shop").unwrap(), "");
    let asked = node.agent("500 Internal Server Error", "no");
    assert_eq!(node.call("DEL", "shop").unwrap(), "");
    assert_eq!(asked.join().unwrap().0, "/cmddel");
    // Without the result of the plugins before it, as a runtime may call it.
    run(&environment("DEL", "shop"), &node.config(json!({}))).unwrap();
}

#[test]
fn check_status_gc_and_version() {
    let node = Node::new();
    node.in_mesh(&["shop"]);
    let asked = node.agent("200 OK", "");
    assert_eq!(node.call("CHECK", "shop").unwrap(), "");
    assert_eq!(asked.join().unwrap().0, "/cmdcheck");
    std::fs::remove_file(node.socket()).unwrap();
    let asked = node.agent("500 Internal Server Error", "missing: rule");
    assert_eq!(node.call("CHECK", "shop").unwrap_err().code, 100);
    asked.join().unwrap();
    std::fs::remove_file(node.socket()).unwrap();
    // Without an agent a node must not become unready.
    for command in ["STATUS", "GC"] {
        let config = node.config(json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []}));
        assert_eq!(
            run(&Environment::new(command, String::new(), String::new(), String::new()).unwrap(), &config).unwrap(),
            ""
        );
    }
    let version = Environment::new("VERSION", String::new(), String::new(), String::new()).unwrap();
    let told: Value = serde_json::from_str(&run(&version, b"{\"cniVersion\":\"1.1.0\"}").unwrap()).unwrap();
    assert_eq!(told["supportedVersions"], json!(SUPPORTED));
}

#[test]
fn what_is_wrong_with_a_call_is_said() {
    let node = Node::new();
    let fails = |environment: &Environment, config: &[u8]| run(environment, config).unwrap_err();
    let add = environment("ADD", "shop");
    assert_eq!(fails(&add, b"{").code, 6);
    assert_eq!(fails(&add, b"").code, 6);
    assert_eq!(fails(&add, &node.config(json!({"cniVersion": "0.2.0"}))).code, 1);
    assert_eq!(fails(&add, b"{}").code, 1);
    let alone = fails(&add, &node.config(json!({})));
    assert!(alone.code == 7 && alone.msg.contains(".conflist"), "{alone:?}");
    let nowhere = Environment { netns: String::new(), ..add };
    assert_eq!(fails(&nowhere, &node.config(previous())).code, 4);
    let unknown = Environment::new("JUMP", String::new(), String::new(), String::new()).unwrap_err();
    assert_eq!(unknown.code, 4);
}

#[test]
fn whoever_is_no_kubelet_has_no_pods() {
    let node = Node::new();
    let other = Environment::new("ADD", "c".into(), "/run/netns/x".into(), "IgnoreUnknown=1".into()).unwrap();
    run(&other, &node.config(previous())).unwrap();
}
