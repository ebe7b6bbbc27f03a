//! What a person reads: progress on standard error, answers on standard output.

use std::io::Write as _;

use anyhow::{Context as _, Result};

/// Tells the person who waits what goes on.
pub(crate) fn say(text: &str) {
    // Nobody is left to tell where this fails.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints an answer.
pub(crate) fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("writing the answer")
}
