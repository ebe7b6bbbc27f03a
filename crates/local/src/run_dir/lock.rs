//! The lock of a stage: there is one supervisor at a time.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::Error;
use crate::names::StageName;
use crate::run_dir::disk::failed;
use crate::run_dir::open_file;

/// Held by a running supervisor; the kernel releases it however the supervisor ends.
pub(crate) struct Lock(Flock<File>);

/// The holder of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// 0 if the file doesn't say.
    Process(i32),
}

impl Lock {
    /// Takes the lock of a stage.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] if somebody holds it. A supervisor that was just killed may hold
    /// it for a moment longer, until the kernel has taken it apart: that is waited for.
    pub(crate) fn take(run_dir: &Path, name: &StageName) -> Result<Self, Error> {
        let start = Instant::now();
        loop {
            let result = Self::try_take(run_dir, name);
            let patience = if answers(run_dir) { SECOND_LOOK } else { LAST_BREATH };
            match result {
                Err(Error::AlreadyRunning { pid, .. }) if start.elapsed() < patience => {
                    tracing::debug!(pid, "the stage's last supervisor may be ending");
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
    }

    fn try_take(run_dir: &Path, name: &StageName) -> Result<Self, Error> {
        match Flock::lock(open(run_dir)?, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let record = || -> std::io::Result<()> {
                    lock.set_len(0)?;
                    lock.rewind()?;
                    lock.write_all(format!("{}\n", std::process::id()).as_bytes())
                };
                let mut record = record;
                record().map_err(failed("cannot write the stage's lock".to_owned()))?;
                Ok(Self(lock))
            }
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
                Err(Error::AlreadyRunning { name: name.as_str().to_owned(), pid: pid_in(file) })
            }
            Err((_, reason)) => Err(Error::errno("cannot lock the stage")(reason)),
        }
    }

    /// The current holder of a stage's lock.
    pub(crate) fn holder(run_dir: &Path) -> Holder {
        let Ok(file) = open_file(&run_dir.join("lock")) else { return Holder::Nobody };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => Holder::Nobody,
            Err((file, _)) => Holder::Process(pid_in(file)),
        }
    }
}

/// A supervisor that is being killed still has its socket open for a moment.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// Longest that a killed supervisor may take to be gone, on a machine that swaps.
const LAST_BREATH: Duration = Duration::from_secs(3);

/// Whether a supervisor listens. One that is just starting does not; the caller then waits a little while in vain.
fn answers(run_dir: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(run_dir.join(crate::run_dir::SOCKET)).is_ok()
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lock({:?})", *self.0)
    }
}

fn open(run_dir: &Path) -> Result<File, Error> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = run_dir.join("lock");
    crate::run_dir::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed(format!("cannot open {}", path.display())))
}

fn pid_in(mut file: File) -> i32 {
    let mut text = String::new();
    let _ = file.rewind();
    let _ = file.read_to_string(&mut text);
    text.trim().parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let name = StageName::new("x").unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Nobody);
        let lock = Lock::take(dir.path(), &name).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Lock::holder(dir.path()), Holder::Process(me));
        let refused = Lock::take(dir.path(), &name).unwrap_err();
        assert!(matches!(refused, Error::AlreadyRunning { pid, .. } if pid == me));
        assert!(refused.to_string().contains("leno down --name x"));
        drop(lock);
        assert_eq!(Lock::holder(dir.path()), Holder::Nobody);
        Lock::take(dir.path(), &name).unwrap();
    }
}
