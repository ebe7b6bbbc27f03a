//! A command's end of the control socket.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use crate::Error;
use crate::error::name_flag;
use crate::names::StageName;
use crate::run_dir::lock::{Holder, Lock};
use crate::run_dir::{self, SOCKET};
pub use crate::stage::api::LogFiles;
use crate::stage::api::{Answer, Request};
pub use crate::stage::dial::{CONTROL_PLANE, NodePort};
use crate::stage::listing::Listing;
pub use crate::stage::plane::Explained;
pub use crate::stage::proxy::Upgraded;
use leno_policy::explain_request::Asked;

/// A connection to a running stage.
pub struct Client {
    stream: BufReader<UnixStream>,
    name: StageName,
}

/// How long a supervisor may take to answer; it answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to exchange a proxy, and to go back.
const EXCHANGE: Duration = Duration::from_secs(30);

impl Client {
    /// Connects to the stage of this name.
    ///
    /// # Errors
    /// [`Error::NotRunning`] or [`Error::Died`] if nobody listens; [`Error::RunDirectory`] if it may be somebody else who does; [`Error::Io`] if it
    /// can't be reached.
    pub async fn connect(name: &StageName) -> Result<Self, Error> {
        let run_dir = run_dir::check(name)?;
        let path = run_dir.join(SOCKET);
        match UnixStream::connect(&path).await {
            Ok(stream) => Ok(Self { stream: BufReader::new(stream), name: name.clone() }),
            Err(reason) if matches!(reason.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                let is_left = run_dir.exists() && Lock::holder(&run_dir) == Holder::Nobody;
                Err(elsewhere(name).unwrap_or_else(|| match (name.as_str().to_owned(), is_left) {
                    (name, true) => Error::Died { name },
                    (own, false) => Error::NotRunning { name: own, others: name.others() },
                }))
            }
            Err(reason) => Err(Error::io(format!("cannot talk to the stage through {}", path.display()))(reason)),
        }
    }

    /// Nodes and pods as they are now.
    ///
    /// # Errors
    /// If the supervisor goes away.
    pub async fn ps(&mut self) -> Result<Listing, Error> {
        match self.ask(&Request::Ps).await? {
            Answer::Listing(listing) => Ok(*listing),
            other => Err(unexpected(&other)),
        }
    }

    /// Begins to watch: [`Self::next`] has the listing as it is now, then after each change.
    ///
    /// # Errors
    /// If the supervisor goes away.
    pub async fn watch(&mut self) -> Result<(), Error> {
        self.send(&Request::Watch).await.map_err(lost)
    }

    /// The next listing of a stage that is watched; `None` when it has ended. Not cancel safe.
    ///
    /// # Errors
    /// If the supervisor's answer can't be read.
    pub async fn next(&mut self) -> Result<Option<Listing>, Error> {
        match answer(&mut self.stream).await {
            Ok(Answer::Listing(listing)) => Ok(Some(*listing)),
            Ok(other) => Err(unexpected(&other)),
            Err(reason) if matches!(reason.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => Ok(None),
            Err(reason) => Err(lost(reason)),
        }
    }

    /// Changes a Deployment's number of pods; how many it had.
    ///
    /// # Errors
    /// If there is no such Deployment.
    pub async fn scale(&mut self, namespace: &str, name: &str, replicas: u32) -> Result<u32, Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        match self.ask(&Request::Scale { namespace, name, replicas }).await? {
            Answer::Scaled(before) => Ok(before),
            other => Err(unexpected(&other)),
        }
    }

