//! HTTP/2 clients, WebSockets and the questions that browsers ask, through a waypoint on a stage, with programs that others wrote.

use std::collections::HashMap;

use crate::shop::SHOP;
use crate::stage::{Stage, eventually, skip};

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: http2, port: 82, targetPort: 8082}, {name: any, port: 83, targetPort: 8082}, {name: http-too, port: 84, targetPort: 8082}]
---
apiVersion: v1
kind: Service
metadata: {name: chat, namespace: shop}
spec: {selector: {app: chat}, ports: [{name: http, port: 80, targetPort: 8081}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shared, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 80}]
  rules:
  - filters:
    - type: CORS
      cors: {allowOrigins: ['https://app.example'], allowMethods: [PUT], allowHeaders: [x-token], exposeHeaders: [x-left], allowCredentials: true, maxAge: 60}
    backendRefs: [{name: web, port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node-2
  containers:
  - name: nginx
    command:
    - bash
    - -c
    - |
      d=$(mktemp -d); head -c 1048576 /dev/zero > $d/blob
      cat > $d/conf <<'EOF'
      user root; worker_processes 1; error_log stderr; pid nginx.pid; events {}
      http {
        access_log off;
        server {
          listen 8080; listen 8082 http2; root .;
          location = /hello { return 200 "$server_protocol\n"; }
          location = /item { return 200 "changed\n"; }
        }
      }
      EOF
      exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'
---
apiVersion: v1
kind: Pod
metadata: {name: chat, namespace: shop, labels: {app: chat}}
spec:
  nodeName: node-2
  containers:
  - name: c
    command:
    - bash
    - -c
    - |
      exec /usr/bin/python3 -c '
      import asyncio, websockets
      async def echo(ws):
          async for message in ws: await ws.send(message)
          await ws.wait_closed()
      async def main():
          async with websockets.serve(echo, "0.0.0.0", 8081, subprotocols=["talk"], max_size=None): await asyncio.Future()
      asyncio.run(main())'
"#;

/// Text, bytes, many frames, a ping and a close with a code; compressed, as browsers do, and not.
const WEBSOCKET_CLIENT: &str = r#"
import asyncio, websockets
async def main():
    for compression in ["deflate", None]:
        async with websockets.connect("ws://chat.shop/room", subprotocols=["talk"], compression=compression, max_size=None) as ws:
            assert ws.subprotocol == "talk"
            for said in ["grüezi", b"\0" * (1 << 20), "", "x" * 70000]:
                await ws.send(said)
                assert await ws.recv() == said
            await ws.send([b"a", b"b", b"c"])
            assert await ws.recv() == b"abc"
            await (await ws.ping())
            await ws.close(code=4001, reason="enough")
            assert ws.close_code == 4001, ws.close_code
    print("ok")
asyncio.run(asyncio.wait_for(main(), 60))"#;

#[test]
fn programs_of_others_pass_a_waypoint() {
    const SOCKETS: &str = "/usr/lib/python3/dist-packages/websockets/__init__.py";
    if skip("programs_of_others_pass_a_waypoint", &["nginx", "curl", "nghttp", "h2load", "/usr/bin/python3", SOCKETS]) {
        return;
    }
    let stage = Stage::up(&[("shop.yaml", SHOP), ("mesh.yaml", MESH)], &["--nodes", "2"]);
    let client = |line: &str| stage.sh("shop/client", line).ok().stdout;
    eventually("the service answers", || {
        let ran = stage.sh("shop/client", "curl -sS -m 20 http://web.shop/hello");
        if ran.stdout == "HTTP/1.1\n" { Ok(()) } else { Err(format!("{ran:?}")) }
    });

    // HTTP/2 from end to end: where the port says so, where it says nothing, and where it says HTTP.
    for port in [82, 83, 84] {
        assert_eq!(client(&format!("timeout 20 nghttp http://web.shop:{port}/hello")), "HTTP/2.0\n", "{port}");
    }
    let blob = client("timeout 20 nghttp -m 20 http://web.shop:82/blob | wc -c");
    assert_eq!(blob.trim(), (20 << 20).to_string());
    for arguments in ["-m 10 http://web.shop:82/hello", "-m 10 http://web.shop:84/hello", "--h1 http://web.shop/hello"]
    {
        let told = client(&format!("timeout 60 h2load -n 2000 -c 4 {arguments}"));
        assert!(told.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{arguments}: {told}");
        assert!(told.contains("status codes: 2000 2xx"), "{arguments}: {told}");
    }

    assert_eq!(client(&format!("/usr/bin/python3 -c '{WEBSOCKET_CLIENT}'")), "ok\n");
    let is_told = |line: &str| line.contains("path=\"/room\"") && line.contains("response_code=101");
    let count = |log: &str| log.lines().filter(|line| is_told(line)).count();
    let log = stage.told(&["logs", "shop/gate"], |log| count(log) >= 2);
    assert_eq!(count(&log), 2, "{log}");

    // What a browser asks before it lets a page of another origin send a PUT with a header of its own, and the PUT.
    let from = |origin: &str, more: &str| {
        let head =
            client(&format!("curl -sS -m 20 -o /dev/null -D - -H 'origin: {origin}' {more} http://web.shop/item"));
        let mut lines = head.lines();
        let status = lines.next().unwrap_or_default().to_owned();
        let header =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
        (status, lines.filter_map(header).collect::<HashMap<_, _>>())
    };
    let preflight = "-X OPTIONS -H 'access-control-request-method: PUT' -H 'access-control-request-headers: x-token' \
        -H 'sec-fetch-mode: cors' -H 'sec-fetch-site: cross-site'";
    let (status, headers) = from("https://app.example", preflight);
    assert!(status.contains(" 200") || status.contains(" 204"), "{status}");
    for (name, value) in [
        ("access-control-allow-origin", "https://app.example"),
        ("access-control-allow-methods", "PUT"),
        ("access-control-allow-headers", "x-token"),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "60"),
    ] {
        assert_eq!(headers.get(name).map(String::as_str), Some(value), "{name}: {headers:?}");
    }
    let (status, headers) = from("https://app.example", "-X PUT -H 'x-token: 1'");
    assert!(status.contains(" 200"), "{status}");
    assert_eq!(headers.get("access-control-allow-origin").map(String::as_str), Some("https://app.example"));
    assert_eq!(headers.get("access-control-expose-headers").map(String::as_str), Some("x-left"));
    // A page of another origin is told nothing, so its browser keeps the answer from it.
    for more in [preflight, "-X PUT -H 'x-token: 1'"] {
        let (_, headers) = from("https://other.example", more);
        assert_eq!(headers.get("access-control-allow-origin"), None, "{more}");
    }
}
