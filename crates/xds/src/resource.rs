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

    /// Other names by which it can be requested: `network/ip` of a workload or service.
    #[must_use]
    pub fn with_aliases(mut self, aliases: Vec<String>) -> Self {
        self.aliases = aliases;
        self
    }

    /// Sets its reach: to how much proxies apply it without being told by name. The higher the number, the more it
    /// covers: a policy of one workload 0, of a namespace 1, of the whole mesh 2. A proxy that holds a version with a
    /// higher reach is sent this one only after the workloads that name it. Otherwise these workloads would be open in
    /// between.
    ///
    /// The reach must follow from the content alone. It is part of the version, so that a proxy that reconnects, even to
    /// another server, tells the reach of what it holds.
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

/// The reach of the resource with this version; `None` if none was set, or if the version is another server's.
pub(crate) fn reach_of(version: &str) -> Option<u8> {
    version.split_once('-')?.1.parse().ok()
}
