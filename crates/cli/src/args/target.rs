//! Which is meant, where a command is about a stage of this machine or about a cluster. There is one rule for all of them
//! ([`crate::target`]).

use std::path::PathBuf;

use clap::Args;
use leno_local::names::StageName;

use crate::{complete, names};

/// A stage, or a cluster by kubectl's flags.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TargetArgs {
    /// A stage of this machine, by its name
    #[arg(
        long, env = "LENO_STAGE", value_name = "STAGE", value_parser = StageName::new, add = complete::stages(),
        help_heading = "Which stage or cluster"
    )]
    pub(crate) name: Option<StageName>,

    /// A cluster, by its kubeconfig file
    #[arg(long, value_name = "PATH", help_heading = "Which stage or cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// A cluster, by a context of the kubeconfig
    #[arg(long, value_name = "NAME", help_heading = "Which stage or cluster")]
    pub(crate) context: Option<String>,
}

/// The same, where a namespace says nothing else.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct InstalledArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// A cluster, by the namespace of its installation [default: where there is one]
    #[arg(
        short, long, value_name = "NAME", value_parser = names::namespace, help_heading = "Which stage or cluster"
    )]
    pub(crate) namespace: Option<String>,
}

/// What `--help` says at its end.
macro_rules! rule {
    () => {
        "Which is meant: with --kubeconfig or --context a cluster; with --name or $LENO_STAGE a stage of this machine; else the \
         stage `default` if there is one, else the cluster of the kubeconfig. Each answer names it."
    };
}
pub(crate) use rule;
