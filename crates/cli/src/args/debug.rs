//! What `leno debug` is asked for.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::InstalledArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Collect what a report about a problem needs into one archive
    #[command(after_help = concat!("Examples:\n  \
        leno debug collect\n  \
        leno debug collect -o report.tar.gz --context prod\n  \
        leno debug collect --node n1 --since 1h\n\n\
        In it: versions, what `leno check` and `leno status` say, each proxy's configuration, connections and metrics, the logs of \
        Leno's own parts, and in a cluster the objects and Events of its namespace and the policies. Never in it: Secrets, keys, \
        and the logs of your own programs in a cluster. What can't be read is listed in errors.txt, and the rest is there.\n\n", super::target::rule!()))]
    Collect(CollectArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CollectArgs {
    /// File to write [default: leno-debug-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub(crate) output: Option<PathBuf>,

    /// Only this node's parts, and the control plane; may be given again
    #[arg(long)]
    pub(crate) node: Vec<String>,

    /// Only what was logged within this time, as in 30m or 2h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::durations::parse)]
    pub(crate) since: std::time::Duration,

    #[command(flatten)]
    pub(crate) installed: InstalledArgs,
}
