//! What was found about objects, told to whoever writes it down: beside a manifest's place, into a log, or
//! into an object's own status.

use std::collections::BTreeMap;
use std::fmt;

use leno_objects::ObjectKey;
use parking_lot::Mutex;

/// What was found about one object. Empty if there is nothing to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// How it was understood, where its author may expect otherwise: sentences.
    pub warnings: Vec<String>,
    /// What is legal in it and probably not meant, as of the last [`lint`](crate::Controller::lint): sentences.
    pub lint: Vec<String>,
}

impl Status {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.warnings.is_empty() && self.lint.is_empty()
    }

    /// All sentences.
    pub fn findings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().chain(&self.lint).map(String::as_str)
    }
}

/// Takes what is found about objects.
pub trait StatusSink: fmt::Debug + Send + Sync {
    /// Takes what is to be said about an object from now on, in place of what was; nothing, if that is empty.
    /// Called for an object when its status changes, in order, and never for what stays the same.
    ///
    /// The controller waits meanwhile: what takes long, or asks it something, belongs elsewhere.
    fn status(&self, object: &ObjectKey, status: &Status);
}

/// Keeps what there is to say about each object.
#[derive(Debug, Default)]
pub struct Findings(Mutex<BTreeMap<ObjectKey, Status>>);

impl Findings {
    /// What there is to say now, about those objects of which something is.
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
