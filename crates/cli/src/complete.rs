//! Shell completion that knows what runs: names of stages, nodes, pods, Deployments and Services.
//!
//! The script that `leno completion` prints asks this program at each TAB, with the variable [`ASKED`] set. Whatever goes wrong
//! then, there is nothing to complete: a message would end up in the line that somebody types.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use anyhow::Context as _;
use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use leno_local::Listing;
use leno_local::client::Client;
use leno_local::names::{DEFAULT_STAGE, StageName};

use crate::stage::ask;

/// Environment variable by which a shell's script asks for candidates.
const ASKED: &str = "LENO_COMPLETE";

/// Longest that a TAB may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers a shell's question, if this process was started for one.
pub(crate) fn answered(program: fn() -> Command) -> bool {
    if std::env::var_os(ASKED).is_none() {
        return false;
    }
    CompleteEnv::with_factory(program).var(ASKED).try_complete(std::env::args_os(), None).unwrap_or(true)
}

/// The script for a shell.
pub(crate) fn script(shell: clap_complete::Shell) -> anyhow::Result<Vec<u8>> {
    let shell = shell.to_string();
    let mut text = Vec::new();
    let shells = Shells::builtins();
    let writer = shells.completer(&shell).with_context(|| format!("there is no completion for {shell}"))?;
    writer.write_registration(ASKED, "leno", "leno", "leno", &mut text)?;
    Ok(text)
}

/// Names of stages.
pub(crate) fn stages() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = leno_local::stages::names().unwrap_or_default();
        matching(typed, names.iter().map(|name| name.as_str().to_owned()))
    })
}

/// Names of nodes.
pub(crate) fn nodes() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = listing().into_iter().flat_map(|listing| listing.nodes).map(|node| node.name);
        matching(typed, names)
    })
}

/// `NS/POD`, and `NS/DEPLOYMENT` for any of its pods.
pub(crate) fn pods() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let known = listing().map(|listing| pod_names(&listing).chain(listing.deployments).collect::<Vec<_>>());
        matching(typed, known.into_iter().flatten())
    })
}

/// `NS/DEPLOYMENT`.
pub(crate) fn deployments() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        matching(typed, listing().into_iter().flat_map(|listing| listing.deployments))
    })
}

/// `NS/NAME:PORT` of a Service.
pub(crate) fn services() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| matching(typed, listing().into_iter().flat_map(|listing| listing.services)))
}

fn pod_names(listing: &Listing) -> impl Iterator<Item = String> + use<> {
    let names: Vec<_> = listing.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    names.into_iter()
}

fn matching(typed: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let mut names: Vec<_> = names.filter(|name| name.starts_with(typed)).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The stage that the line is about, as it is now.
fn listing() -> Option<Listing> {
    let name = stage_of(&std::env::args_os().collect::<Vec<_>>())?;
    let asking = async { Ok(Client::connect(&name).await?.ps().await?) };
    ask(async { tokio::time::timeout(PATIENCE, asking).await.context("no answer")? }).ok()
}

/// What `--name` says in the line, else the environment, else the default.
fn stage_of(words: &[OsString]) -> Option<StageName> {
    let words: Vec<_> = words.iter().filter_map(|word| word.to_str()).collect();
    let apart = words.windows(2).filter(|pair| pair[0] == "--name").map(|pair| pair[1].to_owned());
    let joined = words.iter().filter_map(|word| word.strip_prefix("--name=")).map(str::to_owned);
    let typed = apart.chain(joined).next();
    let name = typed.or_else(|| std::env::var("LENO_STAGE").ok().filter(|name| !name.is_empty()));
    StageName::new(name.as_deref().unwrap_or(DEFAULT_STAGE)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_is_that_of_the_line() {
        let of = |line: &str| stage_of(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let name = |line| of(line).map(|name| name.as_str().to_owned());
        assert_eq!(name("leno -- leno exec --name x sh").as_deref(), Some("x"));
        assert_eq!(name("leno -- leno exec --name=y sh").as_deref(), Some("y"));
        assert_eq!(name("leno exec --name NOT"), None);
    }

    #[test]
    fn what_is_typed_narrows_it_down() {
        let names = ["shop/web", "shop/db", "shop/web", "a/b"].map(str::to_owned);
        let found = matching(OsStr::new("shop/"), names.into_iter());
        let found: Vec<_> = found.iter().map(|candidate| candidate.get_value().to_str().unwrap()).collect();
        assert_eq!(found, ["shop/db", "shop/web"]);
    }

    #[test]
    fn every_shell_has_a_script_that_asks_this_program() {
        for shell in <clap_complete::Shell as clap::ValueEnum>::value_variants() {
            let script = String::from_utf8(script(*shell).unwrap()).unwrap();
            assert!(script.contains(ASKED), "{shell}: {script}");
        }
    }
}
