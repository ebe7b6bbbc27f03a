//! A node's proxy that stands still, or has too little processor time, memory or descriptors, while programs go on. What it can't
//! do now waits or is refused with a reason, nothing passes in the clear, and it goes on by itself.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::clear::{CANARY, Watch};
use crate::control_groups::Group;
use crate::crowd::Crowd;
use crate::processes::{MOST_OF_A_PROCESSOR, TICKS_PER_SECOND, descriptors, limit_descriptors, processor_ticks};
use crate::stage::{Stage, eventually, run, script, skip};
use crate::steady::{Client, ECHO, Seen};
use crate::topology;

const NEEDS: &[&str] = &["/usr/bin/python3", "socat", "curl", "nsenter"];
/// Where pods outside the mesh are answered.
const PLAIN: &str = "echo.plain:7000";
/// The node whose proxy is starved: that of the pod that asks.
const NODE: &str = "node-1";

/// `leno status`, of the starved proxy.
#[track_caller]
fn status(stage: &Stage) -> Value {
    let ran = run(stage.command("status").args(["-o", "json"])).ok();
    let status: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    status["nodes"][NODE]["proxy"].clone()
}

/// The starved node, as `leno ps` shows it.
fn node(stage: &Stage) -> Value {
    let ps = stage.ps();
    ps["nodes"].as_array().unwrap().iter().find(|node| node["name"] == NODE).unwrap().clone()
}

fn say(stage: &Stage) -> bool {
    let line = format!("echo {CANARY} | socat -t 20 - TCP:echo.mesh:7000");
    stage.sh("mesh/far", &line).stdout.trim() == CANARY
}

#[track_caller]
fn is_carried_again(stage: &Stage) {
    eventually("a new connection", || if say(stage) { Ok(()) } else { Err("none yet".to_owned()) });
}

/// A debugger stops a process, and so does who suspends its machine.
#[test]
fn a_proxy_that_is_stopped_keeps_its_connections_and_new_ones_wait() {
    if skip("a_proxy_that_is_stopped_keeps_its_connections_and_new_ones_wait", NEEDS) {
        return;
    }
    let stage = topology::up(&[ECHO], &[]);
    let watch = Watch::begin(&stage, PLAIN);
    let mut client = Client::at(&stage, 50);
    let before = client.watch(50);
    assert_eq!((before.failed.len(), before.lost.len()), (0, 0), "before anything happened: {before:?}");
    let pid = stage.proxy(NODE, None);
    let signal = |signal| kill(Pid::from_raw(pid), signal).unwrap();

    // Shorter than peers bear with one that is silent, which is some seven seconds.
    let begun = Instant::now();
    signal(Signal::SIGSTOP);
    let (waiting, seen) = wait_for_waiting(&mut client);
    signal(Signal::SIGCONT);
    let is_short = begun.elapsed() < PEERS_PATIENCE;
    let opened = seen.opened;
    let seen = client.watch_on(seen, opened + waiting + 20);
    if is_short {
        assert_eq!((seen.failed.len(), seen.lost.len()), (0, 0), "{seen:?}");
    }

    // So long that the supervisor finds out. It tells, and ends nothing: what the proxy holds goes on with it.
    let now = client.seen();
    signal(Signal::SIGSTOP);
    let seen = client.seen();
    let in_hand = now.at_once + seen.begun;
    stage.wait("the proxy that does not answer", |ps| {
        let nodes = ps["nodes"].as_array()?;
        nodes.iter().any(|node| node["name"] == NODE && node["ready"] == false).then_some(())
    });
    let problem = status(&stage)["problem"].as_str().unwrap_or_default().to_owned();
    assert!(problem.contains("has not answered"), "{problem:?}");
    let (waiting, _) = wait_for_waiting(&mut client);
    signal(Signal::SIGCONT);
    assert_eq!(stage.proxy(NODE, None), pid, "it is the same one");
    assert_eq!(node(&stage)["restarts"], 0);
    let seen = client.watch(waiting + 20);
    // Peers have given up what was in hand.
    assert!(seen.failed.len() <= in_hand, "more are lost than the {in_hand} that were in hand: {seen:?}");
    watch.end(&stage);
}

/// How long a peer waits for one that does not answer before it closes their connections, at least.
const PEERS_PATIENCE: Duration = Duration::from_secs(7);

