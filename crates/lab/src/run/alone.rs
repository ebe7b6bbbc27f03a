//! Makes sure that only one lab runs at a time, and removes what a killed one left.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use leno_local::Stage;
use leno_local::names::StageName;
use nix::sys::socket::{getsockopt, sockopt};

use super::wireguard;
use crate::Error;

/// Held by a running lab. The kernel releases it, however the lab ends. Two labs would measure each other, and between
/// two turns a lab has no stage whose name would keep the other out.
#[derive(Debug)]
pub(crate) struct Alone {
    /// An abstract socket name, which has no file that could be left behind.
    _listener: UnixListener,
}

impl Alone {
    /// Takes it. Call this before the process enters its own network namespace, because abstract names belong to the
    /// namespace.
    ///
    /// # Errors
    /// [`Error::AnotherLab`].
    pub(crate) fn claim(stage: &StageName) -> Result<Self, Error> {
        let what = "cannot find out whether another lab is at work";
        let name = SocketAddr::from_abstract_name(format!("leno-lab/{}", stage.as_str())).map_err(Error::io(what))?;
        match UnixListener::bind_addr(&name) {
            Ok(listener) => Ok(Self { _listener: listener }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::AnotherLab { pid: holder(&name) }),
            Err(error) => Err(Error::io(what)(error)),
        }
    }
}

/// The process that listens there, if it is visible from here.
fn holder(name: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(name).ok()?;
    let credentials = getsockopt(&stream, sockopt::PeerCredentials).ok()?;
    Some(credentials.pid()).filter(|pid| *pid > 0)
}

/// Removes what a killed lab of this name left: processes, network namespaces, directories, sockets.
///
/// # Errors
/// [`Error::StageTaken`] when a stage of this name runs. Other errors of the system.
pub(super) async fn clear(stage: &StageName) -> Result<(), Error> {
    let refused = |source| match source {
        leno_local::Error::AlreadyRunning { name, pid } => {
            Error::StageTaken { name, pid: Some(pid).filter(|pid| *pid > 0) }
        }
        source => Error::Leftovers { name: stage.as_str().to_owned(), source: Box::new(source) },
    };
    // The lock is taken only to see whether the stage runs: `down` would end it.
    Stage::manifest_dir(stage).map_err(refused)?;
    leno_local::down::run(stage).await.map_err(refused)?;
    wireguard::remove_sockets();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lab_at_a_time() {
        let stage = StageName::new(&format!("alone-{}", std::process::id())).unwrap();
        let first = Alone::claim(&stage).unwrap();
        let error = Alone::claim(&stage).unwrap_err();
        let me = std::process::id().to_string();
        assert!(error.to_string().contains(&me) && error.is_retryable() && !error.is_usage(), "{error}");
        drop(first);
        Alone::claim(&stage).unwrap();
    }
}
