//! Printing: results on stdout, errors on stderr, colour only where a person looks.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;

/// The reader of stdout has closed it, as in `leno ps | head -1`. That is no failure.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
struct ReaderGone;

/// Writes to stdout as is.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => Ok(written.context("writing to stdout")?),
    }
}

/// One line of text.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// One JSON object, indented.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// Rows under a heading, in columns as wide as they need to be.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let columns = heading.len();
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let heading: Vec<String> = heading.iter().map(ToString::to_string).collect();
    for row in std::iter::once(&heading).chain(rows) {
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            text.push_str(cell);
            if index + 1 < columns {
                text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 3));
            }
        }
        // An empty last cell leaves padding behind.
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text.pop();
    text
}

/// Colours of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// For stdout: on a terminal, unless `NO_COLOR` is set (no-color.org).
    pub(crate) fn stdout() -> Self {
        Self { on: wanted(io::stdout().is_terminal()) }
    }

    /// No colours.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { on: false }
    }

    /// The same for stderr.
    pub(crate) fn stderr() -> Self {
        Self { on: wanted(io::stderr().is_terminal()) }
    }

    #[cfg(test)]
    pub(crate) fn always() -> Self {
        Self { on: true }
    }

    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self { on: false }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.with("31;1", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Exit status for what was typed and fits nothing, as the argument parser's own.
pub(crate) const WRONG_USAGE: u8 = 2;

/// Exit status for what a signal ended early: a shell's for SIGINT, so that a script's loop ends with it.
pub(crate) const INTERRUPTED: u8 = 130;

/// The operator ended it early. Everything is taken apart by the time this is told.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Prints an error with its causes and gives the exit status for it.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    if error.is::<ReaderGone>() {
        return ExitCode::SUCCESS;
    }
    eprintln!("{} {}", Paint::stderr().bad("error:"), explain(error));
    match error.downcast_ref() {
        Some(lab) if leno_lab::Error::is_usage(lab) => ExitCode::from(WRONG_USAGE),
        Some(leno_lab::Error::Interrupted) => ExitCode::from(INTERRUPTED),
        _ if matches!(error.downcast_ref(), Some(leno_local::Error::Usage(_))) => ExitCode::from(WRONG_USAGE),
        _ if error.is::<Interrupted>() => ExitCode::from(INTERRUPTED),
        _ if matches!(error.downcast_ref(), Some(leno_local::Error::Interrupted)) => ExitCode::from(INTERRUPTED),
        _ => ExitCode::FAILURE,
    }
}

/// The error and its causes, each said once: many errors repeat their source in their own text.
fn explain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str("\n  because: ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["bébé".to_owned(), String::new()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME   N\na      1\nbébé");
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("no such file").context("reading x: no such file").context("starting");
        assert_eq!(explain(&error), "starting\n  because: reading x: no such file");
    }
}
