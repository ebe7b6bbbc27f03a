//! Settings that come from the environment: what is empty, and whose mistake it was.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, Command, Error};

/// Variables that say something by being empty: no token at all.
const EMPTY_IS_AN_ANSWER: [&str; 1] = ["AUTH_TOKEN"];

/// Parses arguments and environment. An empty variable is as good as none, as a manifest writes one that it has no value for;
/// and an error about a value from the environment names the variable, for nobody has typed the flag.
pub(crate) fn parse(command: Command, arguments: &[OsString]) -> Result<ArgMatches, Error> {
    let mut command = without_empty(command);
    let parsed = command.try_get_matches_from_mut(arguments);
    parsed.map_err(|error| naming_variables(error, &command, arguments))
}

fn without_empty(command: Command) -> Command {
    let without = |arg: Arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg };
    command.mut_args(without).mut_subcommands(without_empty)
}

fn is_empty(arg: &Arg) -> bool {
    let answers = |name: &OsStr| EMPTY_IS_AN_ANSWER.iter().any(|known| name == *known);
    arg.get_env().is_some_and(|name| !answers(name) && std::env::var_os(name).is_some_and(|value| value.is_empty()))
}

fn naming_variables(mut error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let text = |value: Option<&ContextValue>| value.map(ToString::to_string);
    let value = text(error.get(ContextKind::InvalidValue));
    let named = |flag: &String| match variable(command, arguments, flag) {
        Some(name) => match std::env::var_os(&name) {
            Some(set) if value.as_deref().is_some_and(|value| set == value) => {
                format!("{flag}, from {name} in the environment")
            }
            None if value.is_none() => format!("{flag}, or {name} in the environment"),
            _ => flag.clone(),
        },
        None => flag.clone(),
    };
    let better = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => Some(ContextValue::String(named(flag))),
        Some(ContextValue::Strings(flags)) => Some(ContextValue::Strings(flags.iter().map(named).collect())),
        _ => None,
    };
    if let Some(better) = better {
        error.insert(ContextKind::InvalidArg, better);
    }
    error
}

/// The variable that gives this argument its value when nobody types it, unless somebody has.
fn variable(command: &Command, arguments: &[OsString], flag: &str) -> Option<String> {
    let chosen = arguments.get(1).and_then(|name| command.find_subcommand(name));
    let arg = chosen.unwrap_or(command).get_arguments().find(|arg| arg.to_string() == flag)?;
    let long = arg.get_long().map(|long| format!("--{long}"))?;
    let typed = |word: &OsString| word.to_str().is_some_and(|word| word.split('=').next() == Some(&long));
    let name = arg.get_env()?.to_str()?;
    (!arguments.iter().any(typed)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Variables that a test program has anyway: none can be set while other tests run.
    const SET: &str = "CARGO_PKG_NAME";
    const EMPTY: &str = "CARGO_PKG_README";

    fn command(name: &'static str) -> Command {
        let number = Arg::new("number").long("number").env(name).required(true).value_parser(clap::value_parser!(u16));
        Command::new("leno").subcommand(Command::new("node").arg(number.clone())).arg(number.required(false))
    }

    fn error(name: &'static str, words: &[&str]) -> String {
        let words: Vec<OsString> = ["leno", "node"].iter().chain(words).map(OsString::from).collect();
        parse(command(name), &words).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_value_is_where_it_came_from() {
        let text = error(SET, &[]);
        assert!(text.contains("'leno-cli' for '--number <number>, from CARGO_PKG_NAME in the environment'"), "{text}");
        for typed in [&["--number", "x"][..], &["--number=x"]] {
            let text = error(SET, typed);
            assert!(text.contains("'x' for '--number <number>'") && !text.contains(SET), "{text}");
        }
    }

    #[test]
    fn what_is_missing_can_come_from_either() {
        let text = error("LENO_NO_SUCH_VARIABLE", &[]);
        assert!(text.contains("--number <number>, or LENO_NO_SUCH_VARIABLE in the environment"), "{text}");
    }

    #[test]
    fn an_empty_variable_is_none() {
        assert_eq!(std::env::var(EMPTY).as_deref(), Ok(""), "this crate has no readme of its own");
        assert!(error(EMPTY, &[]).contains("required arguments were not provided"));
        let parsed = parse(command(EMPTY), &["leno".into(), "node".into(), "--number".into(), "7".into()]).unwrap();
        assert_eq!(parsed.subcommand_matches("node").unwrap().get_one("number"), Some(&7_u16));
        let token = Arg::new("token").long("token").env("AUTH_TOKEN");
        assert!(!is_empty(&token.clone().env(SET)) && is_empty(&token.env(EMPTY)));
    }
}
