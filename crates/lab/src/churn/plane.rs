//! A control plane as a process of its own, seen from the lab. What another one would need to become a subject is what this
//! file does: start it, say where it listens and who vouches for it, feed it.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;

use super::control::{Said, Spec};
use super::mesh::node_name;
use crate::Error;
use crate::measure::{self, Cpu};

/// Lines of its log that are shown when it fails.
const LOG_LINES: usize = 20;
/// For it to listen.
const PATIENCE: Duration = Duration::from_secs(30);
/// Namespace and account of every proxy.
pub(super) const NAMESPACE: &str = "leno-system";
const ACCOUNT: &str = "leno-node";

/// Memory of the control plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneMemory {
    /// Resident bytes (VmRSS).
    pub rss_bytes: u64,
    /// Most resident bytes since it was started (VmHWM).
    pub peak_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// A running control plane. Dropping it kills the process.
pub(super) struct Plane {
    subject: String,
    child: Child,
    pid: i32,
    feed: ChildStdin,
    heard: watch::Receiver<Heard>,
    log: Arc<Mutex<VecDeque<String>>>,
    /// Closed once all of the log is there.
    log_over: watch::Receiver<()>,
    tokens: Vec<String>,
}

/// Its messages so far.
#[derive(Debug, Clone, Default)]
struct Heard {
    listening: Option<(SocketAddr, String)>,
    published: u64,
    ended: bool,
}

impl Plane {
    /// Starts it and waits until it listens. To be called on a thread that lives as long as it is wanted.
    pub(super) async fn start(program: &Path, subject: &str, proxies: usize) -> Result<Self, Error> {
        let broken = |reason: String| Error::Subject { subject: subject.to_owned(), reason, log: String::new() };
        let mut command = Command::new(program);
        command.arg("lab-control").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::child::tie(command.as_std_mut());
        let mut child =
            command.spawn().map_err(|error| broken(format!("{} cannot be started: {error}", program.display())))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let (Some(feed), Some(out), Some(errors), Some(pid)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take(), pid)
        else {
            return Err(broken("its pipes are missing".to_owned()));
        };
        let (tell, heard) = watch::channel(Heard::default());
        tokio::spawn(listen(BufReader::new(out), tell));
        let log = Arc::default();
        let (open, log_over) = watch::channel(());
        tokio::spawn(keep_log(BufReader::new(errors), Arc::clone(&log), open));
        let tokens = tokens(proxies).map_err(Error::io("cannot read /dev/urandom"))?;
        let mut plane = Self { subject: subject.to_owned(), child, pid, feed, heard, log, log_over, tokens };
        let lines = plane.tokens.iter().enumerate();
        let tokens = lines.map(|(number, token)| format!("{token} {NAMESPACE}/{ACCOUNT} {}\n", node_name(number)));
        let spec = Spec { tokens: tokens.collect() };
        let spec = serde_json::to_string(&spec).map_err(|source| Error::Spec { what: "control plane", source })?;
        plane.feed(&(spec + "\n")).await?;
        plane.wait(PATIENCE, "it does not listen", |heard| heard.listening.is_some()).await?;
        Ok(plane)
    }

    /// Its address, and its root certificate.
    pub(super) fn listening(&self) -> Result<(SocketAddr, String), Error> {
        self.heard.borrow().listening.clone().ok_or_else(|| self.broken("it does not listen"))
    }

    /// The tokens of the proxies.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Writes lines of the feed.
    pub(super) async fn feed(&mut self, lines: &str) -> Result<(), Error> {
        let written = self.feed.write_all(lines.as_bytes()).await;
        match written {
            Ok(()) => Ok(()),
            Err(error) => {
                last_words_come(self.log_over.clone()).await;
                Err(self.broken(format!("it does not take its feed: {error}")))
            }
        }
    }

    /// How often it has published something.
    pub(super) fn published(&self) -> u64 {
        self.heard.borrow().published
    }

