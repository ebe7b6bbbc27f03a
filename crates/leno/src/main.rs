//! The `leno` binary: argv to role.

use std::path::Path;
use std::process::ExitCode;

mod agent;
mod control;
mod memory;
mod node;
mod signals;
mod waypoint;

fn main() -> ExitCode {
    // A container runtime finds its plugins by file name.
    if std::env::args_os()
        .next()
        .is_some_and(|name| Path::new(&name).file_name() == Some(leno_agent::plugin::NAME.as_ref()))
    {
        return leno_agent::plugin::main();
    }
    leno_cli::main(leno_cli::Roles {
        node: node::run,
        waypoint: waypoint::run,
        control: control::run,
        agent: agent::run,
        commit: option_env!("LENO_COMMIT"),
        profile: option_env!("LENO_PROFILE"),
    })
}
