//! What does a control plane cost? A mesh changes, and proxies follow it.
//!
//! The control plane is a process of its own ([`process`]). How it is started and fed is behind an interface ([`world`]).
//! Here it is `lab-control`, which reads Kubernetes objects as JSON from its standard input ([`plane`], [`mesh`]). The
//! proxies are real delta clients over TLS ([`proxy`]). All are in the lab's process, each with its own connection and
//! token. They decode only what they must ([`wire`], [`state`]). Every change has a number that comes back in the
//! workloads it touched. So the lab knows when a proxy has seen it. After every phase, each proxy must hold the mesh as it
//! is ([`audit`]).

mod audit;
mod control;
mod crowd;
mod figures;
mod mesh;
mod phase;
mod plane;
mod process;
mod proxy;
mod result;
mod sample;
mod state;
mod turn;
mod wire;
mod world;

use std::path::Path;

use tokio::sync::watch;

pub use control::control_main;
pub(crate) use figures::{headline, pooled_curve, remarks, values};
pub(crate) use mesh::{MARK_LABEL, node_name};
pub use phase::{Kind, Phase, Shape};
pub(crate) use plane::{ACCOUNT, NAMESPACE};
pub use process::PlaneMemory;
pub(crate) use process::{Line, Process};
pub use result::PhaseResult;
pub(crate) use sample::Sampled;
pub(crate) use state::{MARK, Watched};
pub(crate) use turn::{News, Turn};
pub(crate) use world::{Expected, Inventory, Listening, Made, World};

use crate::Error;

/// One turn of `program` as `lab-control`. Whatever it started is gone when this returns or is dropped.
///
/// # Errors
/// As [`Turn::run`].
pub(crate) async fn run(
    program: &Path,
    turn: &Turn,
    stop: watch::Receiver<bool>,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<Vec<PhaseResult>, Error> {
    tell(News::Begins(Phase::Start));
    let begun = Sampled::start()?;
    let mesh = mesh::Mesh::new(turn.shape);
    let plane = plane::Plane::start(program, &turn.subject, mesh, turn.shape.proxies).await?;
    turn.run(begun, plane, stop, tell).await
}
