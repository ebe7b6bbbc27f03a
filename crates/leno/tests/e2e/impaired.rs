//! A bad network between two nodes: what programs notice of it, and what the proxies say.

use std::process::Command;
use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_testkit::impaired_link::{Direction, ImpairedLink, Impairment, Tally};

use crate::clear::{CANARY, Watch};
use crate::dialogue::Dialogue;
use crate::stage::{Stage, eventually, run, skip};
use crate::steady::ECHO;
use crate::topology::{self, Server};

const NEEDS: &[&str] = &["/usr/bin/python3", "socat", "nsenter", "/dev/net/tun"];
/// Where pods outside the mesh are answered.
const PLAIN: &str = "echo.plain:7000";
/// The bridge of the stage's nodes.
const BRIDGE: &str = "nodes0";

/// Sends much on one connection to each address, and little on each of a hundred, all at the same time. Prints what did not come back
/// as it went.
const CLIENT: &str = r#"
import hashlib, json, socket, sys, threading
from concurrent.futures import ThreadPoolExecutor
word, size, addresses = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3:]
failed = []
def connect(address): return socket.create_connection((address, 7000), timeout=100)
def read(s, length):
    while length > 0:
        data = s.recv(65536)
        if not data: raise EOFError(f"{length} bytes are missing")
        yield data; length -= len(data)