    /// The log files of a pod's containers, or of the named container.
    ///
    /// # Errors
    /// If there is no such pod or container.
    pub async fn logs(&mut self, namespace: &str, name: &str, container: Option<&str>) -> Result<Vec<LogFiles>, Error> {
        let (namespace, name, container) = (namespace.to_owned(), name.to_owned(), container.map(str::to_owned));
        match self.ask(&Request::Logs { namespace, name, container }).await? {
            Answer::Logs(files) => Ok(files),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs another program as the proxy of a node. If it does not become ready, the program that served before serves
    /// again.
    ///
    /// # Errors
    /// If there is no such node, or the program did not become ready.
    pub async fn upgrade(&mut self, node: &str, program: PathBuf) -> Result<Upgraded, Error> {
        match self.ask_within(EXCHANGE, &Request::Upgrade { node: node.to_owned(), program }).await? {
            Answer::Upgraded(upgraded) => Ok(upgraded),
            other => Err(unexpected(&other)),
        }
    }

    /// What would happen to a connection from `source` (`NS/NAME`) to `destination` (`NAME:PORT`), and to a request on it if one is
    /// asked about.
    ///
    /// # Errors
    /// If either is unknown.
    pub async fn explain(
        &mut self,
        source: &str,
        destination: &str,
        asked: Option<&Asked>,
    ) -> Result<Explained, Error> {
        let (source, destination, asked) = (source.to_owned(), destination.to_owned(), asked.cloned());
        match self.ask(&Request::Explain { source, destination, asked }).await? {
            Answer::Explained(explained) => Ok(explained),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes this a connection to a port of a node's proxy, or of the control plane ([`CONTROL_PLANE`]).
    ///
    /// # Errors
    /// If there is no such node, or nobody listens.
    pub async fn dial(mut self, node: &str, port: NodePort) -> Result<BufReader<UnixStream>, Error> {
        match self.ask(&Request::Dial { node: node.to_owned(), port }).await? {
            Answer::Connected => Ok(self.stream),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the stage to end; it goes on ending after the answer.
    ///
    /// # Errors
    /// If the supervisor goes away.
    pub async fn down(&mut self) -> Result<(), Error> {
        self.done(&Request::Down).await
    }

    /// Runs a program in a pod with this process's own standard input, output and error, passing
    /// signals on; its exit code, or 128 + signal.
    ///
    /// # Errors
    /// If there is no such pod or it doesn't run; [`Error::NotStarted`] if the program can't be
    /// started.
    pub async fn exec(
        &mut self,
        namespace: &str,
        name: &str,
        container: Option<&str>,
        argv: Vec<String>,
    ) -> Result<i32, Error> {
        let (namespace, name, container) = (namespace.to_owned(), name.to_owned(), container.map(str::to_owned));
        let env = ["TERM", "COLUMNS", "LINES"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
            .collect();
        let request = Request::Exec { namespace, name, container, argv, env };
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        self.send_with(&request, &[input.as_fd(), output.as_fd(), errors.as_fd()]).await.map_err(lost)?;
        let mut signals = Vec::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()] {
            signals.push((kind.as_raw_value(), signal(kind).map_err(Error::io("cannot listen for signals"))?));
        }
        loop {
            let caught = futures_util::future::select_all(signals.iter_mut().map(|(number, stream)| {
                let number = *number;
                Box::pin(async move {
                    stream.recv().await;
                    number
                })
            }));
            tokio::select! {
                answer = answer(&mut self.stream) => match answer.map_err(lost)? {
                    Answer::Started => {}
                    Answer::Exited(code) => return Ok(code),
                    Answer::NotStarted { code, reason } => return Err(Error::NotStarted { code, reason }),
                    Answer::Error(text) => return Err(Error::Refused(text)),
                    other => return Err(unexpected(&other)),
                },
                (number, ..) = caught => {
                    self.send(&Request::Signal(number)).await.map_err(lost)?;
                }
            }
        }
    }

    async fn done(&mut self, request: &Request) -> Result<(), Error> {
        match self.ask(request).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        self.ask_within(PATIENCE, request).await
    }

    async fn ask_within(&mut self, patience: Duration, request: &Request) -> Result<Answer, Error> {
        self.send(request).await.map_err(lost)?;
        let answer = tokio::time::timeout(patience, answer(&mut self.stream)).await.map_err(|_| {
            let who = match Lock::holder(&self.name.run_dir()) {
                Holder::Process(pid) if pid > 0 => format!("the stage's supervisor (pid {pid})"),
                Holder::Process(_) | Holder::Nobody => "the stage's supervisor".to_owned(),
            };
            Error::Timeout(format!(
                "{who} does not answer within {patience:?}: it may be stopped (continue it with `kill -CONT`), or end \
                 it with `leno down{}`",
                name_flag(self.name.as_str())
            ))
        })?;
        match answer.map_err(lost)? {
            Answer::Error(text) => Err(Error::Refused(text)),
            answer => Ok(answer),
        }
    }

    async fn send(&mut self, request: &Request) -> io::Result<()> {
        self.stream.get_mut().write_all(&line(request)?).await
    }

    /// Sends a request with descriptors; they travel with its first byte.
    async fn send_with(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let line = line(request)?;
        let raw: Vec<_> = fds.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
        let stream = self.stream.get_mut();
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let control = [ControlMessage::ScmRights(&raw)];
                let parts = [io::IoSlice::new(&line)];
                Ok(sendmsg::<()>(stream.as_raw_fd(), &parts, &control, MsgFlags::MSG_NOSIGNAL, None)?)
            })
            .await?;
        stream.write_all(&line[sent..]).await
    }
}

/// A stage of this name that another user has, as far as this one can see.
pub(crate) fn elsewhere(name: &StageName) -> Option<Error> {
    if std::env::var_os("LENO_RUN_DIR").is_some_and(|dir| !dir.is_empty()) {
        return None;
    }
    let name = name.as_str();
    if !crate::privilege::is_machine_root() {
        let roots = std::path::Path::new("/run/leno").join(name);
        return roots
            .exists()
            .then(|| Error::Refused(format!("stage {name:?} is not running for this user, but for root; use sudo")));
    }
    let user = std::env::var("SUDO_UID").ok().filter(|user| user != "0")?;
    let theirs = [format!("/run/user/{user}/leno/{name}"), format!("/tmp/leno-{user}/{name}")];
    theirs.iter().any(|dir| std::path::Path::new(dir).exists()).then(|| {
        Error::Refused(format!("stage {name:?} is not running for root, but for user {user}; do without sudo"))
    })
}

fn line(request: &Request) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// The next answer. Not cancel safe in the middle of a line; the supervisor writes a line whole.
async fn answer(stream: &mut BufReader<UnixStream>) -> io::Result<Answer> {
    let mut line = Vec::new();
    if stream.read_until(b'\n', &mut line).await? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(io::Error::other)
}

fn lost(reason: io::Error) -> Error {
    Error::io("the stage's supervisor went away")(reason)
}

fn unexpected(answer: &Answer) -> Error {
    Error::Refused(format!("the supervisor gave an answer of another version of leno: {answer:?}"))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
