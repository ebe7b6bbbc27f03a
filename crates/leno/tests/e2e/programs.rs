//! Unmodified programs, with both ends, one end or no end in the mesh, across nodes and within one, over IPv4 and IPv6,
//! with Leno's node proxy and with Istio's.

use std::process::Child;

use crate::stage::{Stage, eventually, skip, ztunnel};
use crate::topology::{self, PAIRS, Readiness, Server};

const NGINX: &str = r#"d=$(mktemp -d); head -c 1048576 /dev/urandom > $d/blob
cat > $d/conf <<'EOF'
user root; worker_processes 1; error_log stderr; pid nginx.pid;
events { worker_connections 4096; }
http { access_log off; server { listen 8080; listen [::]:8080; root .; location = /hello { return 200 "hello\n"; } } }
EOF
exec nginx -e stderr -p $d -c $d/conf -g 'daemon off;'"#;

const REDIS: &str = "d=$(mktemp -d); exec redis-server --dir $d --port 6379 --bind 0.0.0.0 :: --protected-mode no --save '' --appendonly no";

const POSTGRES: &str = r#"bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1); d=$(mktemp -d); chown postgres $d
as="setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=$d"
$as $bin/initdb -D $d/db -A trust -U postgres >/dev/null
echo "host all all all trust" >> $d/db/pg_hba.conf
exec $as $bin/postgres -D $d/db -c listen_addresses='*' -c unix_socket_directories=$d -c fsync=off"#;

const IPERF: &str = "exec iperf3 -s -p 5201";

/// Speaks first, then echoes.
const BANNER: &str = "exec socat TCP6-LISTEN:7000,ipv6only=0,reuseaddr,fork,backlog=1024 SYSTEM:'echo ready; exec cat'";

/// A bidirectional gRPC stream that answers each message with its length.
const GRPC: &str = r#"exec /usr/bin/python3 -c '
import grpc, concurrent.futures as f
class H(grpc.GenericRpcHandler):
    def service(self, d):
        def stream(it, ctx):
            for m in it: yield str(len(m)).encode()
        return grpc.stream_stream_rpc_method_handler(stream)
s = grpc.server(f.ThreadPoolExecutor(16)); s.add_generic_rpc_handlers((H(),))
assert s.add_insecure_port("[::]:9000"); s.start(); s.wait_for_termination()'"#;

const GRPC_CLIENT: &str = r#"
import grpc, sys
c = grpc.insecure_channel(sys.argv[1])
sizes = [1, 100, 65536, 1 << 20, 0, 7] * 5
got = [int(m) for m in c.stream_stream("/t.T/S")(iter([b"x" * n for n in sizes]), timeout=60)]
assert got == sizes, got
print("ok")"#;

/// Opens 500 connections, leaves them idle while a 501st works, then uses each.
const IDLE_CLIENT: &str = r#"
import socket, sys
host, port = sys.argv[1], 7000
socks = []
for _ in range(500):
    s = socket.create_connection((host, port), timeout=60); socks.append(s)
for s in socks:
    assert s.makefile("rb").readline() == b"ready\n"
for i, s in enumerate(socks):
    s.sendall(b"%d\n" % i)
for i, s in enumerate(socks):
    want = b"%d\n" % i; got = b""
    while len(got) < len(want):
        d = s.recv(99); assert d, i
        got += d
    assert got == want
print("ok")"#;

const PROGRAMS: &[&str] = &[
    "nginx",
    "curl",
    "redis-server",
    "redis-benchmark",
    "psql",
    "pgbench",
    "setpriv",
    "iperf3",
    "ss",
    "socat",
    "/usr/bin/python3",
    "nsenter",
    "/usr/lib/python3/dist-packages/grpc/__init__.py",
];

/// Servers and what is done with them, in parts that don't need each other, so that they can run at the same time.
struct Part {
    servers: &'static [Server<'static>],
    check: fn(&Stage),
}

const REQUESTS: Part = Part {
    servers: &[server("nginx", 8080, NGINX), server("redis", 6379, REDIS), server("postgres", 5432, POSTGRES)],
    check: requests,
};

const STREAMS: Part = Part { servers: &[server("banner", 7000, BANNER), server("grpc", 9000, GRPC)], check: streams };

const BULK: Part = Part {
    servers: &[
        Server { readiness: Readiness::Listens, ..server("iperf", 5201, IPERF) },
        server("banner", 7000, BANNER),
    ],
    check: bulk,
};

