//! Commands about a Kubernetes cluster.

mod check;
mod enrol;
mod install;
mod rollout;
mod uninstall;
pub(crate) mod waypoint;

use std::process::ExitCode;

use anyhow::Context as _;
use leno_install::cluster::Turns;
use leno_kubernetes::{Client, Cluster};

use crate::args::{ClusterArgs, ClusterCommand, UpgradeArgs};
use crate::output::Interrupted;

pub(crate) use rollout::settled;

/// Runs one of them, until it is done or Ctrl-C ends it.
pub(crate) fn run(command: ClusterCommand) -> anyhow::Result<ExitCode> {
    let turns = turns(match command {
        ClusterCommand::Install(_) => "install",
        _ => "uninstall",
    });
    changing(&turns, async {
        match command {
            ClusterCommand::Install(args) => install::install(args, &turns).await?,
            ClusterCommand::Uninstall(args) => uninstall::run(args, &turns).await?,
            ClusterCommand::Enrol(args) => enrol::run(args, true).await?,
            ClusterCommand::Unenrol(args) => enrol::run(args, false).await?,
            ClusterCommand::Check(args) => return check::run(args).await,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// `leno upgrade`, where a cluster is meant.
pub(crate) fn upgrade(args: UpgradeArgs) -> anyhow::Result<ExitCode> {
    let turns = turns("upgrade");
    changing(&turns, async {
        install::upgrade(args.cluster, args.output.output, &turns).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Turns at changing an installation, in the name of whoever runs this.
fn turns(command: &str) -> Turns {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = user.unwrap_or_else(|| "somebody".to_owned());
    Turns::of(format!("`leno {command}` by {user}@{}, process {}", host.trim(), std::process::id()))
}

/// As [`until_done`]. Whatever was cut off then no longer keeps the next command waiting.
fn changing(turns: &Turns, work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    until_done_and(work, turns.given_back())
}

/// Runs `work` until it is done or Ctrl-C ends it.
pub(crate) fn until_done(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    until_done_and(work, std::future::ready(()))
}

/// The same, and lets `tidy` end after Ctrl-C.
fn until_done_and(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
    tidy: impl Future<Output = ()>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            done = work => return done,
            interrupted = tokio::signal::ctrl_c() => interrupted.context("listening for Ctrl-C")?,
        }
        // The work has been dropped.
        tidy.await;
        Err(Interrupted.into())
    })
}

/// Logs in to the cluster that is meant.
async fn client(args: &ClusterArgs) -> anyhow::Result<Client> {
    let cluster = Cluster { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    Ok(Client::new(&cluster).await?)
}
