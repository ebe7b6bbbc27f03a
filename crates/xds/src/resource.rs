//! One resource as it is handed in to be published.

use bytes::Bytes;

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
