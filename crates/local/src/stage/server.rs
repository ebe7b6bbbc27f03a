//! The supervisor's end of the control socket.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use leno_telemetry::accepting;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use crate::Error;
use crate::run_dir::SOCKET;
use crate::run_dir::disk::failed;
use crate::stage::api::{Answer, LogFiles, MAX_LINE, Request};
use crate::stage::exec::{Order, container_of};
use crate::stage::handle::StageHandle;
use crate::stage::listing::Listing;
use crate::stage::logs;
use crate::stage::pod::init_protocol::receive_bytes;
use crate::stage::pod::sandbox::Process;

/// Between two listings for somebody who watches.
const BURST: Duration = Duration::from_millis(100);

/// Opens the control socket, for the owner only.
///
/// # Errors
/// If it can't be made.
pub(crate) fn bind(run_dir: &Path) -> Result<UnixListener, Error> {
    let path = run_dir.join(SOCKET);
    // Left by a killed supervisor; the lock says that nobody else listens.
    let _ = std::fs::remove_file(&path);
    let what = format!("cannot open {}", path.display());
    let listener = UnixListener::bind(&path).map_err(failed(what.clone()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed(what))?;
    Ok(listener)
}

/// Serves for as long as the task lives.
pub(crate) async fn serve(listener: UnixListener, stage: StageHandle) {
    loop {
        let stream = accept(&listener).await;
        tokio::spawn(converse(stream, stage.clone()));
    }
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                if let Some(pause) = accepting::pause_after(&error) {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}

async fn converse(stream: UnixStream, stage: StageHandle) {
    let mut connection = Connection { stream, buffer: Vec::new(), fds: Vec::new() };
    while let Ok(Some(request)) = connection.next().await {
        let answer = match request {
            Request::Exec { namespace, name, container, argv, env } => {
                let stdio = std::mem::take(&mut connection.fds);
                match stage.exec(&namespace, &name, Order { container, argv, env, stdio }).await {
                    Ok(process) => match attend(&mut connection, process).await {
                        Ok(code) => Answer::Exited(code),
                        Err(_) => return,
                    },
                    Err(Error::NotStarted { code, reason }) => Answer::NotStarted { code, reason },
                    Err(reason) => Answer::Error(reason.to_string()),
                }
            }
            Request::Dial { node, port } => match stage.dial(&node, port).await {
                Ok(proxy) => {
                    // Its end is told by both ends' own words; here is nobody to tell of a failure.
                    let _ = pass_through(connection, proxy).await;
                    return;
                }
                Err(reason) => Answer::Error(reason.to_string()),
            },
            // Whoever watches closes the connection when there was enough.
            Request::Watch => return drop(show(&mut connection, &stage).await),
            other => answer(&stage, other).await.unwrap_or_else(|reason| Answer::Error(reason.to_string())),
        };
        if connection.say(&answer).await.is_err() {
            return;
        }
    }
}

/// Shows the listing, now and after each change.
async fn show(connection: &mut Connection, stage: &StageHandle) -> io::Result<()> {
    let mut listing = stage.watch_listing();
    loop {
        let now = Listing { troubles: stage.troubles(), ..listing.borrow_and_update().clone() };
        connection.say(&Answer::Listing(Box::new(now))).await?;
        tokio::select! {
            changed = listing.changed() => changed.map_err(io::Error::other)?,
            asked = connection.next() => if asked?.is_none() { return Ok(()) },
        }
        // A burst is one change: nobody reads faster.
        tokio::time::sleep(BURST).await;
    }
}

async fn answer(stage: &StageHandle, request: Request) -> Result<Answer, Error> {
    match request {
        Request::Ps => {
            let now = Listing { troubles: stage.troubles(), ..stage.listing() };
            Ok(Answer::Listing(Box::new(now)))
        }
        Request::Scale { namespace, name, replicas } => {
            Ok(Answer::Scaled(stage.scale(&namespace, &name, replicas).await?))
        }
        Request::Logs { namespace, name, container } => {
            let (plan, _) = stage.find(&namespace, &name).await?;
            let of = |container: &leno_objects::Container, told_apart: bool| {
                let current = plan.log(&container.name);
                let container = told_apart.then(|| container.name.clone());
                LogFiles { container, previous: logs::previous(&current), current }
            };
            let containers: Vec<_> = plan.pod.spec.all_containers().collect();
            Ok(Answer::Logs(match container.as_deref() {
                None => containers.iter().map(|container| of(container, containers.len() > 1)).collect(),
                Some(wanted) => vec![of(container_of(&plan.pod, Some(wanted))?, false)],
            }))
        }
        Request::Upgrade { node, program } => Ok(Answer::Upgraded(stage.upgrade(&node, program).await?)),
        Request::Explain { source, destination, asked } => {
            Ok(Answer::Explained(stage.explain(&source, &destination, asked.as_ref())?))
        }
        Request::Down => {
            stage.request_down();
            Ok(Answer::Done)
        }
        Request::Exec { .. } | Request::Signal(_) | Request::Dial { .. } | Request::Watch => {
            Err(Error::Refused("nothing runs on this connection".to_owned()))
        }
    }
}

/// Has a command talk to a node's proxy.
async fn pass_through(mut connection: Connection, mut proxy: TcpStream) -> io::Result<()> {
    connection.say(&Answer::Connected).await?;
    proxy.write_all(&connection.buffer).await?;
    tokio::io::copy_bidirectional(&mut connection.stream, &mut proxy).await.map(drop)
}

/// Waits for a process's end while passing signals on; a caller that goes away takes it along.
async fn attend(connection: &mut Connection, mut process: Process) -> io::Result<i32> {
    connection.say(&Answer::Started).await?;
    let killer = process.killer();
    loop {
        tokio::select! {
            code = process.ended() => return Ok(code),
            request = connection.next() => match request {
                Ok(Some(Request::Signal(signal))) => killer.signal(signal).await,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    killer.signal(nix::sys::signal::Signal::SIGHUP as i32).await;
                    let grace = Duration::from_secs(2);
                    if tokio::time::timeout(grace, process.ended()).await.is_err() {
                        killer.signal(nix::sys::signal::Signal::SIGKILL as i32).await;
                    }
                    return Err(ErrorKind::BrokenPipe.into());
                }
            }
        }
    }
}

/// A command that is connected.
struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Connection {
    /// The next request; `None` when the command is gone. Cancel safe.
    async fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(io::Error::other);
            }
            if self.buffer.len() > MAX_LINE {
                return Err(ErrorKind::InvalidData.into());
            }
            self.stream.readable().await?;
            let mut part = [0; 4096];
            let read = self.stream.try_io(Interest::READABLE, || receive_bytes(self.stream.as_fd(), &mut part));
            match read {
                Ok((0, _)) => return Ok(None),
                Ok((length, fds)) => {
                    self.buffer.extend_from_slice(&part[..length]);
                    self.fds.extend(fds);
                }
                Err(reason) if reason.kind() == ErrorKind::WouldBlock => {}
                Err(reason) => return Err(reason),
            }
        }
    }

    async fn say(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = serde_json::to_vec(answer).map_err(io::Error::other)?;
        line.push(b'\n');
        self.stream.write_all(&line).await
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
