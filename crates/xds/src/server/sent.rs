//! What a proxy has been sent: a catalogue and the exceptions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use leno_model::Name;

use super::request::Held;
use crate::catalogue::Catalogue;
use crate::encoded::Published;

static NOTHING: LazyLock<Arc<Catalogue>> = LazyLock::new(Arc::default);

/// The resources that a proxy was sent and not told to drop: a published catalogue, which costs nothing to remember, and
/// the names of which the proxy has another version or none. These are usually few; there are many for long only if the
/// proxy subscribes by name.
#[derive(Debug)]
pub(super) struct Sent {
    base: Arc<Catalogue>,
    /// Names of which it has another version than the one in `base`, or none.
    but: BTreeMap<Name, Option<Name>>,
    /// Names that it requested, and of which it was told that they do not exist.
    missing: BTreeSet<Name>,
}

impl Default for Sent {
    fn default() -> Self {
        Self { base: NOTHING.clone(), but: BTreeMap::new(), missing: BTreeSet::new() }
    }
}

impl Sent {
    /// What a proxy says it holds, limited to names for which `counts` is true.
    pub(super) fn told(held: &Held, counts: impl Fn(&str) -> bool) -> Self {
        let told = held.by_name().into_iter().filter(|(name, _)| counts(name));
        Self { but: told.map(|(name, version)| (name.into(), Some(version.into()))).collect(), ..Self::default() }
    }

    /// As [`Self::told`], for a proxy that wants everything and may have most of `latest`: versions equal to those in
    /// `latest` need not be remembered.
    pub(super) fn told_beside(held: &Held, latest: &Arc<Catalogue>) -> Self {
        let told = held.by_name();
        let mut but = BTreeMap::new();
        let mut same = 0;
        let mut told_next = told.iter().copied().peekable();
        let mut other = |(name, version): (&str, &str)| drop(but.insert(Name::from(name), Some(Name::from(version))));
        let mut lacks = Vec::new();
        for resource in latest.values() {
            while let Some(before) = told_next.next_if(|(name, _)| *name < &**resource.name()) {
                other(before);
            }
            match told_next.next_if(|(name, _)| *name == &**resource.name()) {
                Some((_, version)) if version == resource.version() => same += 1,
                Some(differs) => other(differs),
                None => lacks.push(resource.name()),
            }
        }
        told_next.for_each(&mut other);
        if same < latest.len() / 2 {
            return Self::told(held, |_| true);
        }
        but.extend(lacks.into_iter().map(|name| (name.clone(), None)));
        Self { base: latest.clone(), but, missing: BTreeSet::new() }
    }

    /// The version of a resource that it has.
    pub(super) fn version<'a>(&'a self, name: &str) -> Option<&'a str> {
        match self.but.get(name) {
            Some(other) => other.as_deref(),
            None => self.base.get(name).map(|resource| resource.version()),
        }
    }

    /// The number of resources that it has.
    pub(super) fn len(&self) -> usize {
        let beside = self.but.iter().filter(|(name, version)| version.is_some() && !self.base.contains_key(name));
        let without = self.but.iter().filter(|(name, version)| version.is_none() && self.base.contains_key(name));
        self.base.len() + beside.count() - without.count()
    }

    /// The catalogue, and the exceptions.
    pub(super) fn parts(&self) -> (&Arc<Catalogue>, &BTreeMap<Name, Option<Name>>) {
        (&self.base, &self.but)
    }

    /// Whether it was told that the resource does not exist.
    pub(super) fn is_known_missing(&self, name: &str) -> bool {
        self.missing.contains(name)
    }

    /// Treats the resource as never sent.
    pub(super) fn forget(&mut self, name: &str) {
        self.missing.remove(name);
        if self.base.contains_key(name) {
            self.but.insert(name.into(), None);
        } else {
            self.but.remove(name);
        }
    }

    /// It was sent all of `catalogue`, except names in which it keeps what it had.
    pub(super) fn become_all_of(&mut self, catalogue: Arc<Catalogue>, but: BTreeMap<Name, Option<Name>>) {
        self.missing.retain(|name| !catalogue.contains_key(name));
        (self.base, self.but) = (catalogue, but);
    }

    /// It requested the resource and was told that it does not exist.
    pub(super) fn is_missing(&mut self, name: Name) {
        self.missing.insert(name);
    }

    /// It was sent this resource. For proxies that subscribe by name.
    pub(super) fn upsert(&mut self, resource: &Published) {
        self.missing.remove(resource.name());
        self.but.insert(resource.name().clone(), Some(resource.version().into()));
    }

    /// It was told to drop this resource. For proxies that subscribe by name.
    pub(super) fn remove(&mut self, name: &str) {
        self.but.remove(name);
    }

    /// Remembers by name from now on, because the proxy no longer wants everything.
    pub(super) fn by_name(&mut self) {
        let base = std::mem::replace(&mut self.base, NOTHING.clone());
        for (name, resource) in base.iter() {
            self.but.entry(name.clone()).or_insert_with(|| Some(resource.version().into()));
        }
        self.but.retain(|_, version| version.is_some());
    }
}
