//! The first process of a pod: a minimal init that sets up the pod's mounts, starts what the
//! supervisor asks for, reaps, and ends with the supervisor. When it ends, the kernel kills
//! everything else in the pod.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::stage::pod::confine;
use crate::stage::pod::init_protocol::{FromInit, ToInit, receive, send};
use crate::stage::pod::mounts::{Mount, mount_all};

/// Value of `LENO_ROLE` that makes this program a pod's first process.
pub const ROLE: &str = "pod-init";

/// Environment variable with the pod's [`PodFiles`] as JSON.
pub(crate) const FILES: &str = "LENO_POD_FILES";

/// Descriptor under which the supervisor hands over its end of the conversation.
pub(crate) const SOCKET: i32 = 3;

/// The files that a pod sees instead of the machine's own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PodFiles {
    /// `(file of the stage, path in the pod)`.
    pub binds: Vec<(String, String)>,
    /// Whether the pod has its own process ids, and so needs its own `/proc`.
    pub own_pids: bool,
    /// Directories of the stage that the pod sees empty.
    pub hidden: Vec<String>,
    /// Directories below those that are the pod's own.
    pub own: Vec<String>,
    /// Volumes, in the order in which they are mounted.
    pub mounts: Vec<Mount>,
    /// An empty directory that may become the pod's root directory.
    pub root: String,
}

/// Whether this process was started to be a pod's first process. The binary's `main` asks before
/// anything else and calls [`pod_init`] if so.
pub fn is_pod_init() -> bool {
    std::env::var_os("LENO_ROLE").is_some_and(|role| role == ROLE)
}

/// Runs as a pod's first process until the supervisor is gone.
pub fn pod_init() -> ! {
    let code = match run() {
        Ok(()) => 0,
        Err(_) => 1,
    };
    std::process::exit(code)
}

fn run() -> std::io::Result<()> {
    let socket = supervisor_socket()?;
    // A session of its own: a job-control signal of the operator's terminal must not reach pods.
    let _ = nix::unistd::setsid();
    let mut waiting = SigSet::empty();
    waiting.add(Signal::SIGCHLD);
    waiting.thread_block()?;
    let children = SignalFd::with_flags(&waiting, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;

    let files: PodFiles =
        std::env::var(FILES).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let warning = set_up_mounts(&files);
    // Before the stage's own files are hidden, for volumes are among them.
    if let Err(reason) = mount_all(&files.mounts, &files.root) {
        return send(socket.as_fd(), &FromInit::Failed { id: 0, code: 1, reason }, &[]);
    }
    if let Err(reason) = confine::hide(&files.hidden, &files.own).and_then(|()| confine::give_up_rights()) {
        let reason = format!("cannot take rights from the pod: {reason}");
        return send(socket.as_fd(), &FromInit::Failed { id: 0, code: 1, reason }, &[]);
    }
    send(socket.as_fd(), &FromInit::Ready { warning }, &[])?;

    let mut running = HashMap::new();
    loop {
        let mut ready =
            [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(children.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(reason) => return Err(reason.into()),
        }
        let has = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        let (asked, ended) = (has(&ready[0]), has(&ready[1]));
        if asked {
            let Some((message, fds)) = receive(socket.as_fd())? else { return Ok(()) };
            obey(socket.as_fd(), message, fds, &mut running)?;
        }
        if ended {
            while let Ok(Some(_)) = children.read_signal() {}
            reap(socket.as_fd(), &mut running)?;
        }
    }
}

#[allow(unsafe_code)]
fn supervisor_socket() -> std::io::Result<OwnedFd> {
    nix::fcntl::fcntl(
        // SAFETY: only looked at, for the length of this call; a wrong descriptor makes it fail.
        unsafe { BorrowedFd::borrow_raw(SOCKET) },
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC),
    )?;
    // SAFETY: the supervisor put its socket here for us before this program started, and this
    // function runs once.
    Ok(unsafe { OwnedFd::from_raw_fd(SOCKET) })
}

fn obey(
    socket: BorrowedFd<'_>,
    message: ToInit,
    fds: Vec<OwnedFd>,
    running: &mut HashMap<i32, u64>,
) -> std::io::Result<()> {
    match message {
        ToInit::Spawn { id, argv, env, cwd } => {
            let answer = match start(&argv, env, cwd.as_deref(), fds) {
                Ok(pid) => {
                    running.insert(pid, id);
                    FromInit::Started { id }
                }
                Err((code, reason)) => FromInit::Failed { id, code, reason },
            };
            send(socket, &answer, &[])
        }
        ToInit::Signal { id, signal } => {
            let group = running.iter().find(|(_, known)| **known == id).map(|(pid, _)| *pid);
            if let (Some(group), Ok(signal)) = (group, Signal::try_from(signal)) {
                // It may have ended meanwhile; then its exit is on the way.
                let _ = killpg(Pid::from_raw(group), signal);
            }
            Ok(())
        }
    }
}

/// Starts a program; its process id, or why not, with the exit code that a shell gives then.
fn start(
    argv: &[String],
    env: Vec<(String, String)>,
    cwd: Option<&str>,
    fds: Vec<OwnedFd>,
) -> Result<i32, (i32, String)> {
    let (Some(program), Ok([input, output, errors])) = (argv.first(), <[OwnedFd; 3]>::try_from(fds)) else {
        return Err((1, "a program and three descriptors are needed".to_owned()));
    };
    let findable = program.contains('/') || is_in_path(program, &env);
    let mut command = Command::new(program);
    command
        .args(&argv[1..])
        .env_clear()
        .envs(env)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors))
        .process_group(0);
    if let Some(cwd) = cwd {
        if !fs::metadata(cwd).is_ok_and(|meta| meta.is_dir()) {
            return Err((1, format!("the working directory {cwd} does not exist")));
        }
        command.current_dir(cwd);
    }
    match command.spawn() {
        Ok(child) => i32::try_from(child.id()).map_err(|reason| (1, reason.to_string())),
        // A directory in PATH that may not be searched hides that no other has it, either.
        Err(reason) if reason.kind() == std::io::ErrorKind::NotFound || !findable => {
            let why = if program.contains('/') {
                "it, or the interpreter its first line names, does not exist"
            } else {
                "looked in PATH"
            };
            Err((127, format!("there is no program {program:?} on this machine ({why})")))
        }
        Err(reason) => Err((126, format!("cannot start {program:?}: {reason}"))),
    }
}

