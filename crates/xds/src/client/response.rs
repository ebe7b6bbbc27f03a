//! A discovery response as the client reads it: resource by resource, as slices of the received bytes.
//!
//! A first response brings the whole mesh. Decoded at once, it would be some hundred thousand strings and bodies, each an
//! allocation of its own. What the proxy keeps would then lie scattered between what is freed, and the proxy would hold
//! a third more memory than it needs.

use bytes::Bytes;
use prost::Message;

use crate::wire::Fields;

/// `Resource.name`.
const NAME: u64 = 3;

/// `DeltaDiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    /// Each an encoded [`Resource`].
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) resources: Vec<Bytes>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    #[prost(string, repeated, tag = "6")]
    pub(crate) removed_resources: Vec<String>,
}

/// `Resource`, without its aliases.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resource: Option<Body>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Body {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// The name of an encoded [`Resource`], as far as it can be read: empty if it has none.
pub(crate) fn name_of(resource: &[u8]) -> &str {
    let names = Fields(resource).map_while(Result::ok).filter(|(field, _)| *field == NAME);
    names.last().and_then(|(_, name)| std::str::from_utf8(name).ok()).unwrap_or_default()
}
