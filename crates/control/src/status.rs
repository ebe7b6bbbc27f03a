//! Findings about objects, and the sink that gets them. A sink prints them beside a manifest's place, logs them, or
//! writes them into the object's status.

use std::collections::BTreeMap;
use std::fmt;

use leno_objects::{ObjectKey, ParentReference};
use parking_lot::Mutex;

/// The findings about one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Sentences on how it was understood, where its author may expect something else.
    pub warnings: Vec<String>,
    /// Sentences on what is valid in it but probably not meant, as of the latest [`lint`](crate::Controller::lint).
    pub lint: Vec<String>,
    /// For a route: what is said of each parent that is this control plane's business.
    pub parents: Vec<ParentStatus>,
    /// For a policy about requests: where it is enforced.
    pub enforced: Option<String>,
}

/// What is said of one parent of a route (Gateway API, RouteParentStatus).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentStatus {
    /// The parent, as the route refers to it.
    pub parent: ParentReference,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// A condition of an object's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Type.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// The reason, in one word.
    pub reason: &'static str,
    /// The reason, in a sentence.
    pub message: String,
}

impl Condition {
    /// A condition.
    pub fn new(kind: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, holds, reason, message: message.into() }
    }
}

impl Status {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.warnings.is_empty() && self.lint.is_empty() && self.parents.is_empty() && self.enforced.is_none()
    }

    /// All sentences.
    pub fn findings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().chain(&self.lint).map(String::as_str)
    }
}

/// Receives findings about objects.
pub trait StatusSink: fmt::Debug + Send + Sync {
    /// Receives the current findings about an object. They replace the earlier ones; an empty status means that there
    /// are none any more. Called in order, and only for objects whose status changed.
    ///
    /// The controller waits for this call. Don't do anything slow in it, and don't call the controller.
    fn status(&self, object: &ObjectKey, status: &Status);
}

/// Stores the current findings about each object.
#[derive(Debug, Default)]
pub struct Findings(Mutex<BTreeMap<ObjectKey, Status>>);

impl Findings {
    /// The current findings, for the objects that have any.
    pub fn all(&self) -> BTreeMap<ObjectKey, Status> {
        self.0.lock().clone()
    }
}

impl StatusSink for Findings {
    fn status(&self, object: &ObjectKey, status: &Status) {
        let mut all = self.0.lock();
        if status.is_empty() {
            all.remove(object);
        } else {
            all.insert(object.clone(), status.clone());
        }
    }
}
