//! Commands about a stage that runs: `down`, `exec`, `scale`.

use std::process::ExitCode;

use leno_local::client::Client;
use leno_local::{down, privilege};
use leno_telemetry::logging;

use crate::args::{ExecArgs, ScaleArgs, StageArgs};
use crate::output;

/// Starts what a stage needs of this process: privileges, before there is a second thread, and a log of `level`.
pub(crate) fn prepare(level: &str) -> anyhow::Result<()> {
    privilege::acquire()?;
    logging::init(logging::Format::Plain, logging::Target::Stderr, level)?;
    Ok(())
}

/// A runtime for a command that asks the stage something.
pub(crate) fn ask<T>(question: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(question)
}

pub(crate) async fn connect(args: &StageArgs) -> anyhow::Result<Client> {
    Ok(Client::connect(&args.name).await?)
}

/// `leno down`.
pub(crate) fn down(args: &StageArgs) -> anyhow::Result<()> {
    let name = &args.name;
    let outcome = ask(async { Ok(down::run(name).await?) })?;
    if name.as_str() == leno_lab::STAGE {
        // No part of the stage, and a killed lab leaves them.
        leno_lab::run::remove_sockets();
    }
    let mut text = match outcome {
        down::Outcome::Stopped => "stopped; nothing is left".to_owned(),
        down::Outcome::Cleaned => "it did not run any more; what it left is removed".to_owned(),
        down::Outcome::Nothing => {
            let nothing = format!("no stage {} ran, and nothing of one was left", name.as_str());
            match name.others().as_slice() {
                [] => nothing,
                // That of a lab too, which a killed one leaves.
                others => format!("{nothing}; there is something of {}, which `--name` would end", others.join(", ")),
            }
        }
    };
    // Of a stage that ran, all that it made is known.
    let unrecorded = if outcome == down::Outcome::Stopped { Vec::new() } else { down::unrecorded(name) };
    if !unrecorded.is_empty() {
        text.push_str(&format!(
            "; the network namespaces {} have such names, but no record says that leno made them, so they stay: remove one \
             that nobody needs (an older leno left no record) with `ip netns delete NAME`",
            unrecorded.join(", ")
        ));
    }
    output::line(&text)
}

/// `leno exec`.
pub(crate) fn exec(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let pod = &args.pod;
    let ended =
        ask(async { Ok(connect(&args.stage).await?.exec(&pod.namespace, &pod.name, None, args.command).await?) });
    let code = match ended {
        Ok(code) => code,
        // Said like any error, but a script can tell it from the program's own failure.
        Err(error) => match error.downcast_ref() {
            Some(leno_local::Error::NotStarted { code, .. }) => {
                let code = *code;
                output::failure(&error);
                code
            }
            _ => return Err(error),
        },
    };
    // Codes beyond 255 don't exist; if one did, it would be a failure.
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// `leno scale`.
pub(crate) fn scale(args: &ScaleArgs) -> anyhow::Result<()> {
    let (deployment, wanted) = (&args.deployment, args.replicas);
    let before =
        ask(async { Ok(connect(&args.stage).await?.scale(&deployment.namespace, &deployment.name, wanted).await?) })?;
    output::line(&if before == wanted {
        format!("{deployment} has {} already", pods(wanted))
    } else {
        format!("{deployment} scaled from {before} to {}", pods(wanted))
    })
}

fn pods(count: u32) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}
