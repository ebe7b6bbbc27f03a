//! `/config_dump`, as `istioctl ztunnel-config` reads it.

use std::io::Write;
use std::process::{Command, Stdio};

use leno_model::{
    Action, Authorization, Clause, GatewayAddress, GatewayDestination, HBONE_PORT, Match, PolicyName, Rule, Scope,
    StringMatch,
};
use leno_testkit::network::may_run;
use leno_testkit::skips::skip;
use serde_json::{Value, json};

use crate::support::{Mesh, pair};

fn policy() -> Authorization {
    let client = StringMatch::Exact("cluster.local/ns/default/sa/client".into());
    let principals = Match { principals: vec![client, StringMatch::Presence], ..Match::default() };
    let namespaces = Match {
        namespaces: vec![StringMatch::Prefix("def".into()), StringMatch::Suffix("ault".into())],
        destination_ports: vec![8080],
        ..Match::default()
    };
    Authorization {
        id: PolicyName { namespace: "default".into(), name: "some".into() },
        scope: Scope::WorkloadSelector,
        action: Action::Allow,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![principals, namespaces] }] }],
        dry_run: false,
        not_understood: None,
    }
}

fn of<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name} in {list}"))
}

#[tokio::test]
async fn istioctl_reads_the_dump() {
    if !may_run("istioctl_reads_the_dump") {
        return;
    }
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", "node-1").await;
    let mut server = mesh.pod("server", "node-1").await;
    let mut other = mesh.pod("other", "node-2").await;
    let waypoint = mesh.service("waypoint", &["10.96.0.7".parse().unwrap()], &mut []).await;
    mesh.service("web", &["10.96.0.8".parse().unwrap()], &mut [&mut server]).await;
    mesh.control.publish_policy(&policy());
    mesh.synced().await;
    server.workload.authorization_policies = vec![policy().id];
    let gateway =
        GatewayAddress { destination: GatewayDestination::Hostname(waypoint.id), hbone_mtls_port: HBONE_PORT };
    other.workload.waypoint = Some(Box::new(gateway));
    mesh.control.publish_workload(&server.workload);
    mesh.control.publish_workload(&other.workload);
    mesh.synced().await;
    let _live = pair(&client, &server).await;

    let dump = mesh.node("node-1").config_dump().await;
    assert_eq!(of(&dump["workloads"], "server")["services"], json!(["default/web.default.svc.cluster.local"]));
    let to_waypoint = &of(&dump["workloads"], "other")["waypoint"]["destination"];
    assert_eq!(*to_waypoint, "default/waypoint.default.svc.cluster.local");
    let matches = json!([[[
        {"principals": [{"Exact": "cluster.local/ns/default/sa/client"}, {"Presence": []}]},
        {"namespaces": [{"Prefix": "def"}, {"Suffix": "ault"}], "destinationPorts": [8080]},
    ]]]);
    assert_eq!(of(&dump["policies"], "some")["rules"], matches);
    let endpoints = of(&dump["services"], "web")["endpoints"].as_object().unwrap();
    assert_eq!(endpoints.keys().collect::<Vec<_>>(), ["Kubernetes//Pod/default/server"]);
    let certificates = dump["certificates"].as_array().unwrap();
    assert_eq!(certificates.len(), 2);
    let serial = certificates[0]["certChain"][0]["serialNumber"].as_str().unwrap();
    assert!(serial.parse::<u128>().is_ok_and(|number| number > 0), "{serial}");

    let Some(decoder) = std::env::var_os("LENO_CONFIGDUMP") else {
        skip(
            "istioctl_reads_the_dump",
            "set LENO_CONFIGDUMP=PATH to what `go build` makes in crates/node/tests/istioctl",
        );
        return;
    };
    let mut decoder =
        Command::new(decoder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    decoder.stdin.take().unwrap().write_all(dump.to_string().as_bytes()).unwrap();
    let output = decoder.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    let line = |parts: &[&str]| {
        let found =
            shown.lines().any(|line| parts.iter().all(|part| line.split_whitespace().any(|word| word == *part)));
        assert!(found, "{parts:?} in {shown}");
    };
    let address = server.v4.to_string();
    line(&["default", "server", "node-1", "None", "HBONE"]);
    // The waypoint's name, and not that it is not known.
    line(&["default", "other", "node-2", "waypoint", "HBONE"]);
    line(&["default", "web", "10.96.0.8", "1/1"]);
    line(&["default", "some", "Allow", "WorkloadSelector"]);
    let serial = format!("{:x}", serial.parse::<u128>().unwrap());
    line(&["spiffe://cluster.local/ns/default/sa/client", "Leaf", "Available", "true", &serial]);
    line(&["spiffe://cluster.local/ns/default/sa/client", "Root", "Available", "true"]);
    line(&["server.default", "Inbound", "server.default:8080", "HBONE"]);
    line(&["client.default", "Outbound", "HBONE"]);
    assert!(shown.contains(&address) && shown.contains("\"Exact\": \"cluster.local/ns/default/sa/client\""), "{shown}");
    assert!(shown.contains("\"Presence\": []") && !shown.contains("<nil>"), "{shown}");
}
