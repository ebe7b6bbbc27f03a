//! The `leno` binary: argv to role.

use std::process::ExitCode;

mod control;
mod node;

// The system's allocator keeps what a burst of connections needed; this one gives it back, and
// is as good on musl as on glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    leno_cli::main(leno_cli::Roles { node: node::run, control: control::run, commit: option_env!("LENO_COMMIT") })
}
