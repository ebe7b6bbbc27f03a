//! gRPC through a waypoint on a stage: grpcurl, whose gRPC is Go's, asks a server of gRPC's own library.
//!
//! Runs where `LENO_GRPCURL` names it: `go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3`.

use std::path::Path;

use leno_testkit::skips;

use crate::shop::SHOP;
use crate::stage::{Stage, eventually, skip};

const PROTO: &str = r#"
syntax = "proto3";
package test;
message Text { string text = 1; }
service Calls {
  rpc Unary(Text) returns (Text);
  rpc Many(Text) returns (stream Text);
  rpc Gather(stream Text) returns (Text);
  rpc Talk(stream Text) returns (stream Text);
  rpc Fails(Text) returns (Text);
  rpc Erase(Text) returns (Text);
  rpc Unserved(Text) returns (Text);
}
service Others { rpc Unary(Text) returns (Text); }
"#;

const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: shop}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec: {selector: {app: next}, ports: [{name: grpc, port: 90, targetPort: 9000}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: calls, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: calls}]
  rules:
  - matches: [{method: {service: test.Calls, method: Unary}, headers: [{name: x-version, value: next}]}]
    backendRefs: [{name: next, port: 90}]
  - matches: [{method: {service: test.Calls}}]
    backendRefs: [{name: calls, port: 90}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: kept, namespace: shop}
spec:
  targetRefs: [{kind: Service, group: '', name: calls}]
  action: DENY
  rules: [{to: [{operation: {paths: ['/test.Calls/Erase']}}]}]
"#;

/// A server that says its name before what it repeats.
const SERVER: &str = r#"
---
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: shop, labels: {app: NAME}}
spec:
  nodeName: node-2
  containers:
  - name: c
    command:
    - bash
    - -c
    - |
      exec /usr/bin/python3 -c '
      import concurrent.futures, grpc
      def text(said): return b"\n" + bytes([len(said)]) + said
      def unary(said, context): return text(b"NAME " + said[2:])
      def many(said, context):
          for number in b"123": yield text(said[2:] + bytes([number]))
      def gather(all, context): return text(b"".join(said[2:] for said in all))
      def fails(said, context):
          context.set_trailing_metadata((("x-why", "because"),))
          context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
      methods = {
          "Unary": grpc.unary_unary_rpc_method_handler(unary), "Erase": grpc.unary_unary_rpc_method_handler(unary),
          "Many": grpc.unary_stream_rpc_method_handler(many), "Gather": grpc.stream_unary_rpc_method_handler(gather),
          "Talk": grpc.stream_stream_rpc_method_handler(lambda all, context: all),
          "Fails": grpc.unary_unary_rpc_method_handler(fails)}
      class Calls(grpc.GenericRpcHandler):
          def service(self, call): return methods.get(call.method.rsplit("/", 1)[1])
      server = grpc.server(concurrent.futures.ThreadPoolExecutor(4)); server.add_generic_rpc_handlers((Calls(),))
      assert server.add_insecure_port("0.0.0.0:9000"); server.start(); server.wait_for_termination()'
"#;

#[test]
fn grpcurl_calls_through_a_waypoint() {
    const NAME: &str = "grpcurl_calls_through_a_waypoint";
    let Some(program) = std::env::var_os("LENO_GRPCURL") else {
        skips::skip(NAME, "needs LENO_GRPCURL=PATH of grpcurl, a program of Go's");
        return;
    };
    if skip(NAME, &["/usr/bin/python3", "/usr/lib/python3/dist-packages/grpc/__init__.py"]) {
        return;
    }
    let protos = tempfile::tempdir().unwrap();
    std::fs::write(protos.path().join("calls.proto"), PROTO).unwrap();
    let servers = SERVER.replace("NAME", "calls") + &SERVER.replace("NAME", "next");
    let stage = Stage::up(&[("shop.yaml", SHOP), ("mesh.yaml", MESH), ("servers.yaml", &servers)], &["--nodes", "2"]);
    let (program, protos) = (Path::new(&program).display(), protos.path().display());
    let call = |method: &str, said: &str, more: &str| {
        stage.sh(
            "shop/client",
            &format!(
                "{program} -plaintext -max-time 20 -import-path {protos} -proto calls.proto -emit-defaults {more} \
                 -d '{said}' calls.shop:90 test.{method}"
            ),
        )
    };
    // What the answers say, one after the other.
    let texts = |method: &str, said: &[&str], more: &str| {
        let messages: String = said.iter().map(|text| format!("{{\"text\":\"{text}\"}}")).collect();
        let told = call(method, &messages, more).ok().stdout;
        let texts =
            told.split("\"text\": \"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default().to_owned());
        texts.collect::<Vec<_>>()
    };
    eventually("the service answers", || {
        let ran = call("Calls/Unary", "{\"text\":\"a\"}", "");
        if ran.code == 0 { Ok(()) } else { Err(format!("{ran:?}")) }
    });
    assert_eq!(texts("Calls/Unary", &["a"], ""), ["calls a"]);
    assert_eq!(texts("Calls/Many", &["a"], ""), ["a1", "a2", "a3"]);
    assert_eq!(texts("Calls/Gather", &["a", "b", "c"], ""), ["abc"]);
    assert_eq!(texts("Calls/Talk", &["a", "b", "c"], ""), ["a", "b", "c"]);
    // One rule is about a header, and about one method.
    assert_eq!(texts("Calls/Unary", &["a"], "-H 'x-version: next'"), ["next a"]);
    assert_eq!(texts("Calls/Gather", &["a"], "-H 'x-version: next'"), ["a"]);

    // The program's own error has a head and no trailers after it; what it says besides arrives with it.
    let failed = call("Calls/Fails", "{}", "-v");
    assert!(failed.stdout.contains("x-why: because"), "{failed:?}");
    // grpcurl ends with 64 more than the status.
    for (method, code, status, why) in [
        ("Calls/Fails", 9, "FailedPrecondition", "not now"),
        ("Calls/Unserved", 12, "Unimplemented", "Method not found!"),
        // The waypoint's answers.
        ("Calls/Erase", 7, "PermissionDenied", "RBAC: access denied"),
        ("Others/Unary", 12, "Unimplemented", "no rule of the routes"),
    ] {
        let ran = call(method, "{}", "");
        assert_eq!(ran.code, 64 + code, "{method}: {ran:?}");
        assert!(ran.stderr.contains(&format!("Code: {status}")) && ran.stderr.contains(why), "{method}: {ran:?}");
    }
    for status in ["0", "7", "9", "12"] {
        let label = format!("grpc_response_status=\"{status}\"");
        stage.told(&["metrics", "--metric", "istio_requests_total"], |counted| counted.contains(&label));
    }
}
