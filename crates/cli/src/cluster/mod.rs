//! Commands about a Kubernetes cluster.

mod check;
mod enrol;
mod install;
mod rollout;
mod uninstall;
pub(crate) mod waypoint;

use std::process::ExitCode;

use anyhow::Context as _;
use leno_kubernetes::{Client, Cluster};

use crate::args::{ClusterArgs, ClusterCommand, UpgradeArgs};
use crate::output::Interrupted;

pub(crate) use rollout::settled;

/// Runs one of them, until it is done or Ctrl-C ends it.
pub(crate) fn run(command: ClusterCommand) -> anyhow::Result<ExitCode> {
    until_done(async {
        match command {
            ClusterCommand::Install(args) => install::install(args).await?,
            ClusterCommand::Uninstall(args) => uninstall::run(args).await?,
            ClusterCommand::Enrol(args) => enrol::run(args, true).await?,
            ClusterCommand::Unenrol(args) => enrol::run(args, false).await?,
            ClusterCommand::Check(args) => return check::run(args).await,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// `leno upgrade`, where a cluster is meant.
pub(crate) fn upgrade(args: UpgradeArgs) -> anyhow::Result<ExitCode> {
    until_done(async {
        install::upgrade(args.cluster, args.output.output).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs `work` until it is done or Ctrl-C ends it.
pub(crate) fn until_done(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            done = work => done,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.context("listening for Ctrl-C")?;
                Err(Interrupted.into())
            }
        }
    })
}

/// Logs in to the cluster that is meant.
async fn client(args: &ClusterArgs) -> anyhow::Result<Client> {
    let cluster = Cluster { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    Ok(Client::new(&cluster).await?)
}
