//! Commands about a Kubernetes cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use leno_install::{NAMESPACE, Profile};

use super::{InstalledArgs, OutputArgs};
use crate::{durations, names};

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Install Leno in a Kubernetes cluster
    #[command(after_help = "Examples:\n  \
        leno install --wait\n  \
        leno install --profile ha --set control.replicas=3\n  \
        leno install -f values.yaml\n  \
        leno install -o yaml | kubectl apply --server-side -f -\n\n\
        The objects are those of the Helm chart in charts/leno, and so are the values: `leno install --help-values` prints them. \
        The same command again goes on where it was ended.\n\n\
        Exit status: 0 applied, and with --wait all runs; 1 refused, or not ready in time; 2 wrong usage; 130 ended by a signal.")]
    Install(InstallArgs),

    /// Remove Leno from a cluster: pods leave the mesh without a restart, and nothing stays on the nodes
    #[command(after_help = "Examples:\n  leno uninstall\n  leno uninstall --purge\n\n\
        What stays is said, with the reason: definitions of kinds of which there are objects, and a namespace with somebody \
        else's objects in it.")]
    Uninstall(UninstallArgs),

    /// Bring the pods of namespaces into the mesh, without a restart
    #[command(
        visible_alias = "enroll",
        after_help = "Examples:\n  leno enrol shop\n  leno enrol shop bank --wait\n\n\
        It sets the label istio.io/dataplane-mode=ambient, as `kubectl label` does."
    )]
    Enrol(EnrolArgs),

    /// Take the pods of namespaces out of the mesh, without a restart
    #[command(visible_alias = "unenroll", after_help = "Examples:\n  leno unenrol shop --wait")]
    Unenrol(EnrolArgs),

    /// Look for what keeps Leno from working in a cluster, each with what to do
    #[command(after_help = "Examples:\n  \
        leno check --pre               before an installation\n  \
        leno check\n  \
        leno check -o json | jq '.checks[] | select(.outcome != \"ok\")'\n\n\
        Exit status: 0 it works, 1 something does not, or could not be found out; 2 wrong usage.")]
    Check(CheckArgs),
}

/// Which cluster: kubectl's flags.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "PATH")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Namespace of the installation
    #[arg(short, long, value_name = "NAME", default_value = NAMESPACE, value_parser = names::namespace)]
    pub(crate) namespace: String,
}

/// Waiting until all runs.
#[derive(Debug, Clone, Args)]
pub(crate) struct WaitArgs {
    /// Return when all of it runs, and say what is waited for
    #[arg(long)]
    pub(crate) wait: bool,

    /// Longest to wait, as in 90s or 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = durations::parse)]
    pub(crate) timeout: Duration,
}

/// Values of the chart.
#[derive(Debug, Clone, Args)]
pub(crate) struct ValueArgs {
    /// One value, as in control.replicas=2; may be given again, and wins over files
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,

    /// File of values, as Helm takes it, or - for standard input; may be given again, and the last one wins
    #[arg(short = 'f', long = "values", value_name = "PATH")]
    pub(crate) files: Vec<PathBuf>,
}

/// How objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ObjectFormat {
    /// As `kubectl apply -f -` takes it
    Yaml,
    /// A List, likewise
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Set of values to start from: minimal (a laptop), default, or ha (the control plane survives the loss of a node)
    #[arg(long, value_name = "PROFILE", default_value_t)]
    pub(crate) profile: Profile,

    #[command(flatten)]
    pub(crate) values: ValueArgs,

    /// Leave the definitions of Istio's and the Gateway API's kinds to somebody else. Those that are there already are left
    /// alone anyway
    #[arg(long)]
    pub(crate) skip_crds: bool,

    /// Print the objects, and change nothing
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub(crate) output: Option<ObjectFormat>,

    /// Print the values that there are, with their defaults, and change nothing
    #[arg(long)]
    pub(crate) help_values: bool,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterUpgradeArgs {
    /// In a cluster: set of values to start from [default: the one of the installation]
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<Profile>,

    #[command(flatten)]
    pub(crate) values: ValueArgs,

    /// In a cluster: start from the profile alone, not from the values of the installation
    #[arg(long)]
    pub(crate) reset_values: bool,

    /// As with `leno install`
    #[arg(long)]
    pub(crate) skip_crds: bool,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    /// Also remove definitions of which there are objects, and all these objects: users' policies
    #[arg(long)]
    pub(crate) purge: bool,

    /// Longest to wait until everything is gone, as in 90s or 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = durations::parse)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EnrolArgs {
    /// The namespaces
    #[arg(value_name = "NAMESPACE", required = true, value_parser = names::namespace)]
    pub(crate) namespaces: Vec<String>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Check whether it can be installed, instead of whether it works
    #[arg(long)]
    pub(crate) pre: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(crate) installed: InstalledArgs,
}
