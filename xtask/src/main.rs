//! Developer commands, run as `cargo xtask <command>`.

use std::process::ExitCode;

use anyhow::{Result, bail};

mod archive;
mod ci;
mod cluster;
mod codegen;
mod command;
mod conformance;
mod elf;
mod image;
mod kept;
mod package;
mod whole_file;

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("cluster") => return cluster::run(arguments),
        Some(cluster::PROCESS) => return cluster::process(arguments),
        Some("ci") => return ci::run(arguments),
        Some(command @ (ci::STEP | ci::TOOL | ci::PART)) => return ci::hidden(command, arguments),
        Some("conformance") => return conformance::run(arguments),
        Some("codegen") => codegen::run()?,
        Some("image") => image::run(arguments)?,
        Some("package") => package::run(arguments)?,
        other => {
            bail!(
                "unknown command {:?}; there is: ci, cluster, codegen, conformance, image, package",
                other.unwrap_or_default()
            )
        }
    }
    Ok(ExitCode::SUCCESS)
}
