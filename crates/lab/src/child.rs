//! Child processes that end with the process that started them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// Has the kernel kill the process when the thread that starts it ends, however that ends: no lab that was killed leaves it
/// behind. So it is to be started by the main thread, or one that lives as long as the process is wanted.
#[allow(unsafe_code)]
pub(crate) fn tie(command: &mut Command) {
    let parent = Pid::this();
    // SAFETY: between fork and exec the closure makes two system calls with plain integers: no allocation, no lock.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The signal comes to those who asked for it in time.
            if getppid() == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    /// What a process holds open is closed when it ends, however it ends: that is waited for.
    #[test]
    fn it_ends_with_the_thread_that_started_it() {
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
