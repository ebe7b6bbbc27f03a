//! Requests to the stage's core, and its news.

use std::sync::Arc;

use leno_objects::{Object, ObjectKey};
use tokio::sync::oneshot;

use crate::Error;
use crate::files::Manifests;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::report::Report;

/// A request to the stage's core.
pub(crate) enum Request {
    /// New manifests from the files, or why they can't be used.
    Reload(Result<Manifests, Error>),
    /// Objects from the program: they add to those of the files, and win.
    Apply(Vec<Object>, oneshot::Sender<Result<(), Error>>),
    /// Takes an object of [`Request::Apply`] back.
    Withdraw(ObjectKey, oneshot::Sender<Result<(), Error>>),
    /// Sets a label of a namespace; `None` removes it.
    Label { namespace: String, key: String, value: Option<String>, done: oneshot::Sender<Result<(), Error>> },
    Scale {
        namespace: String,
        name: String,
        replicas: u32,
        /// How many it had.
        done: oneshot::Sender<Result<u32, Error>>,
    },
    /// The plan and state of a running pod.
    Find { namespace: String, name: String, found: oneshot::Sender<Result<(Arc<PodPlan>, Report), Error>> },
    /// Ends everything; answered when nothing is left.
    Shutdown(oneshot::Sender<()>),
    /// Kills what was asked to end.
    Hurry,
}

/// News of the stage, for showing progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageEvent {
    /// An edit of the manifests was refused; the last good state stays. Each line has a place.
    Refused(String),
    /// Manifests took effect.
    Loaded {
        /// How many objects there are in the files.
        objects: usize,
    },
    /// A pod is gone.
    PodGone {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
}
