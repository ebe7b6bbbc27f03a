//! One node proxy replaces another, which drains or is killed, while programs go on opening connections. Nothing that they say
//! can be read meanwhile.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clear::{CANARY, Watch};
use crate::stage::{PATIENCE, Stage, eventually, run, script, skip, ztunnel};
use crate::topology::{self, Readiness, Server};

const NEEDS: &[&str] = &["/usr/bin/python3", "socat"];
/// Where pods outside the mesh are answered.
const PLAIN: &str = "echo.plain:7000";

const ECHO: Server<'static> = Server {
    name: "echo",
    node: "node-2",
    port: 7000,
    readiness: Readiness::Accepts,
    command: r#"exec /usr/bin/python3 -c '
import asyncio
async def serve(r, w):
    try:
        while data := await r.read(4096): w.write(data); await w.drain()
    except OSError: pass
    w.close()
async def main():
    async with await asyncio.start_server(serve, port=7000, backlog=1024) as s: await s.serve_forever()
asyncio.run(main())'"#,
};

/// Opens connections at a steady rate, each for one exchange, resolves a name all the time, and keeps one connection open.
/// Each line on standard input is answered with what it has seen since the last one. All that it says is one word.
const CLIENT: &str = r#"
import asyncio, json, socket, sys, threading, time
name, rate, word = sys.argv[1], float(sys.argv[2]), sys.argv[3].encode()
address = socket.gethostbyname(name)
none = lambda: dict(begun=0, opened=0, failed=[], slowest=0.0, asked=0, unanswered=[], slowest_answer=0.0, kept=0, lost=[])
seen, running = none(), set()
async def one():
    begun = time.monotonic()
    try:
        async with asyncio.timeout(30):
            r, w = await asyncio.open_connection(address, 7000)
            w.write(word); assert await r.readexactly(len(word)) == word
            w.close()
        seen["opened"] += 1
    except Exception as e: seen["failed"].append(repr(e))
    seen["slowest"] = max(seen["slowest"], time.monotonic() - begun)
async def kept():
    try:
        r, w = await asyncio.open_connection(address, 7000)
        while True:
            w.write(word); assert await r.readexactly(len(word)) == word
            seen["kept"] += 1; await asyncio.sleep(0.02)
    except Exception as e: seen["lost"].append(repr(e))
def names():
    while True:
        begun = time.monotonic()
        try: socket.getaddrinfo(name, 7000, socket.AF_INET); seen["asked"] += 1
        except OSError as e: seen["unanswered"].append(repr(e))
        seen["slowest_answer"] = max(seen["slowest_answer"], time.monotonic() - begun)
        time.sleep(0.01)
def orders():
    for _ in sys.stdin:
        told = json.dumps(seen | dict(at_once=len(running)))
        seen.update(none())
        print(told, flush=True)
async def main():
    for work in names, orders: threading.Thread(target=work, daemon=True).start()
    keeping = asyncio.create_task(kept())
    due = time.monotonic()
    while True:
        due += 1 / rate
        await asyncio.sleep(max(0, due - time.monotonic()))
        seen["begun"] += 1
        task = asyncio.create_task(one()); running.add(task); task.add_done_callback(running.discard)
asyncio.run(main())"#;

