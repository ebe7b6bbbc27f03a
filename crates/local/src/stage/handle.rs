//! A way to talk to a running stage.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Mesh;
use leno_objects::{Object, ObjectKey};
use tokio::net::TcpStream;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::Error;
use crate::run_dir::disk;
use crate::stage::context::Context;
use crate::stage::dial::{NodePort, dial};
use crate::stage::exec::{Order, exec};
use crate::stage::listing::Listing;
use crate::stage::plane::Explained;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::report::Report;
use crate::stage::pod::sandbox::Process;
use crate::stage::proxy::{Upgrade, Upgraded};
use crate::stage::request::{Request, StageEvent};
use leno_policy::explain_request::Asked;

/// A way to talk to a running stage. Cheap to clone.
#[derive(Clone)]
pub struct StageHandle {
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) listing: watch::Receiver<Listing>,
    pub(crate) news: broadcast::Sender<StageEvent>,
    pub(crate) down: Arc<watch::Sender<bool>>,
    /// By which the proxy of a node is exchanged.
    pub(crate) exchanges: Arc<BTreeMap<String, mpsc::Sender<Upgrade>>>,
    pub(crate) ctx: Arc<Context>,
}

impl StageHandle {
    /// The stage as it is now.
    pub fn listing(&self) -> Listing {
        self.listing.borrow().clone()
    }

    /// What is wrong with the machine around the stage now, such as a full disk, and what to do.
    pub fn troubles(&self) -> Vec<String> {
        let failed = self.ctx.journal.failed();
        disk::trouble(&self.ctx.run_dir, failed.as_ref()).into_iter().collect()
    }

    /// Sees every change of the listing.
    pub fn watch_listing(&self) -> watch::Receiver<Listing> {
        self.listing.clone()
    }

    /// News from now on.
    pub fn events(&self) -> broadcast::Receiver<StageEvent> {
        self.news.subscribe()
    }

    /// The mesh as the control plane publishes it.
    pub fn mesh(&self) -> Arc<Mesh> {
        self.ctx.plane.mesh().borrow().clone()
    }

