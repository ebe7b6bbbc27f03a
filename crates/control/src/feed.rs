//! How objects come in.

use std::sync::Arc;

use leno_objects::{Change, Kind, Object};

use crate::controller::Controller;

/// One source of objects: files, or an API server.
///
/// It says first of which kinds it brings all there are, and then, of each, that it has. Proxies are served
/// once every kind that was announced is complete: one that reconnects to a control plane that seems to have
/// no pods, or no policies, would drop all it knows. Files bring all kinds at once; an API server lists one
/// after the other.
///
/// Of several feeds, each brings kinds of its own, and all are announced before the first is complete.
#[derive(Debug)]
pub struct Feed {
    controller: Controller,
    kinds: Vec<Kind>,
}

impl Feed {
    /// A feed of objects of these kinds.
    pub fn announce(controller: Controller, kinds: &[Kind]) -> Self {
        controller.await_kinds(kinds);
        Self { controller, kinds: kinds.to_vec() }
    }

    /// Takes changes in, all at once. They are published a moment later, if all kinds are complete.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.controller.take(&[], |_| changes.into_iter().collect());
    }

    /// Says that what came brought all objects of these kinds that there were.
    pub fn complete(&self, kinds: &[Kind]) {
        self.controller.take(kinds, |_| Vec::new());
    }

    /// Takes in that these are all objects of one kind, and others are gone: a list, the first or a later one.
    /// Then the kind is complete.
    pub fn list<O: Into<Arc<Object>>>(&self, kind: Kind, objects: impl IntoIterator<Item = O>) {
        self.controller.take(&[kind], |store| store.changes_to(&[kind], objects));
    }

    /// Takes in that these are all objects of the feed's kinds, and others are gone. Then all are complete.
    pub fn replace<O: Into<Arc<Object>>>(&self, objects: impl IntoIterator<Item = O>) {
        self.controller.take(&self.kinds, |store| store.changes_to(&self.kinds, objects));
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
