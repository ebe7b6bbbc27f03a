//! The process of a control plane: its start, its log, its processor time and memory, its end.

use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;

use crate::Error;
use crate::measure::{self, Cpu};

/// How many lines of its log are shown when it fails.
const LOG_LINES: usize = 20;
/// For the last lines of its log, when it has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Memory of the control plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneMemory {
    /// Resident bytes (VmRSS).
    pub rss_bytes: u64,
    /// Most resident bytes since its start (VmHWM).
    pub peak_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// A running control plane. Dropping it kills the process.
pub(crate) struct Process {
    subject: String,
    child: Child,
    pid: i32,
    log: Arc<Mutex<VecDeque<String>>>,
    /// True once its standard output is closed.
    ended: watch::Receiver<bool>,
    /// Closed once the whole log has been read.
    log_over: watch::Receiver<()>,
}

/// What becomes of a line of standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// It is part of the log.
    Log,
    /// It was a message to the lab.
    Message,
}

impl Process {
    /// Starts it. To be called on a thread that lives as long as the process is wanted. `said` gets each line of its
    /// standard output.
    ///
    /// # Errors
    /// If the program can't be started.
    pub(crate) fn start(
        mut command: Command,
        subject: &str,
        mut said: impl FnMut(&str) -> Line + Send + 'static,
    ) -> Result<(Self, ChildStdin), Error> {
        let broken = |reason: String| Error::Subject { subject: subject.to_owned(), reason, log: String::new() };
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        crate::child::tie(command.as_std_mut());
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| broken(format!("{program} cannot be started: {error}")))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let (Some(input), Some(out), Some(errors), Some(pid)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take(), pid)
        else {
            return Err(broken("its pipes are missing".to_owned()));
        };
        let log: Arc<Mutex<VecDeque<String>>> = Arc::default();
        let (open, log_over) = watch::channel(());
        let (end, ended) = watch::channel(false);
        let (kept, still_open) = (log.clone(), open.clone());
        tokio::spawn(async move {
            lines(out, |line| {
                if said(line) == Line::Log {
                    keep(&kept, line);
                }
            })
            .await;
            drop(still_open);
            end.send_replace(true);
        });
        let kept = log.clone();
        tokio::spawn(async move {
            lines(errors, |line| keep(&kept, line)).await;
            drop(open);
        });
        Ok((Self { subject: subject.to_owned(), child, pid, log, ended, log_over }, input))
    }

    /// Returns when it has ended, which should not happen.
    pub(crate) fn death(&self) -> impl Future<Output = Error> + use<> {
        let (mut ended, subject, log) = (self.ended.clone(), self.subject.clone(), self.log.clone());
        let log_over = self.log_over.clone();
        async move {
            let _ = ended.wait_for(|ended| *ended).await;
            last_words_come(log_over).await;
            Error::Subject {
                subject,
                reason: "the control plane's process has ended".to_owned(),
                log: last_words(&log),
            }
        }
    }

    /// Waits for something that it does.
    ///
    /// # Errors
    /// If it ends first, or does not do it in time: then `what` says what is missing.
    pub(crate) async fn wait<T>(
        &self,
        patience: Duration,
        what: &str,
        done: impl Future<Output = T>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = done => Ok(done),
            death = self.death() => Err(death),
            () = tokio::time::sleep(patience) => {
                Err(self.broken(format!("{what} after {} s", patience.as_secs())))
            }
        }
    }

    /// Processor time so far.
    pub(crate) fn cpu(&self) -> Result<Cpu, Error> {
        measure::cpu(self.pid).map_err(|error| self.broken(format!("its process is gone: {error}")))
    }

    /// Memory now.
    pub(crate) fn memory(&self) -> Result<PlaneMemory, Error> {
        let gone = |error: io::Error| self.broken(format!("its process is gone: {error}"));
        let memory = measure::memory(self.pid).map_err(gone)?;
        let peak_bytes = peak(self.pid).map_err(gone)?;
        Ok(PlaneMemory { rss_bytes: memory.rss_bytes, peak_bytes, descriptors: memory.descriptors })
    }

    /// The error that the control plane does not do what it should.
    pub(crate) fn broken(&self, reason: impl Into<String>) -> Error {
        Error::Subject { subject: self.subject.clone(), reason: reason.into(), log: last_words(&self.log) }
    }

    /// The error for a control plane that does not do what it should. It waits for the last lines of its log, because the
    /// control plane may just have ended.
    pub(crate) async fn broken_at_the_end(&self, reason: impl Into<String>) -> Error {
        last_words_come(self.log_over.clone()).await;
        self.broken(reason)
    }

    /// Kills the process and waits for its end.
    pub(crate) async fn stop(mut self) {
        let _ = self.child.kill().await;
    }
}

fn last_words(log: &Mutex<VecDeque<String>>) -> String {
    log.lock().iter().map(|line| format!("{line}\n")).collect()
}

/// The log has pipes of its own, so its last lines may come after the news of the end. A process that it has started
/// may keep the pipes open for longer.
async fn last_words_come(mut log_over: watch::Receiver<()>) {
    let _ = tokio::time::timeout(LAST_WORDS, log_over.changed()).await;
}

async fn lines(input: impl AsyncRead + Unpin, mut each: impl FnMut(&str)) {
    let mut lines = BufReader::new(input).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        each(&line);
    }
}

/// Keeps the last lines of the log.
fn keep(log: &Mutex<VecDeque<String>>, line: &str) {
    let mut log = log.lock();
    if log.len() >= LOG_LINES {
        log.pop_front();
    }
    log.push_back(line.to_owned());
}

/// Most resident bytes of a process since it was started.
fn peak(pid: i32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map(|kibibytes| kibibytes * 1024).ok_or_else(|| io::ErrorKind::NotFound.into())
}