    /// Waits until every proxy and every pod is ready.
    ///
    /// # Errors
    /// [`Error::Timeout`] that says what is missing.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        self.wait_for(limit, Listing::is_ready).await
    }

    /// Waits until the listing is as described.
    ///
    /// # Errors
    /// [`Error::Timeout`] that says what is missing.
    pub async fn wait_for(&self, limit: Duration, mut enough: impl FnMut(&Listing) -> bool) -> Result<(), Error> {
        let mut listing = self.listing.clone();
        let waited = tokio::time::timeout(limit, listing.wait_for(|now| enough(now))).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(gone()),
            Err(_) => {
                let missing = self.listing.borrow().missing();
                let missing =
                    if missing.is_empty() { "the expected state was not reached".to_owned() } else { missing };
                Err(Error::Timeout(format!("not ready after {limit:?}: {missing}")))
            }
        }
    }

    /// Adds objects to those of the files, or replaces objects added before; of two with one key
    /// these win.
    ///
    /// # Errors
    /// [`Error::Manifest`] if the whole would not be sound; then nothing changes.
    pub async fn apply(&self, objects: Vec<Object>) -> Result<(), Error> {
        self.ask(|done| Request::Apply(objects, done)).await?
    }

    /// Takes back an object that was added by [`Self::apply`].
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was not.
    pub async fn withdraw(&self, key: ObjectKey) -> Result<(), Error> {
        self.ask(|done| Request::Withdraw(key, done)).await?
    }

    /// Sets a label of a namespace, or removes it with `None`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such namespace.
    pub async fn set_label(&self, namespace: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
        let (namespace, key, value) = (namespace.to_owned(), key.to_owned(), value.map(str::to_owned));
        self.ask(|done| Request::Label { namespace, key, value, done }).await?
    }

    /// Changes a Deployment's number of pods until its file says another one; how many it had.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such Deployment.
    pub async fn scale(&self, namespace: &str, name: &str, replicas: u32) -> Result<u32, Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.ask(|done| Request::Scale { namespace, name, replicas, done }).await?
    }

    /// Runs another program as the proxy of a node, from now on. The one that runs drains, and takes what is new until the
    /// next one does. If that does not become ready, the program that served before serves again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such node; [`Error::Refused`] if the program did not become ready, or another
    /// exchange is under way there.
    pub async fn upgrade(&self, node: &str, program: PathBuf) -> Result<Upgraded, Error> {
        let Some(exchange) = self.exchanges.get(node) else {
            let known: Vec<&str> = self.exchanges.keys().map(String::as_str).collect();
            return Err(Error::NotFound(format!("there is no node {node}; the nodes are {}", known.join(", "))));
        };
        let (done, answer) = oneshot::channel();
        exchange.try_send(Upgrade { program, done }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                Error::Refused(format!("the proxy of {node} is being exchanged already; try again when that is done"))
            }
            mpsc::error::TrySendError::Closed(_) => gone(),
        })?;
        answer.await.map_err(|_| gone())?.map_err(|reason| Error::Refused(format!("node {node}: {reason}")))
    }

    /// Runs a program in a pod without input; its exit code and what it printed on standard output
    /// and error together.
    ///
    /// # Errors
    /// If there is no such pod, it doesn't run, or the program can't be started.
    pub async fn output(&self, namespace: &str, name: &str, argv: Vec<String>) -> Result<(i32, String), Error> {
        let what = "cannot run a program in a pod";
        let (writer, mut reader) = tokio::net::unix::pipe::pipe().map_err(Error::io(what))?;
        let stdio = || -> std::io::Result<[std::os::fd::OwnedFd; 3]> {
            let output = writer.into_blocking_fd()?;
            Ok([std::fs::File::open("/dev/null")?.into(), output.try_clone()?, output])
        };
        let stdio = stdio().map_err(Error::io(what))?;
        let order = Order { container: None, argv, env: Vec::new(), stdio: stdio.into() };
        let mut process = self.exec(namespace, name, order).await?;
        let mut text = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut text).await.map_err(Error::io(what))?;
        Ok((process.ended().await, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Runs a program in a pod.
    ///
    /// # Errors
    /// If there is no such pod or container, it doesn't run, or the program can't be started.
    pub(crate) async fn exec(&self, namespace: &str, name: &str, order: Order) -> Result<Process, Error> {
        let (plan, report) = self.find(namespace, name).await?;
        exec(&self.ctx, &plan, report, order).await
    }

    /// Resolves when somebody asked for the end with `leno down`.
    pub fn down_requested(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut asked = self.down.subscribe();
        async move {
            if asked.wait_for(|asked| *asked).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// While it shuts down: gives programs no more time to end by themselves.
    pub(crate) fn hurry(&self) {
        // A full queue is one that is worked off; whoever is in a hurry asks again.
        let _ = self.requests.try_send(Request::Hurry);
    }

    pub(crate) fn request_down(&self) {
        self.down.send_replace(true);
    }

    /// What would happen to a connection from `source` (`NS/NAME`) to `destination` (`NAME:PORT`), and to a request on it if one is
    /// asked about.
    ///
    /// # Errors
    /// If either is unknown.
    pub fn explain(&self, source: &str, destination: &str, asked: Option<&Asked>) -> Result<Explained, Error> {
        self.ctx.plane.explain(source, destination, asked, &self.listing.borrow().passed_over)
    }

    /// Connects to a port of a node's proxy, or of the control plane
    /// ([`CONTROL_PLANE`](crate::client::CONTROL_PLANE)).
    ///
    /// # Errors
    /// If there is no such node, or nobody listens.
    pub async fn dial(&self, node: &str, port: NodePort) -> Result<TcpStream, Error> {
        let networks = &self.ctx.networks;
        dial(&self.listing(), networks.dir(), &networks.names.fabric(), node, port).await
    }

    pub(crate) async fn find(&self, namespace: &str, name: &str) -> Result<(Arc<PodPlan>, Report), Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.ask(|found| Request::Find { namespace, name, found }).await?
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::Refused("the stage is shutting down".to_owned())
}
