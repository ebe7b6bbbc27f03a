//! How objects reach the controller.

use std::sync::Arc;

use leno_objects::{Change, Kind, Object};

use crate::controller::Controller;

/// A source of objects: files, or an API server.
///
/// A feed first announces the kinds of objects that it brings. Later it reports, for each kind, that all existing
/// objects have arrived. Proxies are served once every announced kind is complete. If they were served earlier, a
/// reconnecting proxy would see a control plane without pods or policies, and drop what it knows. Files bring all kinds
/// at once; an API server lists one kind after the other.
///
/// If there are several feeds, each brings different kinds, and all of them are announced before the first one is
/// complete.
#[derive(Debug)]
pub struct Feed {
    controller: Controller,
    kinds: Vec<Kind>,
}

impl Feed {
    /// A feed that brings objects of these kinds.
    pub fn announce(controller: Controller, kinds: &[Kind]) -> Self {
        controller.await_kinds(kinds);
        Self { controller, kinds: kinds.to_vec() }
    }

    /// Takes in changes atomically. They are published a moment later, if all kinds are complete.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.controller.take(&[], |_| changes.into_iter().collect());
    }

    /// Reports that all existing objects of these kinds have arrived.
    pub fn complete(&self, kinds: &[Kind]) {
        self.controller.take(kinds, |_| Vec::new());
    }

    /// Takes in the list of all objects of one kind. Objects that are not in it are removed. Then the kind is complete.
    pub fn list<O: Into<Arc<Object>>>(&self, kind: Kind, objects: impl IntoIterator<Item = O>) {
        self.controller.take(&[kind], |store| store.changes_to(&[kind], objects));
    }

    /// Takes in the list of all objects of the feed's kinds. Objects that are not in it are removed. Then all kinds are
    /// complete.
    pub fn replace<O: Into<Arc<Object>>>(&self, objects: impl IntoIterator<Item = O>) {
        self.controller.take(&self.kinds, |store| store.changes_to(&self.kinds, objects));
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
