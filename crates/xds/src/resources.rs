//! What a control plane publishes: named, versioned bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use leno_model::Name;

use crate::catalogue::Catalogue;
use crate::published::Published;

/// One resource to publish. Its version is a hash of its content, so that any process that produces the
/// same bytes gives it the same version, and a proxy that reconnects elsewhere is sent nothing
/// it already has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub(crate) version: String,
    pub(crate) body: Bytes,
    pub(crate) aliases: Vec<String>,
}

impl Resource {
    /// A resource from its encoded message.
    pub fn new(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        // As Istio: 64 bits of xxhash over the encoded message.
        let version = format!("{:016x}", twox_hash::XxHash64::oneshot(0, &body));
        Self { version, body, aliases: Vec::new() }
    }

    /// Other names it can be asked for by: `network/ip` of a workload or service.
    #[must_use]
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.aliases = aliases;
        self
    }

    /// How far it reaches without being named: proxies apply it to things whose own resources
    /// don't mention it, the more the higher. A proxy that holds a farther-reaching version is
    /// sent this one only after the addresses that name it; else what it covered lies open
    /// between the two.
    ///
    /// Set it from the content alone. It is made part of the version, so that a proxy that
    /// reconnects tells how far what it holds reaches, be it to another server.
    #[must_use]
    pub fn with_reach(mut self, reach: u8) -> Self {
        let hash = self.version.split('-').next().unwrap_or_default();
        self.version = format!("{hash}-{reach}");
        self
    }

    /// Hash of the content, 16 hex digits; then `-` and the reach, if that was set.
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// How far the resource of that version reaches; `None` if that doesn't matter to it, or the
/// version is not one of ours.
pub(crate) fn reach_of(version: &str) -> Option<u8> {
    version.split_once('-')?.1.parse().ok()
}

/// A snapshot of everything published. What doesn't change is shared between snapshots, down to
/// pages of some hundred resources, and recognised as unchanged without a look inside.
#[derive(Debug, Clone, Default)]
pub struct Resources {
    generation: u64,
    types: BTreeMap<Name, Arc<Catalogue>>,
}

impl Resources {
    /// Number of the snapshot, which the publisher counts up; told in each proxy's sync status.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Numbers the snapshot.
    pub fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// All resources of a type; `None` if there never was one.
    pub fn of(&self, type_url: &str) -> Option<&Arc<Catalogue>> {
        self.types.get(type_url)
    }

    /// Adds or replaces a resource; whether that changed anything.
    pub fn upsert(&mut self, type_url: &str, name: impl Into<Name>, resource: Resource) -> bool {
        let new = Published::new(type_url, name.into(), &resource);
        if self.of(type_url).and_then(|held| held.get(new.name())).is_some_and(|held| **held == new) {
            return false;
        }
        if !self.types.contains_key(type_url) {
            self.types.insert(type_url.into(), Arc::default());
        }
        if let Some(held) = self.types.get_mut(type_url) {
            Arc::make_mut(held).insert(Arc::new(new));
        }
        true
    }

    /// Removes a resource; whether there was one.
    pub fn remove(&mut self, type_url: &str, name: &str) -> bool {
        match self.types.get_mut(type_url) {
            Some(held) if held.get(name).is_some() => Arc::make_mut(held).remove(name),
            _ => false,
        }
    }
}
