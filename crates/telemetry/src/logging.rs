//! The process log.

use std::io;
use std::str::FromStr;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::Error;

/// Format of log and access log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people: one line of text.
    #[default]
    Plain,
    /// For machines: one JSON object per line.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "plain" | "text" => Ok(Self::Plain),
            "json" => Ok(Self::Json),
            other => Err(format!("{other:?} is no log format; expected plain or json")),
        }
    }
}

/// Output of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Target {
    /// Standard output, as usual for servers in containers.
    #[default]
    Stdout,
    /// Standard error, for commands whose output is data.
    Stderr,
}

/// Changes the log while the process runs.
#[derive(Clone)]
pub struct LogHandle {
    reload: reload::Handle<Targets, Registry>,
    initial: String,
}

/// Sets up the process log. The filter is taken from the environment variable `RUST_LOG` if it
/// is set, else from `level`: a level, or a list of `module=level`.
///
/// # Errors
/// If the filter can't be understood or logging is already set up.
pub fn init(format: Format, target: Target, level: &str) -> Result<LogHandle, Error> {
    let initial = std::env::var("RUST_LOG").ok().filter(|v| !v.is_empty()).unwrap_or_else(|| level.to_owned());
    let (filter, reload) = reload::Layer::new(parse(&initial)?);
    let writer = move || -> Box<dyn io::Write> {
        match target {
            Target::Stdout => Box::new(io::stdout()),
            Target::Stderr => Box::new(io::stderr()),
        }
    };
    let layer = match format {
        Format::Plain => fmt::layer().with_ansi(false).with_writer(writer).boxed(),
        Format::Json => fmt::layer().json().flatten_event(true).with_writer(writer).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(layer).try_init().map_err(|_| Error::AlreadyInitialised)?;
    Ok(LogHandle { reload, initial })
}

/// Parses a filter, also in the forms that Istio's proxies accept (`module:level`).
fn parse(filter: &str) -> Result<Targets, Error> {
    let wrong = |reason: String| Error::Filter { filter: filter.to_owned(), reason };
    let mut directives = Vec::new();
    for part in filter.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        // `a::b=debug` contains colons, too. Only a single colon separates a level.
        let directive = match part.rsplit_once(':') {
            Some((module, level)) if !part.contains('=') && !module.ends_with(':') && is_level(level) => {
                format!("{module}={level}")
            }
            _ => part.to_owned(),
        };
        // The parser takes any single word for a module and logs it in full, so a typo would cause a flood.
        let is_module = directive.contains('=') || directive.contains("::");
        if !is_module && !is_level(&directive) {
            return Err(wrong(format!("{directive:?} is no level")));
        }
        // It would be taken for a part of the module's name, match nothing, and silence the log.
        if directive.contains(['[', ']']) {
            return Err(wrong(format!("{directive:?} filters by span, which is not supported")));
        }
        directives.push(directive);
    }
    if directives.is_empty() {
        return Err(wrong("it is empty".to_owned()));
    }
    directives.join(",").parse::<Targets>().map_err(|error| wrong(error.to_string()))
}

fn is_level(word: &str) -> bool {
    ["off", "error", "warn", "info", "debug", "trace"].iter().any(|level| word.eq_ignore_ascii_case(level))
}

impl LogHandle {
    /// Replaces the filter: a level, or a list of `module=level`.
    ///
    /// # Errors
    /// If the filter can't be understood; the old one stays.
    pub fn set(&self, filter: &str) -> Result<(), Error> {
        self.reload.reload(parse(filter)?).map_err(|_| Error::LogGone)
    }

    /// Restores the filter that the process started with.
    ///
    /// # Errors
    /// If the process is ending.
    pub fn reset(&self) -> Result<(), Error> {
        self.set(&self.initial)
    }

    /// The filter in force.
    pub fn current(&self) -> String {
        self.reload.with_current(ToString::to_string).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for (given, meant) in [
            ("info", "info"),
            ("info,leno_node=debug", "leno_node=debug,info"),
            ("leno_node:debug", "leno_node=debug"),
            ("leno_node::inbound:debug, warn", "leno_node::inbound=debug,warn"),
        ] {
            assert_eq!(parse(given).unwrap().to_string(), meant, "{given}");
        }
        for wrong in ["", ",", "loud", "leno[a]=debug", "leno=loud", "a=b=c"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.to_string().contains("no log filter"), "{error}");
        }
    }

    #[test]
    fn filter_changes_while_running() {
        let handle = init(Format::Plain, Target::Stderr, "error").unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG) || std::env::var_os("RUST_LOG").is_some());
        handle.set("debug").unwrap();
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        assert!(handle.set("loud").is_err());
        assert_eq!(handle.current(), "debug");
        handle.reset().unwrap();
        assert_eq!(handle.current(), handle.initial);
        assert!(matches!(init(Format::Json, Target::Stderr, "info"), Err(Error::AlreadyInitialised)));
    }
}
