//! What `leno config` is asked for.

use clap::{Args, ValueEnum};

use super::{InstalledArgs, OutputArgs};
use crate::complete;

/// A part of a proxy's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfigPart {
    /// Pods and other endpoints
    #[value(alias = "workload")]
    Workloads,
    /// Services and how many endpoints each has
    #[value(alias = "service")]
    Services,
    /// Authorization policies
    #[value(alias = "policy")]
    Policies,
    /// Certificates, each with its end
    #[value(aliases = ["certificate", "certs"])]
    Certificates,
    /// All of these; with -o json also what else the proxy tells, such as its settings
    All,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// What of it
    #[arg(value_enum)]
    pub(crate) part: ConfigPart,

    /// Node whose proxy is asked; without it, all
    #[arg(value_name = "NODE", add = complete::nodes())]
    pub(crate) node: Option<String>,

    #[command(flatten)]
    pub(crate) installed: InstalledArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
