//! The lab on a Kubernetes cluster: servers and loads are pods of the lab's own, and what carries their traffic is the mesh
//! that is installed there.
//!
//! [`nodes`] chooses two nodes, [`mesh`] finds what is installed, [`space`] keeps the lab's namespace, [`pods`] makes pods and
//! says why one does not run, [`application`] is what a scenario has besides, [`turn`] is one subject in one round.
//!
//! Everything is in one namespace, but for applications. It carries a sign of life, so that a second run is refused, and a run after one that was
//! killed removes what that one left.

mod application;
mod mesh;
mod nodes;
mod pods;
mod space;
mod turn;

use leno_kubernetes::{Client, Cluster};
use serde_json::Value;
use tokio::sync::watch;

use crate::Error;
use crate::cluster_info::ClusterInfo;
use crate::identity::{Identified, Program};
use crate::measure::Machine;
use crate::options::RunOptions;
use crate::report::Report;
use crate::results::headline;
use crate::run::{Plan, Progress};
use crate::scenario::{WAYPOINT_OF_ISTIO, WAYPOINT_OF_LENO};
use crate::subject::Subject;
use mesh::Mesh;
use nodes::Nodes;
use pods::Pods;
use space::Space;
use turn::Turn;

/// Scenarios whose loads run on a cluster.
const SCENARIOS: [&str; 5] = ["throughput", "latency", "connections", "emojivoto", "bookinfo"];

/// What a reader must know of every figure.
const REMARKS: [&str; 2] = [
    "on a cluster, processor time and memory are not measured; whether bytes are encrypted is not checked on the wire, only that \
     the mesh has captured the pods",
    "on a cluster, whatever else its nodes do is in the figures",
];

/// Seconds that a step and a turn may take besides the measured time, before their pods are ended.
const STEP_MOST: f64 = 120.0;
const TURN_MOST: f64 = 600.0;

/// Where to measure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    /// Which cluster.
    pub(crate) cluster: Cluster,
    /// The image with this program. Without one, that of the installed Leno, else the one that `cargo xtask image` makes.
    pub(crate) image: Option<String>,
}

/// Runs everything on a cluster. `stop` becomes true when the operator asks for the end.
///
/// # Errors
/// As [`crate::run::run`], for options that [`check`] accepts. The lab's namespace is gone afterwards, unless the API server
/// does not answer.
pub(crate) async fn run(
    options: &RunOptions,
    place: &Place,
    mut stop: watch::Receiver<bool>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    let steps = options.chosen_steps()?;
    let preparing = async {
        let client = Client::new(&place.cluster).await.map_err(Error::cluster("cannot use the cluster"))?;
        let nodes = Nodes::choose(&client).await?;
        let installed = mesh::find(&client).await?;
        let image = match (&place.image, &installed) {
            (Some(image), _) => image.clone(),
            // Every node has it.
            (None, Some(Mesh { is_leno: true, image, .. })) => image.clone(),
            (None, _) => format!("localhost/leno:{}", env!("CARGO_PKG_VERSION")),
        };
        let subjects = options.subjects.iter().map(|subject| identify(subject, installed.as_ref()));
        let subjects = subjects.collect::<Result<Vec<_>, Error>>()?;
        let info = describe(&client, &nodes, image).await?;
        space::vacate(&client, progress).await?;
        application::remove(&client).await?;
        Ok::<_, Error>((client, nodes, installed, subjects, info))
    };
    let (client, nodes, installed, subjects, info) = tokio::select! {
        prepared = preparing => prepared?,
        Ok(_) = stop.wait_for(|stop| *stop) => return Err(Error::Interrupted),
    };
    let image = info.image.clone();
    let mut report = Report::begin(options, Machine::describe(), subjects, Some(info));
    report.warnings.extend(REMARKS.map(str::to_owned));
    // The pods of a lab that was killed end by themselves.
    let deadline = ((options.seconds + STEP_MOST) * steps.len() as f64 + TURN_MOST) as u64;
    let space = Space::create(&client).await?;
    let measuring = async {
        let mut plan = Plan::new(options, &steps);
        let mut number = 0;
        for round in 1..=options.rounds {
            for subject in &options.subjects {
                let (name, rounds, left_seconds) = (subject.to_string(), options.rounds, plan.left());
                progress(Progress::Turn { subject: name, round, rounds, left_seconds });
                let mesh = installed.as_ref().filter(|_| *subject != Subject::None);
                number += 1;
                let pods = Pods { client: &client, image: &image, in_mesh: mesh.is_some(), deadline };
                let class = if mesh.is_some_and(|mesh| mesh.is_leno) { WAYPOINT_OF_LENO } else { WAYPOINT_OF_ISTIO };
                let turn = Turn { pods, nodes: &nodes, options, subject, class, number, round };
                let servers = turn.servers().await?;
                plan.turn_begun();
                for (index, step) in steps.iter().enumerate() {
                    progress(Progress::Begins { step: step.name.clone(), left_seconds: plan.left() });
                    let result = turn.step(&servers, index, step).await?;
                    plan.step_done(options, step);
                    progress(Progress::Step { step: step.name.clone(), summary: headline(&result) });
                    report.results.push(result);
                }
                turn.end().await?;
            }
        }
        Ok::<(), Error>(())
    };
    let outcome = tokio::select! {
        outcome = measuring => outcome,
        error = space.keep_alive() => Err(error),
        _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
    };
    if matches!(outcome, Err(Error::Interrupted)) {
        progress(Progress::Stopping);
    }
    let of_application = application::remove(&client).await;
    let removed = space.remove().await;
    outcome?;
    of_application?;
    removed?;
    report.conclude(&options.scenario);
    Ok(report)
}

