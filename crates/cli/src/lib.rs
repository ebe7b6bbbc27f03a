//! The command line: what a person types, and what is printed back.
//!
//! [`main`] parses and dispatches. Commands about the stage ask `leno-local`; the roles `node` and
//! `control` are handed in by the binary, so that nothing here knows how they are wired.
//!
//! Everything an operator reads follows the same rules: results on stdout (`-o json` where a script
//! may want them), the rest on stderr; an error says what happened, why, and what to do next.

#![allow(clippy::print_stderr, reason = "progress and errors belong on a terminal's stderr")]

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _};

mod args;
mod cluster;
mod complete;
mod config;
mod control_args;
mod debug;
mod demo;
mod durations;
mod environment;
mod explain;
mod listing;
mod logs;
mod man;
mod metrics;
mod names;
mod observe;
mod output;
#[cfg(test)]
mod pages_tests;
mod proxy_page;
mod ps;
mod sample;
mod stage;
mod status;
mod target;
mod up;
mod upgrade;
mod verdicts;

pub use control_args::ControlArgs;

use args::{Cli, Command, Format};

/// The functions that run the commands which are roles in a mesh.
pub struct Roles<N, W> {
    /// `leno node`: the proxy of one node, until it is told to stop.
    pub node: fn(N) -> anyhow::Result<()>,
    /// `leno waypoint`: a waypoint, until it is told to stop.
    pub waypoint: fn(W) -> anyhow::Result<()>,
    /// `leno control`: a control plane by itself, until it is told to stop.
    pub control: fn(ControlArgs) -> anyhow::Result<()>,
    /// `leno agent`: keeps a cluster node's pods in the mesh, until it is told to stop.
    pub agent: fn(leno_agent::Config) -> anyhow::Result<()>,
    /// The commit that the program was built from, if it is known.
    pub commit: Option<&'static str>,
    /// The cargo profile that the program was built by, if it is known: `dist` is what is shipped and measured.
    pub profile: Option<&'static str>,
}

/// Runs what the process's arguments ask for. `N` declares the settings of the node proxy, `W` those of
/// the waypoint.
///
/// Without arguments the environment variable `LENO_ROLE` chooses the command, for images and node
/// agents that can set the environment only.
///
/// Exit status: 0 done, 1 failed, 2 wrong usage, 130 ended early by a signal; `leno exec` exits as its command does.
pub fn main<N: clap::Args, W: clap::Args>(roles: Roles<N, W>) -> ExitCode {
    // The stage starts this program again for each pod, with no arguments of its own.
    if leno_local::init::is_pod_init() {
        leno_local::init::pod_init();
    }
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    // The lab starts this program under another name where only a path can be given.
    if let Some(main) = arguments.first().and_then(|name| leno_lab::main_by_name(name)) {
        return main();
    }
    if complete::answered(Cli::<N, W>::command) {
        return ExitCode::SUCCESS;
    }
    if arguments.len() <= 1
        && let Some(role) = std::env::var_os("LENO_ROLE").filter(|role| !role.is_empty())
    {
        arguments = vec!["leno".into(), role];
    }
    let ended =
        |result: anyhow::Result<()>| result.map_or_else(|error| output::failure(&error), |()| ExitCode::SUCCESS);
    if let Some(settings) = proxy_settings("node", &arguments) {
        return ended((roles.node)(settings));
    }
    if let Some(settings) = proxy_settings("waypoint", &arguments) {
        return ended((roles.waypoint)(settings));
    }
    let parsed = environment::parse(Cli::<N, W>::command(), &arguments);
    let cli = match parsed.and_then(|matches| Cli::<N, W>::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Fails only if the terminal is gone, and then there is nobody to tell.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(output::WRONG_USAGE));
        }
    };
    match run(cli, roles) {
        Ok(code) => code,
        Err(error) => output::failure(&error),
    }
}

/// The settings of `leno node` or `leno waypoint`, if that is asked for and nothing is wrong with them.
///
/// The full parser declares every command's arguments before it looks at one: 1.3 MiB of code and
/// data, which a proxy would keep for as long as it runs.
fn proxy_settings<N: clap::Args>(role: &str, arguments: &[OsString]) -> Option<N> {
    #[derive(clap::Parser)]
    struct Alone<N: clap::Args> {
        #[command(flatten)]
        settings: N,
    }

    let (_, words) = arguments.split_first().filter(|(_, rest)| rest.first().is_some_and(|word| word == role))?;
    // Help and errors are the full parser's.
    let matches = environment::parse(Alone::<N>::command(), words).ok()?;
    Alone::from_arg_matches(&matches).ok().map(|alone: Alone<N>| alone.settings)
}

fn run<N: clap::Args, W: clap::Args>(cli: Cli<N, W>, roles: Roles<N, W>) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Node(settings) => (roles.node)(settings)?,
        Command::Waypoint(args) => match (args.command, args.role) {
            (Some(command), _) => return cluster::waypoint::run(command),
            (None, Some(settings)) => (roles.waypoint)(settings)?,
            (None, None) => anyhow::bail!("leno waypoint needs its place in the mesh; see `leno waypoint --help`"),
        },
        Command::Control(args) => (roles.control)(args)?,
        Command::Agent(config) => (roles.agent)(config)?,
        Command::Sample { part } => return sample::run(part),
        Command::Lab { command } => {
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            command.execute(&program, roles.commit)?;
        }
        Command::LabLoad { spec } => return Ok(leno_lab::load::load_main(&spec)),
        Command::LabServer { spec } => return Ok(leno_lab::load::server_main(&spec)),
        Command::LabControl => return Ok(leno_lab::churn::control_main()),
        Command::Version(args) => match args.output {
            Format::Text => {
                let known: Vec<_> = roles.commit.into_iter().chain(roles.profile).collect();
                let build = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
                output::line(&format!("leno {}{build}", env!("CARGO_PKG_VERSION")))?;
            }
            Format::Json => {
                let version = env!("CARGO_PKG_VERSION");
                let build = serde_json::json!({
                    "version": version,
                    "commit": roles.commit,
                    "profile": roles.profile,
                });
                output::json(&build)?;
            }
        },
        Command::Completion { shell } => {
            output::bytes(&complete::script(shell)?)?;
        }
        Command::Man(args) => man::run(Cli::<N, W>::command(), &args)?,
        Command::Demo(args) => return demo::run(&args),
        Command::Up(args) => return up::run(args),
        Command::Down(args) => stage::down(&args)?,
        Command::Ps(args) => ps::run(&args)?,
        Command::Exec(args) => return stage::exec(args),
        Command::Scale(args) => stage::scale(&args)?,
        Command::Upgrade(args) if args.node_proxy.is_empty() => return cluster::upgrade(args),
        Command::Upgrade(args) => upgrade::run(&args)?,
        Command::Logs(args) => logs::run(&args)?,
        Command::Explain(args) => explain::run(&args)?,
        Command::Config(args) => config::run(&args)?,
        Command::Debug { command } => {
            let build = debug::Build { commit: roles.commit, profile: roles.profile };
            cluster::until_done(async {
                debug::run(command, &build).await?;
                Ok(ExitCode::SUCCESS)
            })?;
        }
        Command::Metrics(args) => metrics::run(&args)?,
        Command::Status(args) => {
            cluster::until_done(async {
                status::run(args).await?;
                Ok(ExitCode::SUCCESS)
            })?;
        }
        Command::Observe(args) => observe::run(&args)?,
        Command::Cluster(command) => return cluster::run(command),
    }
    Ok(ExitCode::SUCCESS)
}
