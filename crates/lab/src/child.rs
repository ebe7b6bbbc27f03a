//! Child processes that end with the process that started them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// Has the kernel kill the process when the thread that started it ends, so a killed lab leaves no process behind.
/// Therefore start it on the main thread, or on one that lives as long as the process is wanted.
#[allow(unsafe_code)]
pub(crate) fn tie(command: &mut Command) {
    let parent = Pid::this();
    // SAFETY: between fork and exec the closure makes two system calls with plain integers, and neither allocates nor
    // locks.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            // If the parent ended before the request, no signal comes.
            if getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    /// A process's files are closed when it ends, in whatever way. The test waits for that.
    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let (mut held, holder) = io::pipe().unwrap();
        let starting = std::thread::spawn(move || {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null()).stdout(holder);
            tie(&mut command);
            command.spawn().unwrap()
        });
        let mut child = starting.join().unwrap();
        assert_eq!(held.read(&mut [0]).unwrap(), 0);
        assert!(!child.wait().unwrap().success());
    }
}
