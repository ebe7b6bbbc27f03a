//! `leno waypoint`: without a further word the proxy's role, with one a command about the waypoints of a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::OutputArgs;
use super::cluster::{ObjectFormat, WaitArgs};
use crate::names;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct WaypointArgs<W: Args> {
    #[command(subcommand)]
    pub(crate) command: Option<WaypointCommand>,

    #[command(flatten)]
    pub(crate) role: Option<W>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WaypointCommand {
    /// Make a waypoint in a namespace of a cluster
    #[command(after_help = "Examples:\n  \
        leno waypoint apply -n shop --enroll-namespace --wait\n  \
        leno waypoint apply -n shop --name pods --for workload\n  \
        leno waypoint apply -n shop -o yaml > mesh/waypoint.yaml    the file for a stage\n\n\
        It applies a Gateway of class leno-waypoint. The same command again changes nothing.")]
    Apply(ApplyArgs),

    /// List the waypoints of a namespace, or with -A of all
    #[command(after_help = "Examples:\n  leno waypoint list -A\n  leno waypoint list -n shop -o json")]
    List(ListArgs),

    /// Show what became of a namespace's waypoints
    #[command(
        after_help = "Examples:\n  leno waypoint status -n shop\n  leno waypoint status waypoint -n shop --wait\n\n\
        Exit status: 0 all of them are programmed, 1 one is not."
    )]
    Status(WaypointStatusArgs),

    /// Delete waypoints, with all that the control plane made for them
    #[command(
        after_help = "Examples:\n  leno waypoint delete waypoint -n shop\n  leno waypoint delete --all -n shop\n\n\
        Labels that name the waypoint stay: what must pass it is refused until they are gone. They are listed."
    )]
    Delete(DeleteArgs),
}

/// Which cluster, and which of its namespaces: kubectl's flags.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaceArgs {
    /// Namespace of the waypoints [default: the context's]
    #[arg(short, long, value_name = "NAME", value_parser = names::namespace)]
    pub(crate) namespace: Option<String>,

    /// The kubeconfig file [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

/// Which traffic passes a waypoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Traffic {
    /// What is addressed to services
    Service,
    /// What is addressed to pods themselves
    Workload,
    /// Both
    All,
    /// Nothing
    None,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Name of the Gateway
    #[arg(long, value_name = "NAME", default_value = "waypoint")]
    pub(crate) name: String,

    /// Which traffic passes it [default: what is addressed to services]
    #[arg(long = "for", value_enum, value_name = "TRAFFIC")]
    pub(crate) traffic: Option<Traffic>,

    /// Label the namespace, so that what is in it uses the waypoint
    #[arg(long, visible_alias = "enrol-namespace")]
    pub(crate) enroll_namespace: bool,

    /// With --enroll-namespace: also if the namespace uses another waypoint
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Print the objects, and change nothing
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub(crate) output: Option<ObjectFormat>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WaypointStatusArgs {
    /// Name of the Gateway [default: all of the namespace]
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Names of the Gateways
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub(crate) names: Vec<String>,

    /// All waypoints of the namespace
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}
