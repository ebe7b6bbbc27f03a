//! The program under the name of a CNI plugin.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn plugin(command: &str, configuration: &Value) -> (bool, Value) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leno-cni");
    symlink(env!("CARGO_BIN_EXE_leno"), &path).unwrap();
    let mut child = Command::new(&path)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", "c")
        .env("CNI_NETNS", "/run/netns/none")
        .env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(configuration.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let told = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    (output.status.success(), told)
}

#[test]
fn by_its_name_the_program_is_a_plugin() {
    let (fine, told) = plugin("VERSION", &json!({"cniVersion": "1.1.0"}));
    assert!(fine && told["supportedVersions"].as_array().is_some_and(|all| all.contains(&json!("1.1.0"))), "{told}");
    let configuration = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "leno-cni", "prevResult": {"ips": []},
        "socket": "/nonexistent/cni.sock", "stateFile": "/nonexistent/state.json",
    });
    let (fine, told) = plugin("ADD", &configuration);
    assert!(!fine && told["code"] == 11, "{told}");
}