/// `leno lab clean`: removes what a lab left, whether or not it is at work. Returns whether there was anything.
///
/// # Errors
/// If something is somebody else's, or can't be removed.
pub(crate) async fn clean(client: &Client) -> Result<bool, Error> {
    let space = space::clean(client).await?;
    Ok(application::remove(client).await? || space)
}

/// What can be said without asking the cluster.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check(options: &RunOptions) -> Result<(), Error> {
    options.chosen_steps()?;
    let name = options.scenario.name;
    if !SCENARIOS.contains(&name) {
        let text = format!("{name} is not for a cluster: there are {}", SCENARIOS.join(", "));
        return Err(Error::Usage(text));
    }
    let strange = |subject: &&Subject| !matches!(subject, Subject::None | Subject::Leno(None) | Subject::Installed);
    if let Some(subject) = options.subjects.iter().find(strange) {
        let text = "on a cluster the lab measures what is installed there: subjects none, leno and installed";
        return Err(Error::Usage(format!("{text}, not {subject}")));
    }
    if [Subject::Leno(None), Subject::Installed].iter().all(|subject| options.subjects.contains(subject)) {
        let text = "a cluster has one mesh: give subject leno, which says which one is meant, or installed, not both";
        return Err(Error::Usage(text.to_owned()));
    }
    Ok(())
}

/// The cluster, for the report.
async fn describe(client: &Client, nodes: &Nodes, image: String) -> Result<ClusterInfo, Error> {
    let version: Value =
        client.get("/version").await.map_err(Error::cluster("cannot ask the cluster for its version"))?;
    Ok(ClusterInfo {
        server: client.server().to_owned(),
        version: version["gitVersion"].as_str().unwrap_or("of unknown version").to_owned(),
        nodes: [nodes.near.clone(), nodes.far.clone()],
        image,
    })
}

/// The mesh that a subject stands for, for the report.
fn identify(subject: &Subject, installed: Option<&Mesh>) -> Result<Identified, Error> {
    let name = subject.to_string();
    if *subject == Subject::None {
        return Ok(Identified { name, programs: Vec::new(), encrypts: false });
    }
    let Some(mesh) = installed else {
        return Err(Error::Unfit(format!(
            "subject {subject}: no mesh is installed in this cluster; `leno install --wait` installs Leno"
        )));
    };
    if matches!(subject, Subject::Leno(_)) && !mesh.is_leno {
        return Err(Error::Unfit(format!(
            "subject leno: this cluster has {}, not Leno; give --subject installed to measure what is there",
            mesh.name
        )));
    }
    let program = Program {
        path: mesh.image.clone(),
        sha256: mesh.digest.clone(),
        version: Some(format!("{}, image {}", mesh.name, mesh.image)),
        ..Program::default()
    };
    Ok(Identified { name, programs: vec![program], encrypts: true })
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
