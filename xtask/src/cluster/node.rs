//! Starting a node, from the host's side: its control groups, its namespaces, its cable.
//!
//! A node's first process is this program ([`super::node_init`]). It waits for a word on its input before it does anything,
//! and ends if the input ends first: an `up` that is killed leaves no node that waits for ever.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sched::CloneFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::cgroups::Cgroups;
use super::layout::Layout;
use super::plan::{Node, Plan};
use super::process::{self, Daemon};
use super::waiting::Wait;
use super::{control_plane, host};
use crate::whole_file;

/// What the host tells a node's first process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) plan: Plan,
    pub(crate) node: Node,
    pub(crate) cgroup_version_2: bool,
    /// The cache, as the host sees it.
    pub(crate) cache: std::path::PathBuf,
}

/// What the host says when the cable is there.
pub(crate) const CONNECTED: &str = "connected";

/// Starts a node; what it runs comes up by itself.
pub(crate) fn start(layout: &Layout, cgroups: &Cgroups, plan: &Plan, node: Node) -> Result<()> {
    let name = node.name();
    cgroups.make_node(&name)?;
    let settings =
        Settings { plan: plan.clone(), node, cgroup_version_2: cgroups.version_2(), cache: layout.root().to_owned() };
    let file = layout.node(node).join("settings.json");
    whole_file::write(&file, &serde_json::to_vec_pretty(&settings)?, 0o644)?;
    let mut command = process::start(&cgroups.daemon(&name), &layout.log(&name))?;
    command.args([process::THIS, process::COMMAND, "node"]).arg(&file).stdin(Stdio::piped());
    let mut child = command.spawn().context("starting the node's first process")?;
    let mut word = child.stdin.take().context("the node's first process has no input")?;
    let status = child.wait().context("waiting for the node's first process")?;
    if !status.success() {
        bail!("node {name} could not be started:\n{}", process::tail(&layout.log(&name)));
    }
    host::connect(plan, node, pid(layout, node)?.as_raw())?;
    word.write_all(CONNECTED.as_bytes())
        .with_context(|| format!("node {name} ended before it began:\n{}", process::tail(&layout.log(&name))))
}

/// Ends a node as a power cut does, and starts it again.
pub(crate) fn reboot(layout: &Layout, cgroups: &Cgroups, plan: &Plan, node: Node) -> Result<()> {
    if !runs(layout, cgroups, node) {
        bail!("node {} does not run", node.name());
    }
    // The kernel ends everything in the node with its first process.
    kill(pid(layout, node)?, Signal::SIGKILL).with_context(|| format!("ending node {}", node.name()))?;
    let begin = Instant::now();
    let after = |seconds| begin.elapsed() > Duration::from_secs(seconds);
    let left = || cgroups.processes(&node.name());
    while !left().is_empty() {
        if after(60) {
            bail!(
                "node {} does not end although its first process was killed; these are left: {}",
                node.name(),
                left().into_iter().map(process::described).collect::<Vec<_>>().join(", ")
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The cable goes with the node's network. The kernel takes that down at its leisure, and not while anything holds it.
    while host::links()?.contains(&node.cable()) {
        if after(10) {
            host::disconnect(node)?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    cgroups.empty_node(&node.name())?;
    start(layout, cgroups, plan, node)
}

/// The command `node`: makes the namespaces, starts the node's first process in them and records its number.
pub(crate) fn make(file: &Path) -> Result<()> {
    let settings = Settings::read(file)?;
    nix::sched::unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC,
    )
    .context("making a node's namespaces (this needs root)")?;
    let child = Command::new(process::THIS)
        .args([process::COMMAND, "init"])
        .arg(file)
        .spawn()
        .context("starting a node's first process")?;
    let layout = Layout::of(&settings.cache);
    whole_file::write(&layout.node_pid(settings.node), child.id().to_string().as_bytes(), 0o644)
}

impl Settings {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_slice(&bytes).with_context(|| format!("reading {}", file.display()))
    }
}

/// The node's first process.
pub(crate) fn pid(layout: &Layout, node: Node) -> Result<Pid> {
    let path = layout.node_pid(node);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("reading {}: does node {} run?", path.display(), node.name()))?;
    text.trim().parse().map(Pid::from_raw).with_context(|| format!("{} holds no number", path.display()))
}

/// Whether the node's first process runs. Its number may be another's by now, which is why its group is asked.
pub(crate) fn runs(layout: &Layout, cgroups: &Cgroups, node: Node) -> bool {
    pid(layout, node).is_ok_and(|pid| kill(pid, None).is_ok() && cgroups.processes(&node.name()).contains(&pid))
}

/// A command that runs inside a node.
pub(crate) fn enter(layout: &Layout, node: Node) -> Result<Command> {
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--target", &pid(layout, node)?.to_string()]);
    Ok(command)
}

/// Waits until the API server calls every node ready.
pub(crate) fn wait_ready(layout: &Layout, cgroups: &Cgroups, plan: &Plan, daemons: &mut [Daemon]) -> Result<()> {
    let limit = Duration::from_secs(300);
    let mut check = || {
        daemons.iter_mut().try_for_each(Daemon::check)?;
        match plan.nodes().find(|node| !runs(layout, cgroups, *node)) {
            Some(node) => bail!("node {} ended:\n{}", node.name(), process::tail(&layout.log(&node.name()))),
            None => Ok(()),
        }
    };
    let mut wait = |what: &str, condition: &str, names: &[String]| {
        let mut command = control_plane::kubectl(layout);
        command.args(["wait", condition, &format!("--timeout={}s", limit.as_secs())]).args(names);
        Wait::begin(what, limit).for_command(&mut check, command)
    };
    let names: Vec<_> = plan.nodes().map(|node| format!("node/{}", node.name())).collect();
    for (node, name) in plan.nodes().zip(&names) {
        // One by one: of several, kubectl fails at once if two don't exist.
        wait(&format!("{} to register", node.name()), "--for=create", std::slice::from_ref(name))?;
    }
    wait("the nodes to be ready", "--for=condition=Ready", &names)
}
