//! `leno demo --keep`: the stage must outlive the command that was typed. A stage can't change its process, so the command
//! starts itself once more, as the keeper, which plays, hands its report over and stays.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::report::Report;
use super::scene::Scene;
use crate::args::DemoArgs;

/// Set for the keeper: `watched` if a person sees its progress.
const KEEPER: &str = "LENO_DEMO_KEEPER";

/// Whether this process is the keeper.
pub(super) fn is_keeper() -> bool {
    std::env::var_os(KEEPER).is_some()
}

/// Whether a person watches the command that started the keeper.
pub(super) fn is_watched() -> bool {
    std::env::var_os(KEEPER).is_some_and(|value| value == "watched")
}

/// Lets the keeper play and returns its report; `None` if it failed and said so itself.
pub(super) fn play_in_keeper(args: &DemoArgs, watched: bool) -> anyhow::Result<Option<Report>> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut keeper = Command::new(program)
        .args(["demo", "--keep", "--name", args.name.as_str(), "--duration", &args.duration.to_string()])
        .env(KEEPER, if watched { "watched" } else { "unwatched" })
        // Held open until this process ends: that is how the keeper learns of a Ctrl-C.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Not inherited: the keeper's pods would keep it open, and a reader of this command's output would wait for
        // them.
        .stderr(Stdio::piped())
        // Out of reach of the terminal's own Ctrl-C, now and later.
        .process_group(0)
        .spawn()
        .context("cannot start the demonstration")?;
    let complaints = keeper
        .stderr
        .take()
        .map(|mut from| std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::stderr())));
    let mut text = String::new();
    if let Some(stdout) = &mut keeper.stdout {
        stdout.read_to_string(&mut text)?;
    }
    if text.is_empty() {
        keeper.wait()?;
        // To the end of the output. With the keeper, its pods have ended, too.
        let _ = complaints.map(std::thread::JoinHandle::join);
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&text).context("the demonstration's report cannot be read")?))
}

/// In the keeper: completes when the command that started it is gone. Otherwise never.
pub(super) fn caller_gone(keeper: bool) -> impl Future<Output = ()> {
    let gone = keeper.then(|| {
        let (sender, gone) = oneshot::channel::<()>();
        // A thread, because reading standard input can't be cancelled; it ends with the process.
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            drop(sender);
        });
        gone
    });
    async {
        match gone {
            // An error is what it waits for: the sender is gone.
            Some(gone) => drop(gone.await),
            None => std::future::pending().await,
        }
    }
}

/// Gives the report to the command, which then goes its way.
pub(super) fn hand_over(report: &Report) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, report)?;
    stdout.flush()?;
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stdout(&nowhere)?;
    nix::unistd::dup2_stderr(&nowhere)?;
    Ok(())
}

/// Waits for `leno down`, or SIGTERM.
pub(super) async fn until_told(scene: &Scene) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    // The terminal it was started from may close.
    let _hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        () = scene.down_requested() => (),
        _ = terminate.recv() => (),
    }
    Ok(())
}
