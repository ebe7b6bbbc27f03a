//! Conveniences of a stage: published ports, `ps -w`, the list of stages, completion, man pages, roles in the system's `ps`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::stage::{Stage, eventually, leno, run, skip};

/// A service in the mesh that says hello, and a policy that lets nobody reach its second port.
const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        command: [sh, -c, 'for port in 8080 9090; do socat "TCP6-LISTEN:$port,ipv6only=0,reuseaddr,fork" SYSTEM:"echo hello from $port" & done; wait']
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{name: web, port: 80, targetPort: 8080}, {name: admin, port: 90, targetPort: 9090}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {ports: ["9090"]}}]}]}
"#;

fn ask(address: &str) -> String {
    run(Command::new("socat").args(["-t", "5", "-", &format!("TCP:{address},connect-timeout=5")])).stdout
}

#[test]
fn a_published_port_leads_to_its_service_as_a_client_outside_the_mesh() {
    if skip("a_published_port_leads_to_its_service_as_a_client_outside_the_mesh", &["socat", "curl"]) {
        return;
    }
    let stage = Stage::prepare(&[("shop.yaml", SHOP)]);
    let wrong = run(stage.up_command(&["--publish", "0=shop/wep:80"]));
    assert!(wrong.code != 0 && wrong.stderr.contains("there are: shop/web"), "{wrong:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = run(stage.up_command(&["--publish", &format!("{port}=shop/web:80")]));
    assert!(refused.code == 1 && refused.stderr.contains("another program listens there"), "{refused:?}");

    let up = run(stage.up_command(&["--publish", "0=shop/web:80", "--publish", "127.0.0.1:0=shop/web:90"])).ok();
    let ps = stage.ps();
    let published = |at: usize| ps["published"][at]["address"].as_str().unwrap().to_owned();
    assert!(up.stderr.contains(&format!("{} leads to shop/web:80", published(0))), "{up:?}");
    assert!(run(&mut stage.command("ps")).ok().stdout.contains("LEADS TO"));
    eventually("the service to answer", || {
        let said = ask(&published(0));
        if said == "hello from 8080\n" { Ok(()) } else { Err(said) }
    });
    // The mesh applies its policies to it as to any client outside.
    assert_eq!(ask(&published(1)), "");
    eventually("both in the proxies' access logs, without an identity", || {
        let log = ["node-1", "node-2"].map(|node| stage.node_log(node)).concat();
        let of = |words: &[&str]| {
            let is = |line: &str| line.contains("connection complete") && !line.contains("src.identity");
            log.lines().any(|line| is(line) && words.iter().all(|word| line.contains(word)))
        };
        let seen = of(&["dst.addr=", ":8080 ", "bytes_sent=16"]) && of(&["dst.addr=", ":9090 ", "error="]);
        if seen { Ok(()) } else { Err(log.clone()) }
    });
    let address = published(0);
    stage.down().ok();
    assert!(std::net::TcpStream::connect(&address).is_err(), "somebody still listens on {address}");
}

#[test]
fn scaling_says_what_it_did_and_keeps_the_oldest() {
    if skip("scaling_says_what_it_did_and_keeps_the_oldest", &["socat"]) {
        return;
    }
    let stage = Stage::up(&[("shop.yaml", SHOP)], &[]);
    let mut watching = stage.command("ps").args(["-w"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    shown.find(|line| line.contains("shop") && line.contains("web-")).expect("the listing");
    let oldest = stage.ps()["pods"][0]["name"].as_str().unwrap().to_owned();
    let scale = |count: &str| run(stage.command("scale").args(["shop/web", count])).ok().stdout;
    assert_eq!(scale("4"), "shop/web scaled from 1 to 4 pods\n");
    assert_eq!(scale("4"), "shop/web has 4 pods already\n");
    stage.wait("four pods", |ps| {
        let pods = ps["pods"].as_array()?;
        (pods.len() == 4 && pods.iter().all(|pod| pod["ready"] == true)).then_some(())
    });
    // Wait before the next change: two changes in a row may be shown as one.
    shown.find(|line| line.starts_with("shop/web-") && line.contains("ready yes")).expect("a pod that became ready");
    assert_eq!(scale("1"), "shop/web scaled from 4 to 1 pod\n");
    stage.wait("one pod", |ps| (ps["pods"].as_array()?.len() == 1).then_some(()));
    assert_eq!(stage.ps()["pods"][0]["name"], *oldest);
    shown.find(|line| line.starts_with("shop/web-") && line.contains("gone")).expect("a pod that has gone");
    stage.down().ok();
    assert!(watching.wait().unwrap().success());
}

#[test]
fn two_stages_are_listed_completed_and_told_apart() {
    if skip("two_stages_are_listed_completed_and_told_apart", &["socat"]) {
        return;
    }
    let [one, two] = [0; 2].map(|_| Stage::up(&[("shop.yaml", SHOP)], &[]));
    let listed = run(leno().args(["ps", "--stages"])).ok().stdout;
    for stage in [&one, &two] {
        let row = listed.lines().find(|line| line.split_whitespace().next() == Some(stage.name()));
        assert!(row.is_some_and(|row| row.contains("1/1") && row.ends_with("ready")), "{listed}");
    }
    let lost = run(leno().args(["ps", "--name", "no-such-stage"]));
    assert!(lost.code == 1 && lost.stderr.contains(one.name()) && lost.stderr.contains("--name"), "{lost:?}");

    // What bash's completion script asks: the words of the line, and the index of the word under the cursor.
    let complete = |words: &[&str]| {
        let mut command = leno();
        command.env("LENO_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        run(command.args(["--", "leno"]).args(&words[1..])).ok().stdout
    };
    assert!(complete(&["leno", "ps", "--name", ""]).lines().any(|line| line == two.name()));
    let pods = complete(&["leno", "exec", "--name", one.name(), "shop/"]);
    assert!(pods.lines().any(|line| line == "shop/web") && pods.contains("shop/web-"), "{pods}");
    assert_eq!(complete(&["leno", "logs", "--name", one.name(), "--node", "node-"]), "node-1\nnode-2");
    let none = complete(&["leno", "scale", "--name", "no-such-stage", ""]);
    assert!(!none.contains('/'), "{none}");

    // The role of each process shows in the system's process list.
    let ps = one.ps();
    let line = |pid: &serde_json::Value| {
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap()).replace('\0', " ")
    };
    assert!(line(&ps["nodes"][0]["pid"]).ends_with("leno node --node node-1 "), "{}", line(&ps["nodes"][0]["pid"]));
    assert!(line(&ps["pods"][0]["pid"]).contains("leno pod shop/web-"), "{}", line(&ps["pods"][0]["pid"]));
}

#[test]
fn help_and_pages_are_there() {
    let help = run(leno().args(["help", "ps"])).ok().stdout;
    assert!(help.contains("leno ps --stages"), "{help}");
    assert_eq!(run(leno().args(["ps", "--help"])).ok().stdout, help);
    let page = run(leno().args(["man", "up"])).ok().stdout;
    assert!(page.starts_with(".ie") || page.contains(".TH leno"), "{page}");
    let unknown = run(leno().args(["man", "upp"]));
    assert!(unknown.code == 1 && unknown.stderr.contains("up"), "{unknown:?}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(leno().args(["completion", shell])).ok().stdout.contains("LENO_COMPLETE"));
    }
}