    /// Waits until it has published something more than `before` times.
    pub(super) async fn publishes(&self, before: u64, patience: Duration) -> Result<(), Error> {
        self.wait(patience, "it has not published what it was fed", |heard| heard.published > before).await
    }

    /// Returns when it has ended, which it should not.
    pub(super) fn death(&self) -> impl Future<Output = Error> + use<> {
        let (mut heard, subject, log) = (self.heard.clone(), self.subject.clone(), self.log.clone());
        let log_over = self.log_over.clone();
        async move {
            let _ = heard.wait_for(|heard| heard.ended).await;
            last_words_come(log_over).await;
            Error::Subject {
                subject,
                reason: "the control plane's process has ended".to_owned(),
                log: last_words(&log),
            }
        }
    }

    async fn wait(&self, patience: Duration, what: &str, until: impl Fn(&Heard) -> bool) -> Result<(), Error> {
        let mut heard = self.heard.clone();
        let waiting = heard.wait_for(|heard| heard.ended || until(heard));
        let outcome = tokio::time::timeout(patience, waiting).await.map(|heard| heard.is_ok_and(|heard| !heard.ended));
        match outcome {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.death().await),
            Err(_) => Err(self.broken(format!("{what} after {} s", patience.as_secs()))),
        }
    }

    /// Processor time so far.
    pub(super) fn cpu(&self) -> Result<Cpu, Error> {
        measure::cpu(self.pid).map_err(|error| self.broken(format!("its process is gone: {error}")))
    }

    /// Memory now.
    pub(super) fn memory(&self) -> Result<PlaneMemory, Error> {
        let gone = |error: io::Error| self.broken(format!("its process is gone: {error}"));
        let memory = measure::memory(self.pid).map_err(gone)?;
        let peak_bytes = peak(self.pid).map_err(gone)?;
        Ok(PlaneMemory { rss_bytes: memory.rss_bytes, peak_bytes, descriptors: memory.descriptors })
    }

    /// That it does not do what it should.
    pub(super) fn broken(&self, reason: impl Into<String>) -> Error {
        Error::Subject { subject: self.subject.clone(), reason: reason.into(), log: last_words(&self.log) }
    }

    /// Ends it.
    pub(super) async fn stop(mut self) {
        let _ = self.child.kill().await;
    }
}

fn last_words(log: &Mutex<VecDeque<String>>) -> String {
    log.lock().iter().map(|line| format!("{line}\n")).collect()
}

/// Takes down what it says.
async fn listen(out: BufReader<tokio::process::ChildStdout>, tell: watch::Sender<Heard>) {
    let mut lines = out.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Said::Listening { address, root }) => {
                tell.send_modify(|heard| heard.listening = Some((address, root)));
            }
            Ok(Said::Published) => tell.send_modify(|heard| heard.published += 1),
            Err(error) => tracing::warn!(line, %error, "the control plane says what is not understood"),
        }
    }
    tell.send_modify(|heard| heard.ended = true);
}

/// The log comes over a pipe of its own, and so later than what tells of the end. Something that the process has
/// started may hold that pipe for longer.
async fn last_words_come(mut log_over: watch::Receiver<()>) {
    let _ = tokio::time::timeout(Duration::from_secs(5), log_over.changed()).await;
}

/// Keeps the end of its log.
async fn keep_log(
    errors: BufReader<tokio::process::ChildStderr>,
    log: Arc<Mutex<VecDeque<String>>>,
    _open: watch::Sender<()>,
) {
    let mut lines = errors.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut log = log.lock();
        if log.len() >= LOG_LINES {
            log.pop_front();
        }
        log.push_back(line);
    }
}

/// Most resident bytes of a process since it was started.
fn peak(pid: i32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map(|kibibytes| kibibytes * 1024).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A token for each proxy.
fn tokens(proxies: usize) -> io::Result<Vec<String>> {
    let mut random = std::fs::File::open("/dev/urandom")?;
    let mut bytes = [0; 24];
    let mut token = || {
        random.read_exact(&mut bytes)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    };
    (0..proxies).map(|_| token()).collect()
}
