//! `cargo xtask cluster`: a real Kubernetes on this machine, for tests and for trying things out.
//!
//! The control plane runs on the host. Each node is a set of namespaces with its own containerd, kubelet and kube-proxy,
//! joined to the others by a bridge. Everything is built from Go modules, once, into a cache outside the source tree.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};

pub(crate) mod build;
mod certificates;
mod cgroups;
mod control_plane;
mod host;
pub(crate) mod interrupt;
mod layout;
pub(crate) mod load;
mod node;
mod node_config;
mod node_init;
mod plan;
mod process;
mod programs;
mod status;
mod sysctls;
mod teardown;
mod telling;
mod up;
mod waiting;

pub(crate) use build::Unreachable;
use cgroups::Cgroups;
pub(crate) use layout::Layout;
use plan::{Families, NODES_MAX, Node, Plan};
use telling::print;

pub(crate) use process::COMMAND as PROCESS;
pub(crate) use programs::find as find_program;
pub(crate) use status::find as status_of;
pub(crate) use telling::say;

const FAILED: u8 = 1;
/// There is no cluster, or it is not ready.
const NOT_READY: u8 = 3;
/// Its programs can't be built here, for want of their modules.
const NO_MODULES: u8 = 4;

#[derive(Parser)]
#[command(name = "cargo xtask cluster", about = "A real Kubernetes on this machine")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build what is missing and start the cluster; do nothing if it runs. Exit code 4: Go modules can't be had
    Up {
        /// How many nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(NODES_MAX)))]
        nodes: u8,
        /// Addresses of nodes, pods and services
        #[arg(long, value_enum, default_value_t = Families::Dual)]
        families: Families,
    },
    /// Build what is missing and start nothing. Exit code 4: Go modules can't be had
    Build,
    /// Remove the cluster and all it left on this machine; what was built stays
    Down,
    /// Show the nodes and where the kubeconfig is; exit code 3 if there is no cluster or it is not ready
    Status {
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Import container images (OCI archives) into every node
    Load {
        #[arg(required = true)]
        archive: Vec<PathBuf>,
    },
    /// Kill a program of the control plane and start it again, with the same data
    Restart {
        /// etcd, kube-apiserver, kube-controller-manager or kube-scheduler
        program: String,
        /// Seconds between its end and its start
        #[arg(long, default_value_t = 0)]
        away: u64,
    },
    /// End all that runs on a node at once, and let it boot again: its disk stays, what it had in memory is gone
    Reboot {
        /// For example n1
        node: String,
    },
    /// Run a command inside a node's namespaces, or a shell
    Enter {
        /// For example n1
        node: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Carries out one of the commands.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let arguments = Arguments::parse_from(std::iter::once("cargo xtask cluster".to_owned()).chain(arguments));
    let layout = Layout::find()?;
    let (error, code) = match carry_out(&layout, arguments.command) {
        Err(error) if interrupt::came() => (error, interrupt::EXIT_CODE),
        Err(error) if error.is::<Unreachable>() => (error, NO_MODULES),
        Err(error) => (error, FAILED),
        Ok(code) => return Ok(code),
    };
    say(&format!("{error:#}"));
    Ok(ExitCode::from(code))
}

fn carry_out(layout: &Layout, command: Command) -> Result<ExitCode> {
    match command {
        Command::Up { nodes, families } => up::run(layout, &Plan { nodes, families })?,
        Command::Build => {
            interrupt::watch()?;
            let _lock = layout.lock()?;
            build::all(layout)?;
        }
        Command::Down => down(layout)?,
        Command::Status { output } => return show(layout, output),
        Command::Load { archive } => load::run(layout, &archive)?,
        Command::Restart { program, away } => {
            let state = running(layout)?;
            let away = std::time::Duration::from_secs(away);
            control_plane::restart(layout, &Cgroups::find()?, &state.plan, &program, away)?;
        }
        Command::Reboot { node } => node::reboot(layout, &Cgroups::find()?, &running(layout)?.plan, called(&node)?)?,
        Command::Enter { node, command } => return enter(layout, &node, &command),
    }
    Ok(ExitCode::SUCCESS)
}

/// Carries out the hidden command by which the cluster's own processes are started.
pub(crate) fn process(mut arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let role = arguments.next().unwrap_or_default();
    let mut file = || arguments.next().map(PathBuf::from).context("no settings were named");
    match role.as_str() {
        "node" => node::make(&file()?)?,
        "init" => node_init::run(&file()?)?,
        _ => process::become_what_is_asked(&role, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn down(layout: &Layout) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("removing a cluster needs root, as starting it did");
    }
    let cgroups = Cgroups::find()?;
    let _lock = layout.lock()?;
    if !teardown::anything(layout, &cgroups)? {
        say("no cluster runs");
        return Ok(());
    }
    teardown::run(layout, &cgroups)?;
    say("the cluster is gone");
    Ok(())
}

fn show(layout: &Layout, output: Output) -> Result<ExitCode> {
    let status = status::find(layout)?;
    match (output, &status) {
        (Output::Json, status) => print(&format!("{}\n", serde_json::to_string_pretty(status)?))?,
        (Output::Text, Some(status)) => status.print()?,
        (Output::Text, None) => say("no cluster runs; `cargo xtask cluster up` starts one"),
    }
    let ready = status.is_some_and(|status| status.ready);
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) })
}

/// The node of that name.
fn called(name: &str) -> Result<Node> {
    let number = name.strip_prefix('n').and_then(|number| number.parse().ok());
    number
        .map(|number| Node { number })
        .with_context(|| format!("{name:?} is no node; they are called n1, n2 and so on"))
}

/// Whether there is a cluster.
pub(crate) fn is_running() -> bool {
    Layout::find().is_ok_and(|layout| running(&layout).is_ok())
}

fn running(layout: &Layout) -> Result<layout::State> {
    let state = layout.state().filter(|state| state.complete);
    state.context("no cluster runs; `cargo xtask cluster up` starts one")
}

fn enter(layout: &Layout, name: &str, command: &[String]) -> Result<ExitCode> {
    let shell = [String::from("/bin/sh")];
    let command = if command.is_empty() { &shell } else { command };
    let status = node::enter(layout, called(name)?)?.arg("--").args(command).status().context("starting nsenter")?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
