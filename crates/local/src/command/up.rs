//! `leno up`: a stage for as long as the process lives, in the foreground or detached.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;

use crate::Error;
use crate::command::client::Client;
use crate::names::StageName;
use crate::run_dir::lock::{Holder, Lock};
use crate::stage::listing::Listing;
use crate::stage::{Stage, StageEvent, StageOptions};

/// Environment variable that tells a detached supervisor to show progress nowhere.
const DETACHED: &str = "LENO_DETACHED";

/// Plays a stage until Ctrl-C, SIGTERM or `leno down`, then removes every trace. `privilege` must
/// have been acquired before. Each step is told on standard error only if that is a
/// terminal; that all is ready, edits and warnings always.
///
/// # Errors
/// If the stage can't be started.
pub async fn run_foreground(options: StageOptions) -> Result<(), Error> {
    let name = options.name.as_str().to_owned();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::io("cannot listen for signals"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::io("cannot listen for signals"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(Error::io("cannot listen for signals"))?;
    let detached = std::env::var_os(DETACHED).is_some();
    let show = std::io::stderr().is_terminal() && !detached;
    let started = {
        let id = options.name.clone();
        let starting = Stage::start(options);
        let stage = tokio::select! {
            stage = starting => Some(stage?),
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
        };
        if stage.is_none() {
            crate::stage::sweep::sweep_abandoned(&id)?;
        }
        stage
    };
    let Some(stage) = started else { return Ok(()) };
    let mut events = stage.events();
    let mut listing = stage.watch_listing();
    let mut last = Progress { quiet: detached, ..Progress::default() };
    let mut refused = false;
    last.tell(&name, &listing.borrow_and_update().clone(), show);
    let down = stage.down_requested();
    tokio::pin!(down);
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Ok(event) => tell(&event, show, &mut refused),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            },
            Ok(()) = listing.changed() => {
                let now = listing.borrow_and_update().clone();
                last.tell(&name, &now, show);
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => break,
            () = &mut down => break,
        }
    }
    if show {
        say("stopping; everything is removed");
    }
    let ending = stage.shutdown();
    tokio::pin!(ending);
    tokio::select! {
        () = &mut ending => {}
        // Twice: the kernel ends what is left of the processes, `leno down` removes the rest.
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Progress of a stage on a terminal: one line per thing that became ready.
#[derive(Default)]
struct Progress {
    warned: std::collections::BTreeSet<String>,
    ready: std::collections::BTreeSet<String>,
    complete: bool,
    /// Whether nobody is there to be told that all is ready.
    quiet: bool,
}

impl Progress {
    /// Tells of every warning once.
    fn warn(&mut self, now: &Listing) {
        for warning in &now.warnings {
            if self.warned.insert(warning.clone()) {
                say(&format!("warning: {warning}"));
            }
        }
    }

    fn tell(&mut self, name: &str, now: &Listing, show: bool) {
        self.warn(now);
        if show {
            self.steps(now);
        }
        let complete = now.is_ready() && !now.pods.is_empty();
        if complete && !self.complete && !self.quiet {
            let flag = crate::error::name_flag(name);
            say(&format!("all ready; look with `leno ps{flag}`, stop with Ctrl-C"));
        }
        // Without a terminal once is enough: what comes and goes would fill a log.
        self.complete = complete || (self.complete && !show);
    }

    fn steps(&mut self, now: &Listing) {
        let mut ready = std::collections::BTreeSet::new();
        for node in now.nodes.iter().filter(|node| node.ready) {
            ready.insert(format!("{}: proxy ready", node.name));
        }
        for pod in now.pods.iter().filter(|pod| pod.is_settled()) {
            let mesh = if pod.in_mesh { ", in the mesh" } else { "" };
            ready.insert(format!("{}: pod {}/{} ready{mesh}", pod.node, pod.namespace, pod.name));
        }
        for line in ready.difference(&self.ready) {
            say(line);
        }
        self.ready = ready;
    }
}

/// Tells what happened. `refused`: whether the last edit was, and so what is loaded is an answer to that.
fn tell(event: &StageEvent, show: bool, refused: &mut bool) {
    match event {
        StageEvent::Refused(text) => {
            for line in text.lines() {
                say(&format!("error: {line}"));
            }
            say("the edit is refused as a whole; the last good state stays");
            *refused = true;
        }
        StageEvent::Loaded { objects } => {
            let mended = if std::mem::take(refused) { "; the edit is in force" } else { "" };
            say(&format!("{objects} objects loaded{mended}"));
        }
        StageEvent::PodGone { namespace, name } if show => say(&format!("pod {namespace}/{name} is gone")),
        StageEvent::PodGone { .. } => {}
    }
}

#[allow(clippy::print_stderr, reason = "this is the command's output")]
fn say(line: &str) {
    eprintln!("{line}");
}

/// Starts this program again with `args` as a process of its own session, and waits until its
/// stage is ready. `args` must be those of `leno up` in the foreground. What it prints is kept in
/// the run directory; manifests on standard input are handed on.
///
/// # Errors
/// The supervisor's own words if it ends, or [`Error::Timeout`] if not all is ready in time; the
/// stage goes on then.
pub async fn detach(name: &StageName, args: Vec<OsString>, limit: Duration) -> Result<(), Error> {
    let run_dir = crate::run_dir::make(name)?;
    // Taken and given back: refused here already, in words that need no log.
    drop(Lock::take(&run_dir, name)?);
    let path = run_dir.join("supervisor.log");
    let what = format!("cannot write {}", path.display());
    // Read through this descriptor: a supervisor that fails removes the whole directory.
    let log = crate::run_dir::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map_err(Error::io(what.clone()))?;
    log.set_len(0).map_err(Error::io(what.clone()))?;
    let (output, errors) =
        log.try_clone().and_then(|output| Ok((output, log.try_clone()?))).map_err(Error::io(what))?;
    let program = std::env::current_exe().map_err(Error::io("cannot find this program's own file"))?;
    let mut command = Command::new(program);
    // Kept open only for manifests: a supervisor that holds a terminal open keeps it from closing.
    let input = if args.iter().any(|arg| arg == "-") { Stdio::inherit() } else { Stdio::null() };
    command.args(args).env(DETACHED, "1").stdin(input).stdout(output).stderr(errors);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::io("cannot listen for signals"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::io("cannot listen for signals"))?;
    let mut child = spawn_in_session(&mut command).map_err(Error::io("cannot start the supervisor"))?;
    let end = Instant::now() + limit;
    let mut told = Progress::default();
    loop {
        if let Ok(Some(_)) = child.try_wait() {
            if Lock::holder(&run_dir) == Holder::Nobody {
                // It failed before it had anything to clean up.
                let _ = name.remove_run_dir();
            }
            let text = read_from(&log, 0);
            // Warnings that came before the failure were told already, or matter no more.
            let lines = text.lines().filter(|line| !line.starts_with("warning: "));
            let text = lines.collect::<Vec<_>>().join("\n");
            let text = text.trim();
            let text = text.strip_prefix("error: ").unwrap_or(text);
            return Err(Error::Refused(if text.is_empty() {
                "the supervisor ended at once".to_owned()
            } else {
                text.to_owned()
            }));
        }
        let mut missing = "the supervisor does not answer yet".to_owned();
        if let Ok(mut client) = Client::connect(name).await
            && let Ok(listing) = client.ps().await
        {
            told.warn(&listing);
            if listing.is_ready() {
                return Ok(());
            }
            missing = listing.missing();
        }
        if Instant::now() > end {
            return Err(Error::Timeout(format!(
                "the stage runs, but after {limit:?} not all is ready: {missing}; look with `leno ps`"
            )));
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(30)) => continue,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        return Err(Error::Refused(format!(
            "interrupted; the stage goes on in the background, stop it with `leno down{}`",
            crate::error::name_flag(name.as_str())
        )));
    }
}

fn read_from(log: &File, start: u64) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = log.read_at(&mut part, start + bytes.len() as u64) {
        bytes.extend_from_slice(&part[..length]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[allow(unsafe_code)]
fn spawn_in_session(command: &mut Command) -> std::io::Result<std::process::Child> {
    // SAFETY: `setsid` is one system call, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            Ok(())
        });
    }
    command.spawn()
}
