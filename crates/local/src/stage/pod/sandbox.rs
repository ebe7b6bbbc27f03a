//! The supervisor's side of a pod's first process: start programs in the pod, signal them, learn
//! of their end.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::Error;
use crate::descriptors;
use crate::stage::pod::init::{FILES, PodFiles, ROLE, SOCKET};
use crate::stage::pod::init_protocol::{FromInit, ToInit, receive, send};
use crate::stage::spawn::{Isolated, ProcessHandle, Spawn, spawn};

/// A program to run in a pod.
pub(crate) struct Program {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    /// Standard input, output, error.
    pub stdio: [OwnedFd; 3],
}

/// Why a program does not run.
#[derive(Debug)]
pub(crate) struct NotStarted {
    /// The exit code a shell would give.
    pub code: i32,
    pub reason: String,
}

/// A program that runs in a pod.
pub(crate) struct Process {
    id: u64,
    sandbox: Arc<Inner>,
    ended: oneshot::Receiver<i32>,
}

/// A pod's processes, until [`Sandbox::kill`]. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sandbox {
    inner: Arc<Inner>,
    gone: watch::Receiver<bool>,
    /// What the pod could not set up.
    pub warning: Option<String>,
}

struct Inner {
    socket: AsyncFd<OwnedFd>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    pid: i32,
    process: ProcessHandle,
}

struct Waiting {
    started: Option<oneshot::Sender<Result<(), NotStarted>>>,
    ended: oneshot::Sender<i32>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sandbox({})", self.pid())
    }
}