def bulk(address):
    said = b"".join(b"%s %d\n" % (word, i) for i in range(size // (len(word) + 5)))
    with connect(address) as s:
        sender = threading.Thread(target=s.sendall, args=(said,)); sender.start()
        came = hashlib.sha256()
        for data in read(s, len(said)): came.update(data)
        sender.join()
    assert came.digest() == hashlib.sha256(said).digest(), "not what was sent"
def small(address, i):
    said = b"%s %d\n" % (word, i)
    with connect(address) as s:
        s.sendall(said)
        assert b"".join(read(s, len(said))) == said, "not what was sent"
def attempt(what, *args):
    try: what(*args)
    except Exception as e: failed.append(f"{what.__name__}{args}: {e!r}")
with ThreadPoolExecutor(12) as pool:
    if size:
        for address in addresses: pool.submit(attempt, bulk, address)
    for i in range(100): pool.submit(attempt, small, addresses[i % len(addresses)], i)
print(json.dumps(failed))"#;

/// Has one connection open. For each line that it is told it says a word on it, and prints what comes of that.
const KEPT: &str = r#"
import socket, sys
word, address = sys.argv[1].encode(), sys.argv[2]
def exchange(s):
    s.sendall(word)
    data = s.recv(len(word))
    if data != word: raise EOFError(f"not an answer: {data}")
try: s = socket.create_connection((address, 7000), timeout=100)
except Exception as e: print(repr(e), flush=True); sys.exit()
for _ in sys.stdin:
    try: exchange(s); print("answered", flush=True)
    except Exception as e: print(repr(e), flush=True); break
"#;

/// What it prints when an answer came.
const ANSWERED: &str = "answered";

/// The program with one connection. Where it could not connect it has ended, and says so in its answer.
fn keep_one(stage: &Stage, client: &str, server: &str) -> Dialogue {
    let address = stage.pod("mesh", server)["ips"][0].as_str().unwrap().to_owned();
    Dialogue::of_python(stage, client, KEPT, &[CANARY, &address])
}

/// A stage with a bad link between its nodes.
struct Scene {
    stage: Stage,
    link: ImpairedLink,
}

impl Scene {
    fn up() -> Self {
        let stage = topology::up(&[ECHO, Server { name: "local", node: "node-1", ..ECHO }], &[]);
        let fabric = NetworkNamespace::from_path(format!("/run/netns/{}", stage.netns("fabric"))).unwrap();
        let link = ImpairedLink::before_port(&fabric, BRIDGE, "node-2");
        Self { stage, link }
    }

    /// A pod sends so many bytes to a pod of the other node, by both families, and a hundred small requests. All of it comes back.
    #[track_caller]
    fn exchange(&self, bytes: usize) {
        let ips = self.stage.pod("mesh", "echo")["ips"].clone();
        let ips = ips.as_array().unwrap().iter().map(|ip| ip.as_str().unwrap());
        let bytes = bytes.to_string();
        let argv: Vec<_> = ["/usr/bin/python3", "-c", CLIENT, CANARY, &bytes].into_iter().chain(ips).collect();
        let ran = self.stage.exec("mesh/far", &argv).ok();
        let failed: Vec<String> = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!(failed, [""; 0]);
    }

    /// What has become of frames since the last call, by direction.
    fn tallies(&self) -> [Tally; 2] {
        [Direction::In, Direction::Out].map(|direction| self.link.tally(direction))
    }
}

#[test]
fn what_is_lost_is_sent_again() {
    if skip("what_is_lost_is_sent_again", NEEDS) {
        return;
    }
    let scene = Scene::up();
    let Scene { stage, link } = &scene;
    let watch = Watch::begin(stage, PLAIN);

    // Where both directions lose a fifth, a third of all repetitions fail. Now and then ten do so one after the other, and the proxy
    // takes its peer for dead.
    for (lost_in, lost_out, bytes) in [(1, 1, 1 << 20), (5, 5, 256 << 10), (20, 0, 64 << 10)] {
        for (direction, lost_percent) in [(Direction::In, lost_in), (Direction::Out, lost_out)] {
            link.impair(direction, Impairment { lost_percent, ..Impairment::default() });
        }
        scene.exchange(bytes);
        for (tally, lost_percent) in scene.tallies().into_iter().zip([lost_in, lost_out]) {
            assert_eq!(tally.lost > 0, lost_percent > 0, "{tally:?}");
        }
    }

    link.mend();
    watch.end(stage);
}

#[test]
fn what_is_late_doubled_or_overtaken_comes_once_and_in_order() {
    if skip("what_is_late_doubled_or_overtaken_comes_once_and_in_order", NEEDS) {
        return;
    }
    let scene = Scene::up();
    let Scene { stage, link } = &scene;
    let watch = Watch::begin(stage, PLAIN);

    let delay = Duration::from_millis(1)..Duration::from_millis(8);
    link.impair_both(&Impairment { doubled_percent: 5, delay, ..Impairment::default() });
    scene.exchange(1 << 20);
    for tally in scene.tallies() {
        assert!(tally.doubled > 0 && tally.overtaken > 0, "{tally:?}");
    }

    link.mend();
    watch.end(stage);
}

/// What the link between the nodes carries as a packet, at most: what every IPv6 network must carry.
const SMALL_MTU_BYTES: usize = 1280;

#[test]
fn a_small_mtu_is_found_where_the_network_tells_it() {
    if skip("a_small_mtu_is_found_where_the_network_tells_it", &[NEEDS, &["ip"]].concat()) {
        return;
    }
    let scene = Scene::up();
    let Scene { stage, .. } = &scene;
    for node in ["node-1", "node-2"] {
        let mtu = SMALL_MTU_BYTES.to_string();
        in_netns(stage, node, &["ip", "link", "set", "fabric0", "mtu", &mtu]);
    }
    let watch = Watch::begin(stage, PLAIN);
    // What was sent before.
    scene.tallies();

    scene.exchange(256 << 10);
    for tally in scene.tallies() {
        // Full packets are a few bytes smaller where the data ends sooner.
        assert!((SMALL_MTU_BYTES - 100..=SMALL_MTU_BYTES).contains(&tally.largest_packet_bytes), "{tally:?}");
    }
    watch.end(stage);
}

/// The handshake of a tunnel is larger than a packet. Without the mesh, small requests would pass.
#[test]
fn where_large_packets_vanish_small_and_large_requests_pass() {
    if skip("where_large_packets_vanish_small_and_large_requests_pass", NEEDS) {
        return;
    }
    let scene = Scene::up();
    let Scene { stage, link } = &scene;
    let watch = Watch::begin(stage, PLAIN);

    link.impair_both(&Impairment { largest_packet_bytes: SMALL_MTU_BYTES, ..Impairment::default() });
    for bytes in [0, 256 << 10] {
        scene.exchange(bytes);
        for tally in scene.tallies() {
            assert!(tally.too_large > 0 && tally.largest_packet_bytes <= SMALL_MTU_BYTES, "{tally:?}");
        }
    }
    watch.end(stage);
}

/// To a pod of the node behind the link and from one: what is lost in one direction is the question of one and the answer of the other.
const BOTH_WAYS: [(&str, &str); 2] = [("mesh/far", "echo"), ("mesh/near", "local")];

#[test]
fn a_direction_that_loses_all_ends_connections_with_a_reason() {
    if skip("a_direction_that_loses_all_ends_connections_with_a_reason", NEEDS) {
        return;
    }
    let scene = Scene::up();
    let Scene { stage, link } = &scene;
    let watch = Watch::begin(stage, PLAIN);
    let start = |(client, server)| keep_one(stage, client, server);
    let mut kept = BOTH_WAYS.map(start);
    for kept in &mut kept {
        kept.ask();
        assert_eq!(kept.answer(), ANSWERED);
    }
    let nothing = Impairment { lost_percent: 100, ..Impairment::default() };

    // For as long as a few repetitions take.
    link.impair(Direction::In, nothing.clone());
    kept.iter_mut().for_each(Dialogue::ask);
    let mut lost = 0;
    eventually("frames to be lost", || {
        lost += link.tally(Direction::In).lost;
        if lost > 5 { Ok(()) } else { Err(format!("{lost} are")) }
    });
    link.mend();
    for kept in &mut kept {
        assert_eq!(kept.answer(), ANSWERED);
    }

    // For longer than anybody waits: those who are connected and those who come now.
    link.impair(Direction::In, nothing);
    kept.iter_mut().for_each(Dialogue::ask);
    let mut late = BOTH_WAYS.map(start);
    late.iter_mut().for_each(Dialogue::ask);
    for kept in kept.iter_mut().chain(&mut late) {
        let said = kept.answer();
        assert!(said.starts_with("ConnectionResetError"), "{said}");
    }
    for node in ["node-1", "node-2"] {
        let log = refusals_told(stage, node, 2);
        assert!(log.contains("pod or node may be gone"), "{log}");
    }

    link.mend();
    scene.exchange(0);
    watch.end(stage);
}

#[test]
fn a_reset_from_the_network_ends_connections_with_a_reason() {
    if skip("a_reset_from_the_network_ends_connections_with_a_reason", &[NEEDS, &["nft"]].concat()) {
        return;
    }
    let stage = &topology::up(&[ECHO], &[]);
    let watch = Watch::begin(stage, PLAIN);
    let mut kept = keep_one(stage, "mesh/far", "echo");
    kept.ask();
    assert_eq!(kept.answer(), ANSWERED);

    // A box in the middle that ends what it does not like.
    let rule = "chain pass { type filter hook forward priority 0; tcp dport 15008 reject with tcp reset; }";
    in_netns(stage, "node-1", &["nft", &format!("table inet middle {{ {rule}; }}")]);
    kept.ask();
    let mut late = keep_one(stage, "mesh/far", "echo");
    late.ask();
    for kept in [&mut kept, &mut late] {
        let said = kept.answer();
        assert!(said.starts_with("ConnectionResetError"), "{said}");
    }
    let log = refusals_told(stage, "node-1", 2);
    assert!(log.contains("connection reset") && log.contains("refused"), "{log}");

    in_netns(stage, "node-1", &["nft", "delete table inet middle"]);
    let mut next = keep_one(stage, "mesh/far", "echo");
    next.ask();
    assert_eq!(next.answer(), ANSWERED);
    watch.end(stage);
}

/// The lines of a node's log on connections of its pods that ended with an error, once there are so many.
#[track_caller]
fn refusals_told(stage: &Stage, node: &str, wanted: usize) -> String {
    let errors = |log: &str| {
        let lines = log.lines().filter(|line| line.contains("direction=\"outbound\"") && line.contains(" error=\""));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let log = stage.told(&["logs", "--node", node], |log| errors(log).len() >= wanted);
    errors(&log).join("\n")
}

/// Runs a program in a node's network.
#[track_caller]
fn in_netns(stage: &Stage, node: &str, argv: &[&str]) {
    let netns = format!("--net=/run/netns/{}", stage.netns(node));
    run(Command::new("nsenter").arg(netns).args(argv)).ok();
}
