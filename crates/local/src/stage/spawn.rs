//! Starting processes inside namespaces such that none of them outlives the supervisor.
//!
//! Each process gets a thread of its own that starts it and waits for its end. That is what the
//! kernel's rules ask for: `PR_SET_PDEATHSIG` fires when the parent *thread* ends, and
//! `unshare(CLONE_NEWPID)` binds all later children of the calling thread to the new namespace.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use crate::Error;

/// Stack of a thread that only starts a process and waits for it.
const STACK: usize = 256 * 1024;

/// A process to start.
pub(crate) struct Spawn {
    /// For messages and the thread's name.
    pub label: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<PathBuf>,
    /// Network namespace it runs in.
    pub netns: OwnedFd,
    /// Bind mounts `(source, target)` over a private copy of the machine's mounts, done before
    /// the program starts.
    pub binds: Vec<(String, String)>,
    /// Whether it is the first process of new process and host-name namespaces.
    pub isolated: Option<Isolated>,
    pub stdin: Stdio,
    pub stdout: Stdio,
    pub stderr: Stdio,
}

/// What a pod's first process gets besides a network namespace.
pub(crate) struct Isolated {
    pub hostname: String,
    /// The socket shared with the supervisor, and its descriptor number in the new process.
    pub socket: (OwnedFd, i32),
}

/// A started process. Dropping it leaves the process alone.
pub(crate) struct Spawned {
    pub pid: i32,
    pub handle: ProcessHandle,
    /// Resolves with the exit code, or 128 + signal, when it has ended and been reaped.
    pub ended: oneshot::Receiver<i32>,
}

/// Sends signals to one process and never to a later one with the same number.
#[derive(Debug)]
pub(crate) struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    #[allow(unsafe_code)]
    fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: two plain integers; the kernel returns a descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just received, owned by nobody else. pidfds are close-on-exec.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a signal; harmless if the process has ended.
    #[allow(unsafe_code)]
    pub(crate) fn signal(&self, signal: Signal) {
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a live descriptor, a valid signal number, and no info to read.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as i32, none, 0) };
    }
}

/// Starts a process.
///
/// # Errors
/// [`Error::Io`] with the label and the kernel's reason.
pub(crate) async fn spawn(request: Spawn) -> Result<Spawned, Error> {
    let label = request.label.clone();
    let (started, starting) = oneshot::channel();
    let (ended_tx, ended) = oneshot::channel();
    let own_pids = request.isolated.is_some();
    let thread = move || {
        let mut child = match start(request) {
            Ok(child) => child,
            Err(reason) => {
                let _ = started.send(Err(reason));
                return;
            }
        };
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        // Even if nobody waits any more: the process lives as long as this thread.
        let _ = started.send(ProcessHandle::open(pid).map(|handle| (pid, handle)));
        if !own_pids {
            end_group(pid);
        }
        let code = match child.wait() {
            Ok(status) => status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1),
            Err(_) => 1,
        };
        let _ = ended_tx.send(code);
    };
    std::thread::Builder::new()
        .name("leno-spawn".to_owned())
        .stack_size(STACK)
        .spawn(thread)
        .map_err(Error::io(format!("cannot make a thread to start {label}")))?;
    let (pid, handle) = starting
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the starting thread ended")))
        .map_err(Error::io(format!("cannot start {label}")))?;
    Ok(Spawned { pid, handle, ended })
}

/// Waits for the end of a process and kills what is left of its group: what a program has started does not outlive it, as a
/// script would have it that runs a proxy without becoming it. A pod needs no such help, its first process takes all along.
fn end_group(pid: i32) {
    let leader = Pid::from_raw(pid);
    // Not reaped yet, so that its number is still its group's and nobody else's.
    while waitid(Id::Pid(leader), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
    let _ = killpg(leader, Signal::SIGKILL);
}

/// Everything the child needs between `fork` and `exec`, where nothing may be allocated.
struct Prepared {
    netns: OwnedFd,
    binds: Vec<(CString, CString)>,
    isolated: Option<(CString, (OwnedFd, i32))>,
    supervisor: Pid,
}

#[allow(unsafe_code)]
fn start(request: Spawn) -> io::Result<std::process::Child> {
    let mut command = Command::new(&request.program);
    command.args(&request.args).env_clear().envs(request.env);
    command.stdin(request.stdin).stdout(request.stdout).stderr(request.stderr);
    if let Some(cwd) = &request.cwd {
        command.current_dir(cwd);
    }
    let mut binds = Vec::new();
    for (source, target) in request.binds {
        binds.push((c_string(source)?, c_string(target)?));
    }
    let isolated = match request.isolated {
        Some(isolated) => Some((c_string(isolated.hostname)?, isolated.socket)),
        None => None,
    };
    let own_pids = isolated.is_some();
    let prepared = Prepared { netns: request.netns, binds, isolated, supervisor: Pid::this() };
    // SAFETY: between fork and exec the closure only makes system calls on memory prepared above:
    // no allocation, no lock (nix passes C strings through, and builds errors from errno alone).
    unsafe { command.pre_exec(move || enter(&prepared)) };
    if own_pids {
        unshare(CloneFlags::CLONE_NEWPID)?;
    }
    command.spawn()
}

fn enter(prepared: &Prepared) -> io::Result<()> {
    const ROOT: &std::ffi::CStr = c"/";
    let none = None::<&std::ffi::CStr>;
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // A supervisor that was killed before this sends no such signal. A pod's first process can't see it from its own process
    // namespace; that one learns it from the socket.
    if prepared.isolated.is_none() && nix::unistd::getppid() != prepared.supervisor {
        return Err(Errno::ESRCH.into());
    }
    setns(&prepared.netns, CloneFlags::CLONE_NEWNET)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Slave, not private: a namespace the supervisor unmounts must not live on in our copy.
    mount(none, ROOT, none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    for (source, target) in &prepared.binds {
        // A machine without the file simply keeps not having it.
        let _ = mount(Some(source.as_c_str()), target.as_c_str(), none, MsFlags::MS_BIND, none);
    }
    if let Some((hostname, (socket, number))) = &prepared.isolated {
        unshare(CloneFlags::CLONE_NEWUTS)?;
        set_hostname(hostname)?;
        place(socket, *number)?;
    } else {
        // A group of its own: Ctrl-C in the operator's terminal is for the supervisor, which
        // then ends its children in order.
        nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    }
    Ok(())
}

#[allow(unsafe_code)]
fn set_hostname(name: &CString) -> io::Result<()> {
    // SAFETY: pointer and length describe the same live string. nix would take an OsStr, which
    // is fine too, but this keeps the allocation question trivial.
    if unsafe { libc::sethostname(name.as_ptr(), name.as_bytes().len()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes `fd` descriptor number `number`, open across `exec`.
#[allow(unsafe_code)]
fn place(fd: &OwnedFd, number: i32) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        // SAFETY: borrowed for this call from the live `fd`, whose number this is.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        nix::fcntl::fcntl(borrowed, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
        return Ok(());
    }
    // SAFETY: in a forked child that is about to exec; whatever had this number is not used
    // again, for the program starts fresh.
    if unsafe { libc::dup2(fd.as_raw_fd(), number) } == number { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_string(text: impl Into<OsString>) -> io::Result<CString> {
    CString::new(text.into().into_vec()).map_err(|_| io::Error::other("a NUL byte inside a path or name"))
}
