//! What passes a waypoint unread on a stage: it goes where TLSRoutes and TCPRoutes say, passes if policies about its server name
//! let it, and `leno explain` says so beforehand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Command;

use crate::shop::SHOP;
use crate::stage::{Stage, eventually, run, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  selector: {app: a}
  ports: [{name: tls, port: 443, targetPort: 8443}, {name: tcp, port: 9000}, {name: any, port: 9001, targetPort: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {selector: {app: a}, ports: [{name: tls, port: 443, targetPort: 8443}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec: {selector: {app: b}, ports: [{name: tls, port: 443, targetPort: 8443}, {name: tcp, port: 9000}]}
"#;

/// A server of TLS with the certificate of `NAME.example`, and one that says its name and repeats what it hears.
const SERVER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: shop, labels: {app: NAME}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d)
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http {
        access_log off; ssl_certificate DIRECTORY/NAME.crt; ssl_certificate_key DIRECTORY/NAME.key;
        server { listen 8443 ssl http2; location / { return 200 "NAME $server_protocol $ssl_server_name\n"; } }
      }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
  - name: named
    command: [bash, -c, "exec socat TCP-LISTEN:9000,reuseaddr,fork SYSTEM:'echo NAME; exec cat'"]
---
"#;

/// The route of each name to its server.
const BY_NAME: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: to-a, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 443}]
  hostnames: [a.example]
  rules: [{backendRefs: [{name: a, port: 443}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: to-b, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 443}]
  hostnames: [b.example, '*.b.example']
  rules: [{name: all-of-b, backendRefs: [{name: b, port: 443}]}]
"#;

fn by_weight(a: u32, b: &str, weight: u32) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {{name: spread, namespace: shop}}\nspec:\n  \
         parentRefs: [{{group: '', kind: Service, name: front, port: 9000}}, {{group: '', kind: Service, name: front, port: 9001}}]\n  \
         rules: [{{backendRefs: [{{name: a, port: 9000, weight: {a}}}, {{name: {b}, port: 9000, weight: {weight}}}]}}]\n"
    )
}

/// Lets connections in by the server name that they ask for.
fn by_server_name(action: &str, names: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: named, namespace: shop}}\nspec:\n  \
         targetRefs: [{{kind: Service, group: '', name: front}}]\n  \
         action: {action}\n  rules: [{{when: [{{key: connection.sni, values: [{names}]}}]}}]\n"
    )
}

/// A certificate for `NAME.example` and what is below it, signed by itself.
fn certificate(directory: &Path, name: &str) {
    let path = |end: &str| directory.join(format!("{name}.{end}"));
    let names = format!("subjectAltName=DNS:{name}.example,DNS:*.{name}.example");
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    command.args(["-subj", &format!("/CN={name}"), "-addext", &names]);
    run(command.arg("-keyout").arg(path("key")).arg("-out").arg(path("crt"))).ok();
}

