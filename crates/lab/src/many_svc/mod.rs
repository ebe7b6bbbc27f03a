//! The many-svc study: control planes as they are shipped, beside an API server that plays a changing cluster.
//!
//! The lab has an API server ([`api_server`], [`objects`], [`request`], [`writes`], [`tokens`]) and plays a cluster on it
//! by a script ([`cluster`], [`manifest`]). A control plane is started with a kubeconfig, as an operator would start it
//! ([`plane`]). Proxies, phases, figures and audit are those of [`crate::churn`].

mod api_server;
mod cluster;
mod manifest;
mod objects;
mod plane;
mod request;
mod tokens;
mod writes;

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::Error;
use crate::churn::{
    Inventory, Kind, Listening, Made, News, Phase, PhaseResult, Process, Sampled, Turn, Watched, World,
};
use crate::subject::Subject;
use api_server::ApiServer;
use cluster::{Cluster, Rescale};
use manifest::Stage;
use objects::Objects;
use plane::Plane;
use tokens::Tokens;

/// The smallest number of services. With fewer, a service could be rescaled twice while proxies are disconnected, and they
/// could never see the first change.
pub(crate) const FEWEST_SERVICES: usize = 20;
/// How often a namespace is relabelled.
const RELABELLED: Duration = Duration::from_secs(60);

/// One turn of `subject`; `this` is the program that runs the lab. Whatever it started is gone when this returns or is
/// dropped.
///
/// # Errors
/// As [`Turn::run`].
pub(crate) async fn run(
    subject: &Subject,
    this: &Path,
    turn: &Turn,
    stop: watch::Receiver<bool>,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<Vec<PhaseResult>, Error> {
    tell(News::Begins(Phase::Ready));
    let cluster = Cluster::new(turn.shape);
    let mut objects = Objects::new();
    cluster.put_all(&mut objects);
    let tokens = Tokens::new(turn.shape.proxies).map_err(Error::io("cannot read /dev/urandom"))?;
    let server = ApiServer::start(objects, tokens).map_err(Error::io("cannot start an API server"))?;
    let begun = Sampled::start()?;
    let plane = Plane::start(subject, this, &server)?;
    let period = Duration::from_secs_f64(1.0 / turn.shape.changes);
    let relabel_every = (RELABELLED.as_secs_f64() * turn.shape.changes).round().max(1.0) as u32;
    turn.run(begun, Played { plane, cluster, server, period, relabel_every }, stop, tell).await
}

/// A control plane, and the cluster that is played to it.
struct Played {
    plane: Plane,
    cluster: Cluster,
    server: ApiServer,
    /// Time between two changes.
    period: Duration,
    /// Changes between two namespaces that are relabelled.
    relabel_every: u32,
}

impl World for Played {
    fn process(&self) -> &Process {
        self.plane.process()
    }

    fn into_process(self) -> Process {
        self.plane.into_process()
    }

    fn listening(&self) -> Result<Listening, Error> {
        self.plane.listening(&self.server)
    }

    fn tokens(&self) -> &[String] {
        self.server.tokens()
    }

    fn inventory(&self) -> Inventory {
        self.cluster.inventory()
    }

    fn next(&self) -> u32 {
        self.cluster.next()
    }

    async fn begin(&mut self) -> Result<(), Error> {
        self.plane.ready(&self.server).await
    }

    /// The script has one kind of change. Its time begins with the last event: the one that makes the new pods ready, or the
    /// one that removes pods.
    async fn change(&mut self, _: Kind, watched: &Watched) -> Result<Made, Error> {
        let begun = Instant::now();
        // The second change, so that short runs have one.
        if self.cluster.next() % self.relabel_every == 2 % self.relabel_every {
            self.cluster.relabel(&mut self.server.objects());
        }
        let change = self.cluster.rescale();
        let touched = change.touched();
        if !change.grows {
            watched.going(change.number, self.cluster.names(&change));
        }
        for &(stage, part) in change.stages() {
            sleep_until(begun + self.period.mul_f64(part)).await;
            let mut objects = self.server.objects();
            if stage == Stage::Ready {
                watched.sent(change.number, touched as u32);
            }
            self.cluster.advance(&change, stage, &mut objects);
        }
        if !change.grows {
            sleep_until(begun + self.period.mul_f64(Rescale::GONE)).await;
            let mut objects = self.server.objects();
            watched.sent(change.number, touched as u32);
            self.cluster.take_away(&change, &mut objects);
        }
        Ok(Made { changes: 1, touched })
    }

    /// There is no way to see what a control plane has published without a proxy. The next phase begins seconds later.
    async fn change_and_publish(&mut self, kind: Kind, watched: &Watched) -> Result<Made, Error> {
        self.change(kind, watched).await
    }
}
