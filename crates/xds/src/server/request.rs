//! A discovery request, decoded without copying the versions that it lists: they may be those of a whole mesh.

use std::collections::BTreeMap;

use bytes::Bytes;
use leno_proto::discovery::{Node, Status};
use prost::Message;

use crate::wire::{Fields, Malformed};

/// `DeltaDiscoveryRequest.initial_resource_versions`.
const INITIAL_RESOURCE_VERSIONS: u64 = 5;

/// Why bytes are not a discovery request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRequest {
    /// They are not a protobuf message of this type.
    #[error("not a discovery request: {0}")]
    Message(#[from] prost::DecodeError),
    /// The list of names and versions is malformed.
    #[error("not a discovery request: initial_resource_versions is not a map of strings")]
    Held,
}

/// A request of a proxy: a subscription, a change of one, an ACK or a NACK.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    said: Said,
    held: Held,
}

/// All fields of a `DeltaDiscoveryRequest` except the versions.
#[derive(Clone, PartialEq, Message)]
struct Said {
    #[prost(message, optional, tag = "1")]
    node: Option<Node>,
    #[prost(string, tag = "2")]
    type_url: String,
    #[prost(string, repeated, tag = "3")]
    subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    unsubscribe: Vec<String>,
    #[prost(string, tag = "6")]
    response_nonce: String,
    #[prost(message, optional, tag = "7")]
    error_detail: Option<Status>,
}

impl Request {
    /// Decodes a `DeltaDiscoveryRequest`.
    ///
    /// # Errors
    /// If `message` is not one.
    pub fn decode(message: Bytes) -> Result<Self, NoRequest> {
        let said = Said::decode(&*message)?;
        let mut versions =
            Fields(&message).filter(|field| !matches!(field, Ok((number, _)) if *number != INITIAL_RESOURCE_VERSIONS));
        if versions.next().is_none() {
            return Ok(Self { said, held: Held::default() });
        }
        let held = Held { message };
        let wrong = held.each().any(|held| held.is_err());
        if wrong { Err(NoRequest::Held) } else { Ok(Self { said, held }) }
    }

    /// The proxy's node. Only the first request of a stream has it.
    pub fn node(&self) -> Option<&Node> {
        self.said.node.as_ref()
    }

    pub(super) fn type_url(&self) -> &str {
        &self.said.type_url
    }

    pub(super) fn nonce(&self) -> &str {
        &self.said.response_nonce
    }

    /// Why the response was refused; `None` if it was not.
    pub(super) fn error(&self) -> Option<&str> {
        self.said.error_detail.as_ref().map(|error| &*error.message)
    }

    pub(super) fn subscribe(&self) -> &[String] {
        &self.said.subscribe
    }

    pub(super) fn unsubscribe(&self) -> &[String] {
        &self.said.unsubscribe
    }

    /// What the proxy holds from earlier streams.
    pub(super) fn held(&self) -> &Held {
        &self.held
    }
}

/// Names and versions of the resources that a proxy says it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    message: Bytes,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.message.is_empty()
    }

    /// Ordered by name, without duplicates. As in a protobuf map, the last entry of a key counts.
    pub(super) fn by_name(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<(&str, &str)> = self.each().filter_map(Result::ok).collect();
        // Our own proxies send them in order.
        if !all.is_sorted_by(|a, b| a.0 < b.0) {
            let last: BTreeMap<&str, &str> = all.drain(..).collect();
            all.extend(last);
        }
        all
    }

    fn each(&self) -> impl Iterator<Item = Result<(&str, &str), Malformed>> {
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| Malformed);
        Fields(&self.message).filter_map(move |field| {
            let entry = match field {
                Ok((INITIAL_RESOURCE_VERSIONS, entry)) => entry,
                Ok(_) => return None,
                Err(error) => return Some(Err(error)),
            };
            let (mut name, mut version) = ("", "");
            for field in Fields(entry) {
                let part = match field {
                    Ok((1, part)) => text(part).map(|part| name = part),
                    Ok((2, part)) => text(part).map(|part| version = part),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                };
                if let Err(error) = part {
                    return Some(Err(error));
                }
            }
            Some(Ok((name, version)))
        })
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