#[test]
fn connections_follow_tls_routes_and_tcp_routes() {
    if skip("connections_follow_tls_routes_and_tcp_routes", &["nginx", "curl", "openssl", "socat"]) {
        return;
    }
    let certificates = tempfile::tempdir().unwrap();
    let directory = certificates.path().to_str().unwrap();
    let server = |name: &str| {
        certificate(certificates.path(), name);
        SERVER.replace("NAME", name).replace("DIRECTORY", directory)
    };
    let servers = server("a") + &server("b");
    let files = [
        ("shop.yaml", SHOP),
        ("mesh.yaml", MESH),
        ("servers.yaml", &servers),
        ("tls.yaml", BY_NAME),
        ("tcp.yaml", &by_weight(3, "b", 1)),
    ];
    let stage = Stage::up(&files, &["--nodes", "2"]);
    let client = |line: &str| stage.sh("shop/client", line);

    // The client itself verifies whose certificate it is shown: nobody on the way has read or answered anything.
    let curl = |host: &str, trusted: &str| {
        client(&format!(
            "curl -sS -m 20 --cacert {directory}/{trusted}.crt --connect-to {host}:443:front.shop:443 https://{host}/"
        ))
    };
    for (host, server) in [("a.example", "a"), ("b.example", "b"), ("x.b.example", "b")] {
        assert_eq!(curl(host, server).ok().stdout, format!("{server} HTTP/2.0 {host}\n"));
    }
    let shown = |name: &str| {
        client(&format!(
            "timeout 20 openssl s_client -connect front.shop:443 {name} </dev/null 2>/dev/null | grep -o 'subject=CN = .'"
        ))
    };
    assert_eq!(shown("-servername B.Example").ok().stdout, "subject=CN = b\n");
    assert_eq!(shown("-servername a.example -tls1_2").ok().stdout, "subject=CN = a\n");
    // Who asks for a server that no route names, or for none, or does not speak TLS, reaches nobody.
    assert_ne!(curl("c.example", "a").code, 0);
    assert_eq!(shown("-noservername").stdout, "");
    assert_eq!(client("(echo hello; sleep 1) | timeout 10 socat -t 1 - TCP:front.shop:443").stdout, "");

    // Who speaks first matters to nobody, and what looks like HTTP is not read.
    let spread = |port: u16, count: u32| {
        let line = format!("for i in $(seq {count}); do socat -t 10 - TCP:front.shop:{port} </dev/null; done");
        let mut seen = BTreeMap::<String, u32>::new();
        for name in client(&line).stdout.lines() {
            *seen.entry(name.to_owned()).or_default() += 1;
        }
        (seen.get("a").copied().unwrap_or(0), seen.get("b").copied().unwrap_or(0))
    };
    // By chance alone, `b` gets as many as half of sixty once in 100 000 times.
    let (a, b) = spread(9000, 60);
    assert_eq!(a + b, 60);
    assert!(b > 0 && a > b, "three to one: {a} and {b}");
    for port in [9000, 9001] {
        let said = client(&format!("printf 'GET / HTTP/1.1\\r\\n\\r\\n' | socat -t 10 - TCP:front.shop:{port}")).ok();
        assert_eq!(&said.stdout[1..], "\nGET / HTTP/1.1\r\n\r\n");
    }

    // Asked beforehand, the answers are the same.
    let explain = |destination: &str, more: &[&str]| {
        run(stage.command("explain").args(["shop/client", destination]).args(more)).stdout
    };
    let asked = explain("shop/front:443", &[]);
    assert!(
        asked.contains("the server name that a TLS client asks for decides") && asked.contains("shop/to-b"),
        "{asked}"
    );
    assert!(asked.contains("/sa/gate") && !asked.contains("not in the mesh"), "{asked}");
    let named = explain("shop/front:443", &["--header", "host=x.b.example"]);
    assert!(named.contains("all-of-b") && named.contains("to shop/b.shop.svc.cluster.local:443"), "{named}");
    assert!(named.contains("only the host plays a part"), "{named}");
    let unknown = explain("shop/front:443", &["--header", "host=c.example"]);
    assert!(unknown.contains("no TLSRoute of the service names the server"), "{unknown}");
    let weighed = explain("shop/front:9000", &[]);
    for part in [
        "TCPRoute shop/spread",
        "a.shop.svc.cluster.local:9000, weight 3 of 4",
        "b.shop.svc.cluster.local:9000, weight 1 of 4",
    ] {
        assert!(weighed.contains(part), "{part}: {weighed}");
    }

    // An open connection stays where it is; new ones follow the edit.
    let mut open = stage.spawn("shop/client", &["socat", "-t", "10", "-", "TCP:front.shop:9000"]);
    let mut heard = BufReader::new(open.stdout.take().unwrap()).lines();
    let first = heard.next().unwrap().unwrap();
    assert!(["a", "b"].contains(&&*first), "{first}");
    stage.write("tcp.yaml", &by_weight(0, "b", 1));
    eventually("all go to b", || match spread(9000, 5) {
        (0, 5) => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    stage.write("tcp.yaml", &by_weight(0, "gone", 1));
    eventually("none goes anywhere", || match spread(9001, 3) {
        (0, 0) => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    open.stdin.take().unwrap().write_all(b"still here\n").unwrap();
    assert_eq!(heard.next().unwrap().unwrap(), "still here");
    open.wait().unwrap();

    for why in [
        "no TLSRoute of the service names the server \\\"c.example\\\"",
        "the client names no server (SNI)",
        "the client does not speak TLS",
        "sends this connection to a backend that can't be used",
    ] {
        stage.told(&["logs", "shop/gate"], |log| log.contains(why));
    }
    stage.told(&["logs"], |log| log.contains("TCPRoute") && log.contains("gone"));
}

#[test]
fn connections_pass_by_their_server_name() {
    if skip("connections_pass_by_their_server_name", &["nginx", "curl", "openssl", "socat"]) {
        return;
    }
    let certificates = tempfile::tempdir().unwrap();
    let directory = certificates.path().to_str().unwrap();
    certificate(certificates.path(), "a");
    let server = SERVER.replace("NAME", "a").replace("DIRECTORY", directory);
    let allowed = by_server_name("ALLOW", "a.example, '*.open.a.example'");
    let stage = Stage::up(
        &[("shop.yaml", SHOP), ("mesh.yaml", MESH), ("server.yaml", &server), ("policy.yaml", &allowed)],
        &["--nodes", "2"],
    );
    let client = |line: &str| stage.sh("shop/client", line);
    // The server would answer to any of these names.
    let asks_for = |host: &str| {
        client(&format!("curl -sS -m 20 -k --connect-to {host}:443:front.shop:443 https://{host}/")).stdout
    };
    let passes = |host: &str| asks_for(host) == format!("a HTTP/2.0 {host}\n");
    let shown = |name: &str| {
        let asked = "timeout 20 openssl s_client -connect front.shop:443";
        client(&format!("{asked} {name} </dev/null 2>/dev/null | grep -o 'subject=CN = .'")).stdout
    };
    assert!(passes("a.example") && passes("x.open.a.example"));
    assert_eq!(shown("-servername A.Example -tls1_2"), "subject=CN = a\n");
    assert_eq!((asks_for("x.a.example"), asks_for("b.example")), (String::new(), String::new()));
    // Nor without a name, nor without TLS, on any port of the service.
    assert_eq!(shown("-noservername"), "");
    assert_eq!(client("(echo hello; sleep 1) | timeout 10 socat -t 1 - TCP:front.shop:443").stdout, "");
    assert_eq!(client("socat -t 10 - TCP:front.shop:9000 </dev/null").stdout, "");
    stage.told(&["logs", "shop/gate"], |log| log.contains("no ALLOW policy matches (checked shop/named)"));
    for asked in ["server name \\\"b.example\\\"", "no server name"] {
        let why = format!("peer is cluster.local/ns/shop/sa/default, and the client asks for {asked}");
        stage.told(&["logs", "shop/gate"], |log| log.contains(&why));
    }

    // Asked beforehand, the answers are the same.
    let explain = |host: &str| {
        let arguments = ["shop/client", "shop/front:443", "--header", &format!("host={host}")];
        run(stage.command("explain").args(arguments)).stdout
    };
    let (yes, no) = (explain("a.example"), explain("b.example"));
    assert!(yes.contains("allowed by rule 1 of policy shop/named"), "{yes}");
    assert!(no.contains("not allowed: no ALLOW policy matches (checked shop/named)"), "{no}");

    // An edit ends the open connections that it lets in no more, and leaves the others.
    let open = |host: &str| {
        let mut child =
            stage.spawn("shop/client", &["openssl", "s_client", "-connect", "front.shop:443", "-servername", host]);
        let mut heard = BufReader::new(child.stdout.take().unwrap()).lines();
        heard.find(|line| line.as_ref().unwrap().contains("Verify return code")).unwrap().unwrap();
        // It would end if nobody heard it.
        (child, heard)
    };
    let ((mut stays, _hears), (mut ends, _heard)) = (open("a.example"), open("x.open.a.example"));
    stage.write("policy.yaml", &by_server_name("DENY", "x.open.a.example"));
    eventually("the other names pass", || {
        let passing = ["a.example", "b.example", "x.open.a.example"].map(passes);
        if passing == [true, true, false] { Ok(()) } else { Err(format!("{passing:?}")) }
    });
    eventually("the open connection ends", || {
        ends.try_wait().unwrap().map(drop).ok_or_else(|| "it is open still".to_owned())
    });
    assert!(stays.try_wait().unwrap().is_none());
    // The server ends it, at the client's word.
    drop(stays.stdin.take());
    stays.wait().unwrap();
}