impl Sandbox {
    /// Starts the pod's first process in `netns`.
    ///
    /// # Errors
    /// If the namespaces or the process can't be made.
    pub(crate) async fn start(
        executable: &Path,
        label: &str,
        hostname: &str,
        netns: OwnedFd,
        files: &PodFiles,
    ) -> Result<Self, Error> {
        let what = format!("cannot start pod {label}");
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )
        .map_err(Error::errno(what.clone()))?;
        // Non-blocking is a property of each end; the pod's end is read after poll said so, and
        // written where waiting is right.
        blocking(theirs.as_fd()).map_err(Error::io(what.clone()))?;
        let files = serde_json::to_string(files).map_err(io::Error::other).map_err(Error::io(what.clone()))?;
        let process = spawn(Spawn {
            label: format!("pod {label}"),
            program: executable.to_owned(),
            args: vec!["pod".into(), label.into()],
            env: vec![("LENO_ROLE".to_owned(), ROLE.to_owned()), (FILES.to_owned(), files)]
                .into_iter()
                .chain(std::env::var("PATH").ok().map(|path| ("PATH".to_owned(), path)))
                .collect(),
            cwd: None,
            netns,
            binds: Vec::new(),
            isolated: Some(Isolated { hostname: hostname.chars().take(63).collect(), socket: (theirs, SOCKET) }),
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::inherit(),
        })
        .await?;
        let socket = descriptors::socket(ours).map_err(Error::io(what.clone()))?;
        let inner = Arc::new(Inner {
            socket,
            next: AtomicU64::new(1),
            waiting: Mutex::new(HashMap::new()),
            pid: process.pid,
            process: process.handle,
        });
        let ready = inner.receive().await.map_err(Error::io(what.clone()))?;
        let warning = match ready {
            Some(FromInit::Ready { warning }) => warning,
            Some(FromInit::Failed { reason, .. }) => return Err(Error::io(what)(io::Error::other(reason))),
            _ => {
                return Err(Error::io(what)(io::Error::other(
                    "its first process ended at once; does the leno binary call pod_init for LENO_ROLE=pod-init?",
                )));
            }
        };
        let (left, gone) = watch::channel(false);
        tokio::spawn(dispatch(inner.clone(), process.ended, left));
        Ok(Self { inner, gone, warning })
    }

    /// Runs a program in the pod.
    ///
    /// # Errors
    /// The reason in the pod's words.
    pub(crate) async fn run(&self, program: Program) -> Result<Process, NotStarted> {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let (started, starting) = oneshot::channel();
        let (ended_tx, ended) = oneshot::channel();
        self.inner.waiting.lock().insert(id, Waiting { started: Some(started), ended: ended_tx });
        let Program { argv, env, cwd, stdio } = program;
        let fds: Vec<_> = stdio.iter().map(AsFd::as_fd).collect();
        let message = ToInit::Spawn { id, argv, env, cwd };
        if let Err(reason) = self.inner.send(&message, &fds).await {
            self.inner.waiting.lock().remove(&id);
            return Err(NotStarted { code: 1, reason: format!("the pod's first process is gone: {reason}") });
        }
        drop(stdio);
        let gone = |_| Err(NotStarted { code: 1, reason: "the pod's first process is gone".to_owned() });
        starting.await.unwrap_or_else(gone)?;
        Ok(Process { id, sandbox: self.inner.clone(), ended })
    }

    /// Kills every process of the pod.
    pub(crate) fn kill(&self) {
        self.inner.process.signal(Signal::SIGKILL);
    }

    /// Process id of the pod's first process.
    pub(crate) fn pid(&self) -> i32 {
        self.inner.pid
    }

    /// Waits until the pod has no process any more.
    pub(crate) async fn gone(&self) {
        let mut gone = self.gone.clone();
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

impl Process {
    /// Waits for its end: exit code, or 128 + signal. Cancel safe.
    pub(crate) async fn ended(&mut self) -> i32 {
        if self.ended.is_terminated() {
            return 0;
        }
        // No answer: the whole pod was killed.
        (&mut self.ended).await.unwrap_or(128 + Signal::SIGKILL as i32)
    }

    /// Something that can signal it while somebody else waits for its end.
    pub(crate) fn killer(&self) -> Killer {
        Killer { id: self.id, sandbox: self.sandbox.clone() }
    }
}

/// Signals a process of a pod.
#[derive(Clone)]
pub(crate) struct Killer {
    id: u64,
    sandbox: Arc<Inner>,
}

impl Killer {
    /// Sends a signal to the process and its group; harmless if it has ended.
    pub(crate) async fn signal(&self, signal: i32) {
        let _ = self.sandbox.send(&ToInit::Signal { id: self.id, signal }, &[]).await;
    }
}

impl Inner {
    async fn send(&self, message: &ToInit, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.socket.async_io(tokio::io::Interest::WRITABLE, |socket| send(socket.as_fd(), message, fds)).await
    }

    async fn receive(&self) -> io::Result<Option<FromInit>> {
        let received = self.socket.async_io(tokio::io::Interest::READABLE, |socket| receive(socket.as_fd())).await?;
        Ok(received.map(|(message, _)| message))
    }
}

/// Passes each message of the pod to its receiver, until the pod is gone.
async fn dispatch(inner: Arc<Inner>, ended: oneshot::Receiver<i32>, gone: watch::Sender<bool>) {
    while let Ok(Some(message)) = inner.receive().await {
        let mut waiting = inner.waiting.lock();
        match message {
            FromInit::Ready { .. } => {}
            FromInit::Started { id } => {
                if let Some(started) = waiting.get_mut(&id).and_then(|entry| entry.started.take()) {
                    let _ = started.send(Ok(()));
                }
            }
            FromInit::Failed { id, code, reason } => {
                if let Some(started) = waiting.remove(&id).and_then(|entry| entry.started) {
                    let _ = started.send(Err(NotStarted { code, reason }));
                }
            }
            FromInit::Exited { id, code } => {
                if let Some(entry) = waiting.remove(&id) {
                    let _ = entry.ended.send(code);
                }
            }
        }
    }
    // The kernel reaps a namespace's first process last: then none of its processes is left.
    let _ = ended.await;
    inner.waiting.lock().clear();
    let _ = gone.send(true);
}

fn blocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags & !OFlag::O_NONBLOCK))?;
    Ok(())
}
