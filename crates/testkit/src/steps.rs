//! Counts of instructions: a measure of work that needs no clock, so a busy machine gives the same answer as an idle
//! one. It does not need the processor's counters, which virtual machines often lack.
//!
//! A test starts its own program again and traces that process step by step within [`counted`]. A step takes some
//! microseconds, so this is for work of at most a few hundred thousand instructions.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};

/// The signal that the traced process raises before and after the counted work.
const MARK: Signal = Signal::SIGUSR1;
/// The environment variable that names the test to be traced.
const TRACED: &str = "LENO_TEST_TRACED";
/// The text before the id of the traced thread.
const HERE: &str = "traced thread ";

/// Whether this process was started by [`instructions`].
pub fn is_traced() -> bool {
    std::env::var_os(TRACED).is_some()
}

/// Waits until this thread is traced. Call it once, before [`counted`].
///
/// # Errors
/// If the tracer is gone.
pub fn wait_for_tracer() -> io::Result<()> {
    writeln!(io::stderr(), "{HERE}{}", gettid())?;
    io::stdin().read_line(&mut String::new()).map(drop)
}

/// Runs `work` and has its instructions counted.
pub fn counted<T>(work: impl FnOnce() -> T) -> T {
    let mark = || raise(MARK).expect("a thread may signal itself");
    mark();
    let out = work();
    mark();
    out
}

/// Runs the test `name` of this program in another process, with `environment`. Returns the number of instructions in
/// each [`counted`] stretch.
///
/// # Errors
/// If tracing is not permitted. `PermissionDenied` means that it is permitted to nobody on this machine.
///
/// # Panics
/// If that test fails.
pub fn instructions(name: &str, environment: &[(&str, String)]) -> io::Result<Vec<u64>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([name, "--exact", "--nocapture"]).env(TRACED, "1");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let thread = loop {
        let line = said.next().ok_or_else(|| io::Error::other("the traced test said nothing"))??;
        if let Some(number) = line.strip_prefix(HERE) {
            break Pid::from_raw(number.parse().map_err(io::Error::other)?);
        }
    };
    let traced = attach(thread).and_then(|()| {
        // The process waits for a line.
        child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(b"\n")).map_err(|_| Errno::EPIPE)?;
        follow(thread)
    });
    if traced.is_err() {
        child.kill()?;
    }
    // Its output, which is shown when it fails.
    for line in said.map_while(Result::ok) {
        writeln!(io::stderr(), "{line}")?;
    }
    let status = child.wait()?;
    let counts = traced.map_err(io::Error::from)?;
    assert!(status.success(), "the traced test failed");
    Ok(counts)
}

fn wait(thread: Pid) -> nix::Result<WaitStatus> {
    waitpid(thread, Some(WaitPidFlag::__WALL))
}

fn attach(thread: Pid) -> nix::Result<()> {
    ptrace::attach(thread)?;
    wait(thread)?;
    ptrace::cont(thread, None)
}

/// Counts the steps between the signals until the thread has ended.
fn follow(thread: Pid) -> nix::Result<Vec<u64>> {
    let mut counts = Vec::new();
    let mut counting = None;
    loop {
        match wait(thread)? {
            WaitStatus::Stopped(_, MARK) => match counting.take() {
                Some(steps) => counts.push(steps),
                None => counting = Some(0),
            },
            WaitStatus::Stopped(_, Signal::SIGTRAP) if counting.is_some() => {
                counting = counting.map(|steps| steps + 1);
            }
            WaitStatus::Stopped(_, signal) => {
                ptrace::cont(thread, signal)?;
                continue;
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(counts),
            _ => {}
        }
        if counting.is_some() { ptrace::step(thread, None)? } else { ptrace::cont(thread, None)? }
    }
}
