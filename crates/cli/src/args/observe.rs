//! What `leno observe` and `leno metrics` are asked for.

use std::time::Duration;

use clap::{Args, ValueEnum};
use leno_telemetry::observe::Verdict;

use super::{InstalledArgs, ObjectName, OutputArgs, TargetArgs, object};
use crate::control_args::duration;

#[derive(Debug, Args)]
pub(crate) struct ObserveArgs {
    /// Go on with what happens from now on, until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// One line for each pair of source and destination, with rates; live on a terminal
    #[arg(long)]
    pub(crate) map: bool,

    /// Seconds over which `--map` takes rates
    #[arg(long, default_value_t = 3, requires = "map", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) window: u64,

    /// Only connections that ended within this time, for example 30s or 5m; with --follow also some that ended before
    #[arg(long, value_parser = duration, conflicts_with = "map")]
    pub(crate) since: Option<Duration>,

    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Which connections are shown: those that fit all that is given.
#[derive(Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// From or to this pod, or the pods of this Deployment
    #[arg(long, value_name = "NS/POD", value_parser = object)]
    pub(crate) pod: Option<ObjectName>,

    /// From or to this namespace
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,

    /// From this pod, or the pods of this Deployment
    #[arg(long, value_name = "NS/POD", value_parser = object)]
    pub(crate) from: Option<ObjectName>,

    /// To this pod, the pods of this Deployment, or this Service
    #[arg(long, value_name = "NS/NAME", value_parser = object)]
    pub(crate) to: Option<ObjectName>,

    /// To this Service
    #[arg(long, value_name = "NS/SERVICE", value_parser = object)]
    pub(crate) service: Option<ObjectName>,

    /// To this port of the destination
    #[arg(long)]
    pub(crate) port: Option<u16>,

    /// What became of it
    #[arg(long, value_enum)]
    pub(crate) verdict: Option<VerdictArg>,

    /// Whether it was encrypted
    #[arg(long, value_name = "BOOL")]
    pub(crate) encrypted: Option<bool>,

    /// As the proxy of this node sees it; may be given again
    #[arg(long)]
    pub(crate) node: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerdictArg {
    /// Let pass
    Allowed,
    /// Refused or ended by a policy
    Denied,
    /// Not carried, or broken, for another reason
    Failed,
}

impl From<VerdictArg> for Verdict {
    fn from(verdict: VerdictArg) -> Self {
        match verdict {
            VerdictArg::Allowed => Self::Allowed,
            VerdictArg::Denied => Self::Denied,
            VerdictArg::Failed => Self::Failed,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Node whose proxy is asked, or `control` for the control plane; without it, the proxies of all nodes
    #[arg(value_name = "NODE")]
    pub(crate) node: Option<String>,

    /// Only metrics whose name starts with this, for example istio_tcp
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub(crate) metric: String,

    #[command(flatten)]
    pub(crate) installed: InstalledArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
