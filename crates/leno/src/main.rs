//! The `leno` binary: argv to role.

use std::process::ExitCode;

mod control;
mod memory;
mod node;

fn main() -> ExitCode {
    leno_cli::main(leno_cli::Roles {
        node: node::run,
        control: control::run,
        commit: option_env!("LENO_COMMIT"),
        profile: option_env!("LENO_PROFILE"),
    })
}