/// Waits until connections wait; how many, and what the client has seen meanwhile.
#[track_caller]
fn wait_for_waiting(client: &mut Client) -> (u32, Seen) {
    let mut seen = client.seen();
    eventually("connections that wait", || {
        seen.add(client.seen());
        if seen.at_once > 40 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    (u32::try_from(seen.at_once).unwrap(), seen)
}

/// Sends so much on each of some connections at the same time, and compares what comes back.
const BULK: &str = r#"
import asyncio, os, sys
async def one():
    said = sys.argv[1].encode() + os.urandom(100_000)
    r, w = await asyncio.open_connection("echo.mesh", 7000)
    w.write(said); w.write_eof()
    return await r.read() == said
async def main(): print(sum(await asyncio.gather(*(one() for _ in range(10)))))
asyncio.run(main())"#;

#[test]
fn a_proxy_with_little_processor_time_is_slower_and_loses_nothing() {
    let test = "a_proxy_with_little_processor_time_is_slower_and_loses_nothing";
    if skip(test, NEEDS) {
        return;
    }
    let Some(group) = Group::new(test, "cpu") else { return };
    let stage = topology::up(&[ECHO], &[]);
    let watch = Watch::begin(&stage, PLAIN);
    let mut client = Client::at(&stage, 10);
    client.watch(10);

    group.give_processor(10);
    group.take(stage.proxy(NODE, None));
    let told = stage.exec("mesh/far", &["/usr/bin/python3", "-c", BULK, CANARY]).ok().stdout;
    assert_eq!(told.trim(), "10", "connections on which all came back");
    let seen = client.watch(10);
    assert_eq!((seen.failed.len(), seen.lost.len()), (0, 0), "{seen:?}");
    eventually("the status", || {
        let told = status(&stage);
        if told["in_sync"] == true && told["connections"].is_u64() { Ok(()) } else { Err(told.to_string()) }
    });
    assert!(group.waits_for_processor() > 0, "it had what it wanted");
    assert_eq!(node(&stage)["restarts"], 0);
    watch.end(&stage);
}

/// A stage whose starved node's proxy begins with these lines.
fn up_with(dir: &Path, lines: &str) -> Stage {
    let program = dir.join("proxy");
    script(&program, &format!("{lines}\nexec {} node", env!("CARGO_BIN_EXE_leno")));
    topology::up(&[ECHO], &["--node-proxy", &format!("{NODE}={}", program.display())])
}

#[test]
fn a_proxy_that_needs_more_memory_than_it_may_have_is_followed_by_the_next_and_it_is_told_why() {
    let test = "a_proxy_that_needs_more_memory_than_it_may_have_is_followed_by_the_next_and_it_is_told_why";
    if skip(test, NEEDS) {
        return;
    }
    let Some(group) = Group::new(test, "memory") else { return };
    let dir = tempfile::tempdir().unwrap();
    let stage = up_with(dir.path(), &format!("echo $$ > {}", group.members().display()));
    let watch = Watch::begin(&stage, PLAIN);
    assert!(say(&stage));
    let killed = stage.proxy(NODE, None);

    group.give_memory(group.memory() + MEMORY_LEFT);
    let crowd = Crowd::come(&stage, "mesh/far", "echo.mesh", 3000, CANARY);
    stage.proxy(NODE, Some(killed));
    drop(crowd);
    assert!(group.killed_for_memory() > 0, "something else ended it");
    stage.told(&["logs"], |log| {
        let of_the_end = |line: &&str| line.contains(&format!("node {NODE}: ")) && line.contains("ended with signal 9");
        log.lines().find(of_the_end).is_some_and(|line| line.contains("at the memory limit of its control group"))
    });
    is_carried_again(&stage);
    watch.end(&stage);
}

/// What the proxy may take beyond what it has when nobody uses it, bytes.
const MEMORY_LEFT: u64 = 4 << 20;

/// More than are open in a proxy that carries nothing, and fewer than a crowd wants.
const DESCRIPTORS: usize = 200;

#[test]
fn a_proxy_with_few_descriptors_refuses_or_pauses_rests_and_goes_on() {
    if skip("a_proxy_with_few_descriptors_refuses_or_pauses_rests_and_goes_on", &[NEEDS, &["prlimit"]].concat()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let stage = up_with(dir.path(), &format!("ulimit -n {DESCRIPTORS}"));
    let watch = Watch::begin(&stage, PLAIN);
    let mut client = Client::at(&stage, 1);
    client.watch(1);

    // A pod that wants more than its share is refused it.
    let pid = stage.proxy(NODE, None);
    let few = descriptors(pid);
    let mut crowd = Crowd::come(&stage, "mesh/far", "echo.mesh", 2 * DESCRIPTORS, CANARY);
    let told = crowd.wait("each to be served or refused", |state| state.waiting == 0);
    assert!(told.served > 0 && told.refused > 0 && told.ended == 0, "{told:?}");
    stage.told(&["logs", "--node", NODE], |log| log.contains("these run short") && log.contains("ulimit -n"));
    eventually("the refusals among the metrics", || {
        let is_refusal = |line: &str| {
            line.starts_with("istio_tcp_connections_failed_total") && line.contains("response_flags=\"RESOURCE_LIMIT\"")
        };
        let refused = sum(&stage, is_refusal);
        if refused >= told.refused { Ok(()) } else { Err(format!("{refused} of {}", told.refused)) }
    });

    // With none left at all, everybody waits. The proxy tries again now and then.
    limit_descriptors(pid, 10, DESCRIPTORS);
    let (begun, ticks) = (Instant::now(), processor_ticks(pid));
    let asking = stage.spawn("mesh/far", &["socat", "-t", "60", "-", "TCP:echo.mesh:7000"]);
    let asked = asking.stdin.as_ref().map(|mut stdin| stdin.write_all(format!("{CANARY}\n").as_bytes()));
    asked.unwrap().unwrap();
    let said = "can't accept connections; those that come wait";
    stage.told(&["logs", "--node", NODE], |log| log.lines().filter(|line| line.contains(said)).count() >= 2);
    let share = (processor_ticks(pid) - ticks) as f64 / TICKS_PER_SECOND / begun.elapsed().as_secs_f64();
    assert!(share < MOST_OF_A_PROCESSOR, "{share} of a processor");

    drop(crowd);
    eventually("the end of the crowd", || {
        let now = descriptors(pid);
        if now <= few + 10 { Ok(()) } else { Err(format!("{now} descriptors, {few} before")) }
    });
    limit_descriptors(pid, DESCRIPTORS, DESCRIPTORS);
    let answer = asking.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), CANARY, "{answer:?}");
    assert!(sum(&stage, |line| line.starts_with("leno_accept_pauses_total ")) > 0);
    is_carried_again(&stage);
    assert_eq!((stage.proxy(NODE, None), client.seen().lost.len()), (pid, 0), "what is kept goes on in the same proxy");
    watch.end(&stage);
}

/// The sum of some of the starved proxy's metrics.
fn sum(stage: &Stage, of: impl Fn(&str) -> bool) -> usize {
    let metrics = stage.node_get(NODE, 15020, "/metrics");
    metrics.lines().filter(|line| of(line)).filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}