fn is_in_path(program: &str, env: &[(String, String)]) -> bool {
    let path = env.iter().find(|(name, _)| name == "PATH").map_or("", |(_, path)| path);
    std::env::split_paths(path).any(|dir| dir.join(program).exists())
}

fn reap(socket: BorrowedFd<'_>, running: &mut HashMap<i32, u64>) -> std::io::Result<()> {
    loop {
        let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, code),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(reason) => return Err(reason.into()),
        };
        // Others are orphans that a container left behind.
        if let Some(id) = running.remove(&pid.as_raw()) {
            send(socket, &FromInit::Exited { id, code }, &[])?;
        }
    }
}

/// Mounts the pod's own files over the machine's. What fails is told, not fatal: a pod without
/// name resolution is still better debugged than one that never starts.
fn set_up_mounts(files: &PodFiles) -> Option<String> {
    let none = None::<&str>;
    let mut failed = Vec::new();
    for (source, target) in &files.binds {
        if let Err(reason) = mount(Some(source.as_str()), target.as_str(), none, MsFlags::MS_BIND, none) {
            failed.push(format!("{target}: {reason}"));
        }
    }
    if files.own_pids {
        // Refused inside containers that mask parts of /proc; then the outer one stays visible.
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        if mount(Some("proc"), "/proc", Some("proc"), flags, none).is_ok() {
            confine::protect_settings();
        }
    }
    // A name service cache daemon would answer with the machine's names instead of the cluster's.
    let cache = "/run/nscd";
    if fs::metadata(cache).is_ok_and(|meta| meta.is_dir()) {
        let _ = mount(Some("tmpfs"), cache, Some("tmpfs"), MsFlags::MS_RDONLY, none);
    }
    (!failed.is_empty()).then(|| format!("the pod sees the machine's own files: {}", failed.join(", ")))
}
