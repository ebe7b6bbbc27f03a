//! `cargo xtask ci`: all that must hold before a change is taken. `.ci/run` is its entry.
//!
//! What is done is a list of steps ([`plan`]). [`schedule`] says which may run now, [`child`] runs each as a process of its
//! own, and [`report`] tells how it went.

mod causes;
mod child;
mod executables;
mod parts;
mod places;
mod plan;
mod report;
mod run;
mod schedule;
mod skips;
mod slowest;
mod step;
mod tools;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cluster::interrupt;
pub(crate) use crate::cluster::say;
pub(crate) use child::COMMAND as STEP;
use plan::Tier;

/// The hidden command that gets a program for the checks.
pub(crate) const TOOL: &str = "ci-tool";
/// The hidden command that is one of the steps which are more than a call of another program.
pub(crate) const PART: &str = "ci-part";

#[derive(Parser)]
#[command(
    name = "cargo xtask ci",
    about = "All that must hold before a change is taken; `.ci/run` calls this",
    after_help = "LENO_CI_WITHOUT=helm,conformance names steps that this machine can't do; with CI set, any other step that can't be \
                  done is a failure. LENO_CI_CACHE names another directory than ~/.cache/leno-ci for what is kept between runs."
)]
struct Arguments {
    /// What is checked
    #[arg(value_enum, default_value_t = Tier::All)]
    tier: Tier,
}

/// Runs a tier and says how it went.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let arguments = Arguments::parse_from(std::iter::once("cargo xtask ci".to_owned()).chain(arguments));
    match run::run(arguments.tier) {
        Err(error) if interrupt::came() => {
            say(&format!("{error:#}"));
            Ok(ExitCode::from(interrupt::EXIT_CODE))
        }
        ended => ended,
    }
}

/// Carries out one of the hidden commands.
pub(crate) fn hidden(command: &str, mut arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let code = match command {
        STEP => {
            child::become_the_step(arguments)?;
            1
        }
        TOOL => tools::get_for_a_step(&arguments.next().unwrap_or_default())?,
        _ => parts::run(&arguments.next().unwrap_or_default(), &arguments.collect::<Vec<_>>())?,
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