const fn server(name: &'static str, port: u16, command: &'static str) -> Server<'static> {
    Server { name, node: "node-2", port, readiness: Readiness::Accepts, command }
}

/// The name, the ClusterIPs of both families and the pods' addresses: all ways to name the destination.
fn addresses(stage: &Stage, client: &str, namespace: &str, service: &str) -> Vec<String> {
    let host = format!("{service}.{namespace}");
    let v6 =
        stage.sh(client, &format!("getent ahostsv6 {host} | awk '{{print $1; exit}}'")).ok().stdout.trim().to_owned();
    assert!(v6.contains(':') && !v6.starts_with("::ffff:"), "{host} has no IPv6 address: {v6:?}");
    let mut all = vec![host, v6];
    all.extend(
        stage.pod(namespace, service)["ips"].as_array().unwrap().iter().map(|ip| ip.as_str().unwrap().to_owned()),
    );
    assert_eq!(all.len(), 4, "name, IPv6 ClusterIP, both pod addresses: {all:?}");
    all
}

fn in_url(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn requests(stage: &Stage) {
    for (client, namespace) in PAIRS {
        for host in addresses(stage, client, namespace, "nginx") {
            let url = format!("http://{}:8080", in_url(&host));
            let hello = stage.exec(client, &["curl", "-sS", "-m", "20", &format!("{url}/hello")]).ok();
            assert_eq!(hello.stdout, "hello\n", "{client} -> {host}");
            let keep = stage.sh(client, &format!("curl -sS -m 60 {url}/blob {url}/blob {url}/blob | wc -c")).ok();
            assert_eq!(keep.stdout.trim(), "3145728", "{client} -> {host}");
        }
        for host in addresses(stage, client, namespace, "redis") {
            let bench = [
                "redis-benchmark",
                "-h",
                &host,
                "-n",
                "2000",
                "-c",
                "20",
                "-P",
                "4",
                "-t",
                "set,get,lpush,lrange_100",
                "-d",
                "1000",
                "-q",
            ];
            let ran = stage.exec(client, &bench).ok();
            assert!(ran.stdout.contains("GET: ") && !ran.stdout.contains("rror"), "{client} -> {host}: {ran:?}");
        }
        let pg = |host: &str, line: &str| {
            stage.sh(client, &format!("PGHOST={host} PGUSER=postgres PGCONNECT_TIMEOUT=20 {line}")).ok()
        };
        for host in addresses(stage, client, namespace, "postgres") {
            assert_eq!(pg(&host, "psql -Atc 'select count(*) from generate_series(1,200000)'").stdout.trim(), "200000");
        }
        pg(&format!("postgres.{namespace}"), "pgbench -i -q postgres 2>&1");
        let bench = pg(&format!("postgres.{namespace}"), "pgbench -c 4 -t 25 -C postgres 2>&1");
        assert!(bench.stdout.contains("number of failed transactions: 0"), "{}", bench.stdout);
    }
}

fn streams(stage: &Stage) {
    for (client, namespace) in PAIRS {
        for host in addresses(stage, client, namespace, "banner") {
            let address = format!("TCP:{}:7000", in_url(&host));
            let said = stage.sh(client, &format!("(sleep 0.2; echo pong) | socat -t 10 - {address}")).ok();
            assert_eq!(said.stdout, "ready\npong\n", "{client} -> {host}");
        }
        for host in addresses(stage, client, namespace, "grpc") {
            let ran =
                stage.exec(client, &["/usr/bin/python3", "-c", GRPC_CLIENT, &format!("{}:9000", in_url(&host))]).ok();
            assert_eq!(ran.stdout.trim(), "ok", "{client} -> {host}");
        }
    }
    idle_connections(stage);
}

fn bulk(stage: &Stage) {
    for (client, namespace) in PAIRS {
        for host in addresses(stage, client, namespace, "iperf").into_iter().take(2) {
            for direction in [&[][..], &["-R"], &["-P", "4"]] {
                let ran = iperf(stage, client, namespace, &host, direction);
                assert!(ran > 10e6, "{client} -> {host} {direction:?}: {ran} bit/s");
            }
        }
    }
    a_gibibyte(stage);
}

/// Bits per second received.
fn iperf(stage: &Stage, client: &str, namespace: &str, host: &str, flags: &[&str]) -> f64 {
    let listener = || stage.sh(&format!("{namespace}/iperf"), "ss -Htlne sport = :5201").ok().stdout;
    let before = listener();
    let mut argv = vec!["iperf3", "-J", "-t", "1", "-p", "5201", "-c", host];
    argv.extend(flags);
    let ran = stage.exec(client, &argv);
    // iperf3 closes its listener after each test. A client that connects at that moment is reset.
    eventually("iperf3 to listen anew", || {
        let now = listener();
        if now.is_empty() || now == before { Err(now) } else { Ok(()) }
    });
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    report["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap_or_else(|| panic!("{client} -> {host}: {}", report["error"]))
}

fn idle_connections(stage: &Stage) {
    for (client, namespace) in PAIRS {
        let ran = stage.exec(client, &["/usr/bin/python3", "-c", IDLE_CLIENT, &format!("banner.{namespace}")]).ok();
        assert_eq!(ran.stdout.trim(), "ok", "{client} -> {namespace}");
    }
}

fn a_gibibyte(stage: &Stage) {
    let sum = |out: &str| out.split_whitespace().next().map(str::to_owned);
    for (client, namespace) in [("mesh/far", "mesh"), ("plain/outsider", "mesh")] {
        // Both ends hash the stream while they pass it on.
        let pod = format!("{namespace}/banner");
        let server: Child = stage.spawn(
            &pod,
            &["bash", "-c", "head -c 1073741824 /dev/urandom | tee >(sha256sum >&2) | socat -u - TCP6-LISTEN:7100,ipv6only=0,reuseaddr"],
        );
        let host = stage.pod(namespace, "banner")["ips"][0].as_str().unwrap().to_owned();
        eventually("the sender to listen", || {
            let listening = stage.sh(&pod, "grep -q ':1BBC .* 0A ' /proc/net/tcp6").code == 0;
            listening.then_some(()).ok_or_else(|| "not listening".to_owned())
        });
        let received = stage.sh(client, &format!("socat -u TCP:{host}:7100 - | sha256sum")).ok();
        let sent = server.wait_with_output().unwrap();
        let sent = String::from_utf8_lossy(&sent.stderr).into_owned();
        assert!(sum(&sent).is_some() && sum(&received.stdout) == sum(&sent), "{client}: {} / {sent}", received.stdout);
    }
}

/// Connections between enrolled pods are mutual TLS. That they work would not prove it.
fn traffic_was_encrypted(stage: &Stage) {
    eventually("a connection by mutual TLS from mesh/far among the metrics", || {
        let metrics = stage.node_get("node-1", 15020, "/metrics");
        let is_encrypted = |line: &str| {
            line.starts_with("istio_tcp_connections_opened_total")
                && line.contains("connection_security_policy=\"mutual_tls\"")
                && line.contains("source_principal=\"spiffe://cluster.local/ns/mesh/sa/far\"")
        };
        if metrics.lines().any(is_encrypted) { Ok(()) } else { Err(metrics) }
    });
}

fn through_leno(test: &str, part: &Part) {
    if skip(test, PROGRAMS) {
        return;
    }
    let stage = topology::up(part.servers, &[]);
    (part.check)(&stage);
    traffic_was_encrypted(&stage);
}

#[test]
fn unmodified_programs_work_through_leno() {
    through_leno("unmodified_programs_work_through_leno", &REQUESTS);
}

#[test]
fn unmodified_programs_with_streams_work_through_leno() {
    through_leno("unmodified_programs_with_streams_work_through_leno", &STREAMS);
}

#[test]
fn unmodified_programs_with_bulk_work_through_leno() {
    through_leno("unmodified_programs_with_bulk_work_through_leno", &BULK);
}

fn with_ztunnel(test: &str, nodes: &[&str]) {
    let Some(path) = ztunnel(test) else { return };
    if skip(test, PROGRAMS) {
        return;
    }
    let flags: Vec<String> = nodes.iter().map(|node| format!("--node-proxy={node}={}", path.display())).collect();
    for part in [&REQUESTS, &STREAMS, &BULK] {
        let stage = topology::up(part.servers, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        (part.check)(&stage);
        traffic_was_encrypted(&stage);
    }
}

#[test]
fn unmodified_programs_work_from_leno_to_ztunnel() {
    with_ztunnel("unmodified_programs_work_from_leno_to_ztunnel", &["node-2"]);
}

#[test]
fn unmodified_programs_work_from_ztunnel_to_leno() {
    with_ztunnel("unmodified_programs_work_from_ztunnel_to_leno", &["node-1"]);
}

#[test]
fn unmodified_programs_work_with_ztunnel_on_both_nodes() {
    with_ztunnel("unmodified_programs_work_with_ztunnel_on_both_nodes", &["node-1", "node-2"]);
}