struct Client {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

#[derive(Debug, serde::Deserialize)]
struct Seen {
    begun: usize,
    opened: u32,
    failed: Vec<String>,
    slowest: f64,
    asked: u32,
    unanswered: Vec<String>,
    slowest_answer: f64,
    kept: u32,
    lost: Vec<String>,
    /// Connections that are open or being opened now, without the kept one.
    at_once: usize,
}

impl Client {
    fn start(stage: &Stage) -> Self {
        let rate = if is_soak() { "500" } else { "100" };
        let mut child = stage.spawn("mesh/far", &["/usr/bin/python3", "-c", CLIENT, "echo.mesh", rate, CANARY]);
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// What the client has seen since the last question.
    fn seen(&mut self) -> Seen {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// What the client sees until it has opened this many more connections, got DNS answers, and used the kept connection.
    #[track_caller]
    fn watch(&mut self, connections: u32) -> Seen {
        let all = self.seen();
        self.watch_on(all, connections)
    }

    /// The same, with what it has seen already.
    #[track_caller]
    fn watch_on(&mut self, mut all: Seen, connections: u32) -> Seen {
        let begun = std::time::Instant::now();
        while all.opened < connections || all.asked < 10 || (all.kept < 10 && all.lost.is_empty()) {
            assert!(begun.elapsed() < PATIENCE, "{all:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
            all.add(self.seen());
        }
        all
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Seen {
    fn add(&mut self, more: Self) {
        self.begun += more.begun;
        self.opened += more.opened;
        self.asked += more.asked;
        self.kept += more.kept;
        self.slowest = self.slowest.max(more.slowest);
        self.slowest_answer = self.slowest_answer.max(more.slowest_answer);
        self.failed.extend(more.failed);
        self.unanswered.extend(more.unanswered);
        self.lost.extend(more.lost);
        self.at_once = more.at_once;
    }
}

/// Whether the machine is reserved for this test.
fn is_soak() -> bool {
    std::env::var_os("LENO_SOAK").is_some()
}

/// The process id of a node's proxy, once it is ready.
fn proxy(stage: &Stage, node: &str, but: Option<i32>) -> i32 {
    stage.wait("the node's proxy", |ps| {
        let found = ps["nodes"].as_array()?.iter().find(|n| n["name"] == node)?;
        i32::try_from(found["pid"].as_i64()?).ok().filter(|pid| found["ready"] == true && Some(*pid) != but)
    })
}

const NODES: [&str; 2] = ["node-1", "node-2"];

/// A stage whose proxies drain for longer than any test lasts: one that ends cuts nothing, however slow the machine is.
struct Scene {
    stage: Stage,
    /// Becomes such a proxy.
    program: PathBuf,
    /// Holds the program.
    dir: tempfile::TempDir,
}

impl Scene {
    fn up() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leno = env!("CARGO_BIN_EXE_leno");
        let program =
            program(dir.path(), "proxy", &format!("export CONNECTION_TERMINATION_DEADLINE=600s\nexec {leno} node"));
        let flags = NODES.map(|node| format!("--node-proxy={node}={}", program.display()));
        let stage = topology::up(&[ECHO], &[&flags[0], &flags[1]]);
        Self { stage, program, dir }
    }
}

/// A program that is a shell script.
fn program(dir: &Path, name: &str, lines: &str) -> PathBuf {
    let path = dir.join(name);
    script(&path, lines);
    path
}

/// Ends the proxies of both nodes at once. Returns what a program sees from then until the next proxies have served for a while,
/// and how many connections it had open at that moment or began before both were gone.
fn ended(stage: &Stage, client: &mut Client, signal: Signal) -> (Seen, usize) {
    let before = client.watch(100);
    assert_eq!((before.failed.len(), before.unanswered.len()), (0, 0), "before anything happened: {before:?}");
    let old = NODES.map(|node| proxy(stage, node, None));
    let now = client.seen();
    assert_eq!((now.failed.len(), now.unanswered.len()), (0, 0), "before anything happened: {now:?}");
    for pid in old {
        kill(Pid::from_raw(pid), signal).unwrap();
    }
    if signal == Signal::SIGKILL {
        eventually("the end of both", || if old.iter().any(|pid| runs(*pid)) { Err(String::new()) } else { Ok(()) });
    }
    let seen = client.seen();
    let in_hand = now.at_once + seen.begun;
    for (node, old) in NODES.into_iter().zip(old) {
        proxy(stage, node, Some(old));
    }
    let seen = client.watch_on(seen, 300);
    eprintln!("{signal}: {seen:?}");
    for node in NODES {
        let log = stage.node_log(node);
        log.lines().filter(|line| line.contains("error=")).for_each(|line| eprintln!("{node}: {line}"));
    }
    (seen, in_hand)
}

/// Whether a process has its descriptors yet: all its threads have them, and on a busy machine a killed one may end long after the
/// first.
fn runs(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    // The state comes after the name (proc_pid_stat(5)).
    let is_gone = |stat: &str| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
    threads.into_iter().any(|thread| !is_gone(&std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default()))
}

fn in_good_order(stage: &Stage, rounds: usize) {
    let watch = Watch::begin(stage, PLAIN);
    let mut client = Client::start(stage);
    for _ in 0..rounds {
        let (seen, _) = ended(stage, &mut client, Signal::SIGTERM);
        assert_eq!(seen.failed, [""; 0], "connections lost: {seen:?}");
        assert_eq!(seen.unanswered, [""; 0], "questions unanswered: {seen:?}");
        assert_eq!(seen.lost, [""; 0], "the connection that lasts has the drain's time: {seen:?}");
    }
    watch.end(stage);
}

#[test]
fn a_proxy_that_drains_costs_no_connection() {
    if skip("a_proxy_that_drains_costs_no_connection", NEEDS) {
        return;
    }
    in_good_order(&Scene::up().stage, 2);
}

#[test]
fn status_tells_of_each_proxy_and_of_those_that_drain() {
    if skip("status_tells_of_each_proxy_and_of_those_that_drain", NEEDS) {
        return;
    }
    let Scene { stage, .. } = &Scene::up();
    let mut client = Client::start(stage);
    let status = || {
        let ran = run(stage.command("status").args(["-o", "json"]));
        serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
    };
    let before = status();
    for node in ["node-1", "node-2"] {
        let proxy = &before["nodes"][node]["proxy"];
        assert_eq!(
            (&proxy["in_sync"], &proxy["version"]),
            (&true.into(), &env!("CARGO_PKG_VERSION").into()),
            "{before}"
        );
        assert!(proxy["certificates"]["first_ends"].as_str().is_some_and(|end| end.ends_with('Z')), "{before}");
        assert_eq!(proxy["pods"], before["nodes"][node]["in_mesh"], "{before}");
        assert_eq!(before["nodes"][node]["draining"], 0, "{before}");
    }
    ended(stage, &mut client, Signal::SIGTERM);
    let draining = status();
    for node in ["node-1", "node-2"] {
        let told = &draining["nodes"][node];
        assert_eq!(told["draining"], 1, "{draining}");
        // The one that is kept, and such as were just being opened.
        assert!(told["proxy"]["draining_connections"].as_u64() >= Some(1), "{draining}");
        assert_eq!(told["proxy"]["in_sync"], true, "the next one follows: {draining}");
    }
}

/// What a program sees while a node's proxy is exchanged for `program`, and the exit status and words of that.
fn exchanged(stage: &Stage, client: &mut Client, node: &str, program: &Path) -> (Seen, bool, String) {
    let old = proxy(stage, node, None);
    let ran = run(stage.command("upgrade").arg(format!("--node-proxy={node}={}", program.display())));
    proxy(stage, node, Some(old));
    (client.watch(200), ran.code == 0, ran.stdout + &ran.stderr)
}

#[test]
fn an_upgrade_costs_no_connection_whether_it_works_or_not() {
    if skip("an_upgrade_costs_no_connection_whether_it_works_or_not", NEEDS) {
        return;
    }
    let Scene { stage, program: next, dir } = &Scene::up();
    let mut client = Client::start(stage);
    client.watch(100);
    let dies = &program(dir.path(), "dies", "exit 7");
    let hangs = &program(dir.path(), "hangs", "exec sleep 1000");
    let watch = Watch::begin(stage, PLAIN);
    for node in NODES {
        for (program, works, word) in [(dies, false, "exit code 7"), (hangs, false, "in time"), (next, true, "serves")]
        {
            let (seen, worked, said) = exchanged(stage, &mut client, node, program);
            eprintln!("{node}: {said}{seen:?}");
            assert!(worked == works && said.contains(word), "{said}");
            assert_eq!(seen.failed, [""; 0], "connections lost: {seen:?}");
            assert_eq!(seen.unanswered, [""; 0], "questions unanswered: {seen:?}");
            assert_eq!(seen.lost, [""; 0], "the connection that lasts has the drain's time: {seen:?}");
        }
    }
    watch.end(stage);
    let unknown = run(stage.command("upgrade").arg("--node-proxy=node-9=/bin/true"));
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("there is no node node-9; the nodes are node-1, node-2"), "{}", unknown.stderr);
}

#[test]
fn a_killed_proxy_costs_few_new_connections() {
    if skip("a_killed_proxy_costs_few_new_connections", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let mut client = Client::start(&stage);
    let watch = Watch::begin(&stage, PLAIN);
    let (seen, in_hand) = ended(&stage, &mut client, Signal::SIGKILL);
    // For a while nobody listens. Connections wait then, and none is refused.
    let refused = seen.failed.iter().filter(|why| why.contains("Refused")).count();
    assert_eq!(refused, 0, "connections refused: {seen:?}");
    // What a killed proxy has in hand is lost with it. What comes after waits for the next one.
    assert!(seen.failed.len() <= in_hand, "more are lost than the {in_hand} that were in hand: {seen:?}");
    assert_eq!(seen.unanswered, [""; 0], "questions unanswered: {seen:?}");
    watch.end(&stage);
}

/// A program that is one proxy when it is first started, and another one from then on.
fn first_then(dir: &Path, first: &str, then: &str) -> String {
    let started = dir.join("started-$NODE_NAME");
    let started = started.display();
    let lines = format!("[ -e {started} ] && exec {then}\n: >{started}\nexec {first}");
    program(dir, "proxy", &lines).display().to_string()
}

#[test]
fn a_ztunnel_follows_leno_and_leno_a_ztunnel() {
    let test = "a_ztunnel_follows_leno_and_leno_a_ztunnel";
    let Some(path) = ztunnel(test) else { return };
    if skip(test, NEEDS) {
        return;
    }
    let (leno, ztunnel) = (env!("CARGO_BIN_EXE_leno"), path.display().to_string());
    for (first, then) in [(leno, &*ztunnel), (&*ztunnel, leno)] {
        let dir = tempfile::tempdir().unwrap();
        let program = first_then(dir.path(), first, then);
        let flags = ["node-1", "node-2"].map(|node| format!("--node-proxy={node}={program}"));
        let stage = topology::up(&[ECHO], &[&flags[0], &flags[1]]);
        eprintln!("{first}, then {then}");
        in_good_order(&stage, 1);
    }
}
