//! One container of a pod: a process that is started, probed, and started again when it ends.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leno_objects::{Container, RestartPolicy};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::stage::killed::Memory;
use crate::stage::logs;
use crate::stage::pod::probes::{Counter, Surroundings, ask, pause};
use crate::stage::pod::sandbox::{Killer, Process, Program, Sandbox};

/// First pause after a failure; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The kubelet's is five minutes; a person at a laptop does not wait that long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A container that ran this long has recovered: its next failure is a first one.
const RECOVERED: Duration = Duration::from_secs(60);

/// The current state of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Not running, and will be started.
    Waiting {
        /// The reason in one word, as in Kubernetes.
        reason: &'static str,
        message: String,
    },
    Running {
        ready: bool,
        /// Why not ready.
        message: String,
    },
    /// Over for good.
    Ended { code: i32 },
}

/// News of one container.
#[derive(Debug, Clone)]
pub(crate) struct News {
    pub index: usize,
    pub restarts: u32,
    pub state: State,
}

/// The running processes of a pod, for the one who stops it.
#[derive(Default)]
pub(crate) struct Running {
    processes: Mutex<HashMap<usize, Killer>>,
    stopping: AtomicBool,
}

impl Running {
    /// Has none of them started again.
    pub(crate) fn start_none(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Sends SIGTERM to those that are chosen.
    pub(crate) async fn terminate(&self, chosen: impl Fn(usize) -> bool) {
        let killers: Vec<_> = self
            .processes
            .lock()
            .iter()
            .filter(|(index, _)| chosen(**index))
            .map(|(_, killer)| killer.clone())
            .collect();
        for killer in killers {
            killer.signal(Signal::SIGTERM as i32).await;
        }
    }
}

/// Everything needed to run a container.
pub(crate) struct Runner {
    pub index: usize,
    pub container: Container,
    pub policy: RestartPolicy,
    pub argv: Result<Vec<String>, String>,
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub log: PathBuf,
    pub sandbox: Sandbox,
    pub around: Surroundings,
    pub news: mpsc::UnboundedSender<News>,
    pub running: Arc<Running>,
    pub restarts: u32,
    /// How often it is started again if it fails; `None` for as often as it does.
    pub most_restarts: Option<u32>,
}

impl Runner {
    /// Runs until the container is over for good, or for ever.
    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let begun = Instant::now();
            let memory = Memory::of(self.sandbox.pid());
            let ended = match self.start().await {
                Ok(process) => Ok(self.attend(process).await),
                Err(message) => Err(message),
            };
            if begun.elapsed() > RECOVERED {
                pause = FIRST_PAUSE;
            }
            if self.running.stopping.load(Ordering::SeqCst) {
                return self.tell(State::Ended { code: ended.unwrap_or(0) });
            }
            let again = match (self.policy, &ended) {
                (RestartPolicy::Always, _) | (_, Err(_)) => true,
                (RestartPolicy::OnFailure, Ok(code)) => *code != 0,
                (RestartPolicy::Never, Ok(_)) => false,
            };
            let enough = self.most_restarts.is_some_and(|most| self.restarts >= most) && ended != Ok(0);
            if !again || (enough && ended.is_ok()) {
                return self.tell(State::Ended { code: ended.unwrap_or(0) });
            }
            let (reason, message) = match ended {
                Ok(0) => ("Completed", "ended with exit code 0; it is started again".to_owned()),
                // 128 and more: by a signal. One that asks nobody leaves no last words.
                Ok(code @ (137 | 143)) => {
                    let why = memory.reason_of(code);
                    ("CrashLoopBackOff", format!("killed by signal {} (exit code {code}){why}", code - 128))
                }
                Ok(code) => ("CrashLoopBackOff", format!("ended with exit code {code}{}", last_words(&self.log))),
                Err(message) => ("CreateContainerError", message),
            };
            self.tell(State::Waiting { reason, message });
            // The first restart of something that once ran is immediate, as the kubelet's is.
            let immediate = self.restarts == 0 && reason != "CreateContainerError";
            if !immediate {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            self.restarts += 1;
        }
    }

    async fn start(&self) -> Result<Process, String> {
        let argv = self.argv.clone()?;
        let stdio = || -> std::io::Result<[OwnedFd; 3]> {
            let output = logs::capture(&self.log)?;
            let errors = output.try_clone()?;
            Ok([std::fs::File::open("/dev/null")?.into(), output, errors])
        };
        let stdio = stdio().map_err(|reason| format!("cannot open the log {}: {reason}", self.log.display()))?;
        let cwd = Some(self.cwd.display().to_string());
        self.sandbox
            .run(Program { argv, env: self.env.clone(), cwd, stdio })
            .await
            .map_err(|failed| format!("container {}: {}", self.container.name, failed.reason))
    }

    /// Probes the process until it ends; its exit code.
    async fn attend(&self, mut process: Process) -> i32 {
        self.running.processes.lock().insert(self.index, process.killer());
        let code = if let Some(probe) = &self.container.readiness_probe {
            self.tell(State::Running { ready: false, message: "not probed yet".to_owned() });
            let probing = async {
                let mut counter = Counter::new(probe);
                let mut said = String::new();
                tokio::time::sleep(Duration::from_secs(u64::from(probe.initial_delay_seconds))).await;
                for tries in 1_u32.. {
                    let outcome = ask(probe, &self.container, &self.around).await;
                    let message = outcome.as_ref().err().cloned().unwrap_or_default();
                    let changed = counter.count(outcome.is_ok());
                    let message = if counter.ready { String::new() } else { message };
                    if changed || message != said {
                        said.clone_from(&message);
                        let message = if message.is_empty() { message } else { format!("readiness probe: {message}") };
                        self.tell(State::Running { ready: counter.ready, message });
                    }
                    tokio::time::sleep(pause(probe, counter.ready, tries)).await;
                }
            };
            tokio::select! {
                code = process.ended() => code,
                () = probing => 0,
            }
        } else {
            self.tell(State::Running { ready: true, message: String::new() });
            process.ended().await
        };
        self.running.processes.lock().remove(&self.index);
        code
    }

    fn tell(&self, state: State) {
        // Nobody listens any more when the pod is being taken down.
        let _ = self.news.send(News { index: self.index, restarts: self.restarts, state });
    }
}

/// Bytes of a log that are looked at for a reason.
const MOST_SAID: usize = 400;

/// The end of a log: what a program said before it failed is usually the reason.
fn last_words(log: &std::path::Path) -> String {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let read = || -> std::io::Result<String> {
        let mut file = crate::run_dir::open_file(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MOST_SAID as u64)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    // The beginning of one long line is missing.
    let cut = if text.len() >= MOST_SAID && !text.trim_end().contains('\n') { "…" } else { "" };
    if last.is_empty() { String::new() } else { format!(": {cut}{last}") }
}
