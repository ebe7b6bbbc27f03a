//! `leno up`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use leno_local::up::{self, Ended, OnTimeout, Patience};
use leno_local::{StageOptions, detach};

use crate::args::{self, UpArgs};
use crate::output;
use crate::stage::{ask, prepare};

/// How long `up --detach` waits until all is ready, unless told otherwise.
const READY: Duration = Duration::from_secs(60);

/// `leno up`.
pub(crate) fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    let mut options = StageOptions::new(args.stage.name.clone());
    let patience = patience(&args);
    if args.detach {
        ask(async { Ok(detach::run(&options.name, foreground(&args), patience).await?) })?;
        let flag = if options.name.as_str() == leno_local::names::DEFAULT_STAGE {
            String::new()
        } else {
            format!(" --name {}", options.name.as_str())
        };
        output::line(&format!("ready; look with `leno ps{flag}`, stop with `leno down{flag}`"))?;
        return Ok(ExitCode::SUCCESS);
    }
    for wanted in args.publish {
        options.published.push(wanted.open()?);
    }
    options.nodes = usize::from(args.nodes);
    options.manifests = args.files;
    for (node, program) in args.node_proxy {
        // Found now and from here: a proxy is started elsewhere, again and again.
        let found = program
            .canonicalize()
            .with_context(|| format!("--node-proxy: there is no program {} for {node}", program.display()))?;
        options.proxies.insert(node, found);
    }
    prepare("warn")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(up::run_foreground(options, patience));
    // A thread may still wait for manifests on standard input.
    runtime.shutdown_background();
    Ok(match ended? {
        Ended::Asked => ExitCode::SUCCESS,
        Ended::Signal => ExitCode::from(output::INTERRUPTED),
    })
}

/// How long to wait, as typed or by default.
fn patience(args: &UpArgs) -> Patience {
    let (limit, on_timeout) = if args.detach { (READY, OnTimeout::Keep) } else { (Duration::ZERO, OnTimeout::Stop) };
    Patience {
        limit: Some(args.timeout.unwrap_or(limit)).filter(|limit| !limit.is_zero()),
        on_timeout: match args.on_timeout {
            None => on_timeout,
            Some(args::OnTimeout::Stop) => OnTimeout::Stop,
            Some(args::OnTimeout::Keep) => OnTimeout::Keep,
        },
    }
}

/// The arguments of the `leno up` that runs detached.
fn foreground(args: &UpArgs) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec![
        "up".into(),
        "--name".into(),
        args.stage.name.as_str().into(),
        "--nodes".into(),
        args.nodes.to_string().into(),
    ];
    for file in &args.files {
        line.extend(["--file".into(), file.into()]);
    }
    for (node, program) in &args.node_proxy {
        let mut proxy = OsString::from(node);
        proxy.push("=");
        proxy.push(program);
        line.extend(["--node-proxy".into(), proxy]);
    }
    for published in &args.publish {
        line.extend(["--publish".into(), published.to_string().into()]);
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    #[derive(Debug, clap::Args)]
    struct NoSettings {}

    #[test]
    fn a_detached_stage_is_started_with_the_same_arguments() {
        let parse =
            |line: Vec<OsString>| match Cli::<NoSettings, NoSettings>::try_parse_from(line).expect("parses").command {
                Command::Up(args) => args,
                other => panic!("{other:?}"),
            };
        let typed =
            "leno up --detach -f a.yaml -f b --nodes 3 --node-proxy node-2=/z --publish 127.0.0.1:80=a/b:1 --name x";
        let typed = parse(typed.split(' ').map(OsString::from).collect());
        let again = parse(std::iter::once("leno".into()).chain(foreground(&typed)).collect());
        assert!(typed.detach && !again.detach);
        assert_eq!(format!("{typed:?}").replace("detach: true", "detach: false"), format!("{again:?}"));
    }

    #[test]
    fn a_detached_stage_is_waited_for_a_minute() {
        let patience = |line: &str| {
            let words = line.split(' ');
            match Cli::<NoSettings, NoSettings>::try_parse_from(words).expect("parses").command {
                Command::Up(args) => patience(&args),
                other => panic!("{other:?}"),
            }
        };
        let of = |limit, on_timeout| Patience { limit, on_timeout };
        let minute = Some(Duration::from_secs(60));
        assert_eq!(patience("leno up -f a"), of(None, OnTimeout::Stop));
        assert_eq!(patience("leno up -f a --detach"), of(minute, OnTimeout::Keep));
        assert_eq!(patience("leno up -f a --detach --on-timeout stop"), of(minute, OnTimeout::Stop));
        assert_eq!(patience("leno up -f a --detach --timeout 0"), of(None, OnTimeout::Keep));
        assert_eq!(patience("leno up -f a --timeout 1m"), of(minute, OnTimeout::Stop));
    }
}
