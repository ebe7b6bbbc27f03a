//! `leno up --detach`: a supervisor as a process of its own, and the wait until its stage is ready.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Error;
use crate::command::client::Client;
use crate::command::progress::{Audience, LOOK, Progress, say};
use crate::command::signals::Signals;
use crate::command::up::{DETACHED, OnTimeout, Patience};
use crate::error::name_flag;
use crate::names::StageName;
use crate::run_dir::disk;
use crate::run_dir::lock::Lock;
use crate::stage::listing::Listing;
use crate::stage::{journal, sweep};

/// Between two looks at a stage that comes up.
const ASK: Duration = Duration::from_millis(30);

/// Starts this program again with `args` as a process of its own session, and waits until its
/// stage is ready, telling what it waits for. `args` must be those of `leno up` in the foreground. What it prints goes to the
/// stage's log; manifests on standard input are handed on.
///
/// # Errors
/// The supervisor's own words if it ends; [`Error::Timeout`] if not all is ready in time; [`Error::Interrupted`] after a signal,
/// once the stage has ended.
pub async fn run(name: &StageName, args: Vec<OsString>, patience: Patience) -> Result<Listing, Error> {
    let mut signals = Signals::listen()?;
    let run_dir = crate::run_dir::make(name)?;
    // Taken and given back: refused here already, in words that need no log.
    let log = Lock::take(&run_dir, name).and_then(|lock| {
        drop(lock);
        open_log(&run_dir)
    });
    // What could not be made here is told, and not what of it can't be removed.
    let log = log.inspect_err(|_| drop(sweep::finish_unheld(name, &run_dir)))?;
    let mut supervisor = Supervisor { child: start(&log, args)?, log, run_dir, name: name.clone() };
    let begun = Instant::now();
    let mut progress = Progress::detached(Audience::of_stderr());
    let mut looked = Instant::now();
    loop {
        supervisor.check()?;
        let listing = supervisor.listing().await;
        if let Some(listing) = &listing {
            progress.tell(listing);
            if listing.is_ready() {
                return Ok(listing.clone());
            }
            if looked.elapsed() >= LOOK {
                progress.tell_missing(listing);
                looked = Instant::now();
            }
        }
        if let Some(limit) = patience.limit.filter(|limit| begun.elapsed() >= *limit) {
            let missing =
                listing.map_or_else(|| "the supervisor does not answer yet".to_owned(), |listing| listing.missing());
            let text = format!("after {limit:?} not all is ready: {missing}");
            return Err(Error::Timeout(match patience.on_timeout {
                OnTimeout::Keep => format!(
                    "{text}; the stage goes on: look with `leno ps{0}` and `leno logs{0} NS/POD`, end it with `leno down{0}`",
                    name_flag(name.as_str())
                ),
                OnTimeout::Stop => {
                    supervisor.stop(&mut signals).await?;
                    format!("{text}; the stage was stopped, `--on-timeout keep` would leave it for a look")
                }
            }));
        }
        tokio::select! {
            () = tokio::time::sleep(ASK) => {}
            () = signals.next() => {
                supervisor.stop(&mut signals).await?;
                return Err(Error::Interrupted);
            }
        }
    }
}

/// The process that plays the stage.
struct Supervisor {
    child: Child,
    log: File,
    run_dir: PathBuf,
    name: StageName,
}

impl Supervisor {
    /// Whether it still runs.
    ///
    /// # Errors
    /// Its last words if not.
    fn check(&mut self) -> Result<(), Error> {
        let Ok(Some(status)) = self.child.try_wait() else { return Ok(()) };
        self.remove_traces();
        let text = whole(&self.log);
        // What has a time is the stage's log, and told already or of no more use.
        let lines = text.lines().filter(|line| !line.starts_with(|c: char| c.is_ascii_digit()));
        let text = lines.collect::<Vec<_>>().join("\n");
        let text = text.trim();
        let text = text.strip_prefix("error: ").unwrap_or(text);
        let without_words = || {
            let flag = name_flag(self.name.as_str());
            format!(
                "the stage's supervisor ended without a word ({status}); if a signal killed it, the machine may be out of memory \
                 (see `dmesg`); `leno down{flag}` removes what it left"
            )
        };
        Err(Error::Refused(if text.is_empty() { without_words() } else { text.to_owned() }))
    }

    async fn listing(&self) -> Option<Listing> {
        Client::connect(&self.name).await.ok()?.ps().await.ok()
    }

    /// Ends it, and waits until nothing of the stage is left. A further signal hurries it.
    async fn stop(&mut self, signals: &mut Signals) -> Result<(), Error> {
        say("stopping: everything that was made is removed");
        self.terminate();
        while let Ok(None) = self.child.try_wait() {
            tokio::select! {
                () = tokio::time::sleep(ASK) => {}
                () = signals.next() => self.terminate(),
            }
        }
        self.remove_traces();
        say("stopped; nothing is left");
        Ok(())
    }

    fn terminate(&self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // Not waited for yet, so that the number is still its own.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }

    /// What one leaves that ended before it had anything to clean up, or was killed.
    fn remove_traces(&self) {
        if let Err(reason) = sweep::finish_unheld(&self.name, &self.run_dir) {
            say(&format!("warning: {reason}"));
        }
    }
}

fn open_log(run_dir: &Path) -> Result<File, Error> {
    let path = journal::path(run_dir);
    let what = format!("cannot write {}", path.display());
    // Read through this descriptor: a supervisor that fails removes the whole directory.
    let log = crate::run_dir::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map_err(disk::failed(what.clone()))?;
    log.set_len(0).map_err(disk::failed(what))?;
    Ok(log)
}

fn start(log: &File, args: Vec<OsString>) -> Result<Child, Error> {
    let what = "cannot start the supervisor";
    let output = log.try_clone().map_err(Error::io(what))?;
    let errors = log.try_clone().map_err(Error::io(what))?;
    let program = std::env::current_exe().map_err(Error::io("cannot find this program's own file"))?;
    let mut command = Command::new(program);
    // Kept open only for manifests: a supervisor that holds a terminal open keeps it from closing.
    let input = if args.iter().any(|arg| arg == "-") { Stdio::inherit() } else { Stdio::null() };
    command.args(args).env(DETACHED, "1").stdin(input).stdout(output).stderr(errors);
    spawn_in_session(&mut command).map_err(Error::io(what))
}

fn whole(log: &File) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = log.read_at(&mut part, bytes.len() as u64) {
        bytes.extend_from_slice(&part[..length]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[allow(unsafe_code)]
fn spawn_in_session(command: &mut Command) -> std::io::Result<Child> {
    // SAFETY: `setsid` is one system call, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            Ok(())
        });
    }
    command.spawn()
}
