//! One node proxy replaces another, which drains or is killed, while programs go on opening connections. Nothing that they say
//! can be read meanwhile.

use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clear::Watch;
use crate::stage::{Stage, eventually, run, script, skip, ztunnel};
use crate::steady::{Client, ECHO, Seen};
use crate::topology;

const NEEDS: &[&str] = &["/usr/bin/python3", "socat"];
/// Where pods outside the mesh are answered.
const PLAIN: &str = "echo.plain:7000";

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
    let old = NODES.map(|node| stage.proxy(node, None));
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
        stage.proxy(node, Some(old));
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
    let old = stage.proxy(node, None);
    let ran = run(stage.command("upgrade").arg(format!("--node-proxy={node}={}", program.display())));
    stage.proxy(node, Some(old));
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
