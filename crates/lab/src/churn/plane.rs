//! The process `leno lab-control`, fed line by line with the objects of a generated mesh.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, Command};
use tokio::sync::watch;

use super::control::{Said, Spec};
use super::mesh::{Change, Mesh, node_name};
use super::phase::Kind;
use super::process::{Line, Process};
use super::state::Watched;
use super::world::{Inventory, Listening, Made, World};
use crate::Error;

/// How long it may take until it listens.
const LISTENS: Duration = Duration::from_secs(30);
/// For it to publish: a control plane that needs longer does not work.
const PUBLISHES: Duration = Duration::from_secs(900);
/// Bytes of the feed that are written at a time.
const PART: usize = 1 << 18;
/// Namespace and service account of every proxy.
pub(crate) const NAMESPACE: &str = "leno-system";
pub(crate) const ACCOUNT: &str = "leno-node";

/// A control plane, and the mesh that it is fed.
pub(super) struct Plane {
    process: Process,
    feed: ChildStdin,
    heard: watch::Receiver<Heard>,
    tokens: Vec<String>,
    mesh: Mesh,
}

/// The messages from it so far.
#[derive(Debug, Clone, Default)]
struct Heard {
    listening: Option<(SocketAddr, String)>,
    published: u64,
}

impl Plane {
    /// Starts it and waits until it listens. Call this on a thread that lives as long as the control plane is wanted.
    pub(super) async fn start(program: &Path, subject: &str, mesh: Mesh, proxies: usize) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.arg("lab-control");
        let (tell, heard) = watch::channel(Heard::default());
        let said = move |line: &str| {
            match serde_json::from_str(line) {
                Ok(Said::Listening { address, root }) => {
                    tell.send_modify(|heard| heard.listening = Some((address, root)));
                }
                Ok(Said::Published) => tell.send_modify(|heard| heard.published += 1),
                Err(error) => tracing::warn!(line, %error, "the control plane says what is not understood"),
            }
            Line::Message
        };
        let (process, feed) = Process::start(command, subject, said)?;
        let tokens = tokens(proxies).map_err(Error::io("cannot read /dev/urandom"))?;
        let mut plane = Self { process, feed, heard, tokens, mesh };
        let lines = plane.tokens.iter().enumerate();
        let tokens = lines.map(|(number, token)| format!("{token} {NAMESPACE}/{ACCOUNT} {}\n", node_name(number)));
        let spec = Spec { tokens: tokens.collect() };
        let spec = serde_json::to_string(&spec).map_err(|source| Error::Spec { what: "control plane", source })?;
        plane.feed(&(spec + "\n")).await?;
        plane.wait(LISTENS, "it does not listen", |heard| heard.listening.is_some()).await?;
        Ok(plane)
    }

    async fn feed(&mut self, lines: &str) -> Result<(), Error> {
        write(&mut self.feed, &self.process, lines).await
    }

    /// How often it has published something.
    fn published(&self) -> u64 {
        self.heard.borrow().published
    }

    /// Waits until it has published something more than `before` times.
    async fn publishes(&self, before: u64) -> Result<(), Error> {
        self.wait(PUBLISHES, "it has not published what it was fed", |heard| heard.published > before).await
    }

    async fn wait(&self, patience: Duration, what: &str, until: impl Fn(&Heard) -> bool) -> Result<(), Error> {
        let mut heard = self.heard.clone();
        let heard = async {
            if heard.wait_for(|heard| until(heard)).await.is_err() {
                // It says nothing more: it has ended.
                std::future::pending::<()>().await;
            }
        };
        self.process.wait(patience, what, heard).await
    }

    fn make(&mut self, kind: Kind, watched: &Watched) -> (Change, Made) {
        let change = self.mesh.change(kind);
        watched.sent(change.number, change.pods);
        let made = Made { changes: 1, touched: change.pods as usize };
        (change, made)
    }
}

impl World for Plane {
    fn process(&self) -> &Process {
        &self.process
    }

    fn into_process(self) -> Process {
        self.process
    }

    fn listening(&self) -> Result<Listening, Error> {
        let heard = self.heard.borrow().listening.clone();
        let (address, root) = heard.ok_or_else(|| self.process.broken("it does not listen"))?;
        Ok(Listening { address, name: address.ip().to_string(), root })
    }

    fn tokens(&self) -> &[String] {
        &self.tokens
    }

    fn inventory(&self) -> Inventory {
        self.mesh.inventory()
    }

    fn next(&self) -> u32 {
        self.mesh.next()
    }

    async fn begin(&mut self) -> Result<(), Error> {
        let before = self.published();
        for part in in_parts(self.mesh.objects()) {
            write(&mut self.feed, &self.process, &part).await?;
        }
        self.feed("!\n").await?;
        self.publishes(before).await
    }

    async fn change(&mut self, kind: Kind, watched: &Watched) -> Result<Made, Error> {
        let (change, made) = self.make(kind, watched);
        self.feed(&format!("{}!\n", change.lines)).await?;
        Ok(made)
    }

    async fn change_and_publish(&mut self, kind: Kind, watched: &Watched) -> Result<Made, Error> {
        let before = self.published();
        let made = self.change(kind, watched).await?;
        self.publishes(before).await?;
        Ok(made)
    }
}

/// Writes lines of the feed.
async fn write(feed: &mut ChildStdin, process: &Process, lines: &str) -> Result<(), Error> {
    match feed.write_all(lines.as_bytes()).await {
        Ok(()) => Ok(()),
        Err(error) => Err(process.broken_at_the_end(format!("it does not take its feed: {error}")).await),
    }
}

/// Lines, several at a time.
fn in_parts(lines: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut lines = lines.peekable();
    std::iter::from_fn(move || {
        lines.peek()?;
        let mut part = String::new();
        while part.len() < PART
            && let Some(line) = lines.next()
        {
            part.push_str(&line);
        }
        Some(part)
    })
}

/// A token for each proxy.
fn tokens(proxies: usize) -> io::Result<Vec<String>> {
    let mut random = std::fs::File::open("/dev/urandom")?;
    let mut bytes = [0; 24];
    let mut token = || {
        random.read_exact(&mut bytes)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    };
    (0..proxies).map(|_| token()).collect()
}
