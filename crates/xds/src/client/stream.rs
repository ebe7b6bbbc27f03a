//! The client's side of one type's delta discovery, without the network: what is held, what to request, and how to
//! answer.

use std::collections::{HashMap, HashSet};
use std::fmt;

use leno_model::Name;
use leno_proto::discovery::{DeltaDiscoveryRequest, Node, Status};
use prost::Message;

use super::handler::{Handler, Rejection, Update};
use super::response::{Resource, Response, name_of};

/// Largest first request, bytes. gRPC servers accept 4 MiB by default, Istio's among them. That is enough for the held
/// versions of some 60 000 workloads. Versions that don't fit are left out, and those resources are sent again.
const MAX_FIRST_REQUEST: usize = 4 << 20;
/// Longest reason in a NACK, bytes. It goes into logs and an HTTP/2 frame.
const MAX_REASON: usize = 4096;

/// One subscribed type.
#[derive(Debug)]
pub(crate) struct Subscribed {
    type_url: &'static str,
    /// Everything that the handler holds, and the stand-ins for the resources it refused. The handler shares these
    /// names, so that they are stored once.
    held: HashMap<Name, Version>,
    /// How many of them were refused.
    refused: usize,
    /// Resources that are held but were not listed for the server. The next response holds those of them that still
    /// exist.
    untold: HashSet<Name>,
    synced: bool,
}

/// A version, as a server writes it. The common ones are numbers, which are stored without an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Version {
    /// A version that no server has, for a resource that was refused. An empty version counts as such.
    Refused,
    /// 16 hexadecimal digits, as Leno writes it.
    Hexadecimal(u64),
    /// A number without leading zeros, as Istio writes it.
    Decimal(u64),
    /// Anything else.
    Other(Name),
}

impl Version {
    fn of(text: String) -> Self {
        let numbers = [u64::from_str_radix(&text, 16).map(Self::Hexadecimal), text.parse().map(Self::Decimal)];
        match numbers.into_iter().flatten().find(|number| number.to_string() == text) {
            Some(number) => number,
            None if text.is_empty() => Self::Refused,
            None => Self::Other(text.into()),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => Ok(()),
            Self::Hexadecimal(number) => write!(f, "{number:016x}"),
            Self::Decimal(number) => write!(f, "{number}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// The effect of one response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) resources: usize,
    pub(crate) removed: usize,
    pub(crate) rejected: usize,
    /// Those removed that the response did not name: they were held, not listed, and not sent again.
    pub(crate) vanished: Vec<Name>,
    /// Whether this was the first response of the type in this process.
    pub(crate) first: bool,
}

impl Subscribed {
    pub(crate) fn new(type_url: &'static str) -> Self {
        Self { type_url, held: HashMap::new(), refused: 0, untold: HashSet::new(), synced: false }
    }

    pub(crate) fn type_url(&self) -> &'static str {
        self.type_url
    }

    pub(crate) fn held(&self) -> usize {
        self.held.len() - self.refused
    }

    /// The names of everything that is held.
    pub(crate) fn names(&self) -> HashSet<Name> {
        self.held.keys().cloned().collect()
    }

    /// Has the handler remove these, as if a server had said so.
    pub(crate) fn remove(&mut self, names: HashSet<Name>, handler: &mut dyn Handler) {
        let removed_resources = names.iter().map(ToString::to_string).collect();
        if !names.is_empty() {
            self.answer(Response { removed_resources, ..Response::default() }, handler);
        }
    }

    /// The request that opens the type on a new stream. It subscribes to everything (no names) and lists what is still
    /// held.
    pub(crate) fn first_request(&mut self, node: Node) -> DeltaDiscoveryRequest {
        let mut request =
            DeltaDiscoveryRequest { node: Some(node), type_url: self.type_url.to_owned(), ..Default::default() };
        self.untold = HashSet::new();
        let mut room = MAX_FIRST_REQUEST.saturating_sub(request.encoded_len());
        for (name, version) in &self.held {
            let version = version.to_string();
            let size = told_len(name, &version);
            if size <= room {
                room -= size;
                request.initial_resource_versions.insert(name.to_string(), version);
            } else {
                self.untold.insert(name.clone());
            }
        }
        request
    }

    /// Hands a response to the handler and makes the ACK or NACK for it.
    pub(crate) fn answer(&mut self, response: Response, handler: &mut dyn Handler) -> (DeltaDiscoveryRequest, Outcome) {
        let mut rejections = Vec::new();
        let mut removed: Vec<Name> = response.removed_resources.into_iter().map(Name::from).collect();
        let mut vanished = std::mem::take(&mut self.untold);
        for resource in &response.resources {
            if vanished.is_empty() {
                break;
            }
            vanished.remove(name_of(resource));
        }
        let vanished: Vec<Name> = vanished.into_iter().collect();
        removed.extend(vanished.iter().cloned());
        let mut outcome = Outcome {
            resources: response.resources.len(),
            removed: removed.len(),
            vanished,
            first: !std::mem::replace(&mut self.synced, true),
            ..Outcome::default()
        };
        let mut versions = Vec::with_capacity(response.resources.len());
        let mut updates = Vec::with_capacity(removed.len() + response.resources.len());
        // Removals first: the replacement of a workload may have its address.
        for name in removed {
            let before = self.held.remove(&name);
            self.refused -= usize::from(before == Some(Version::Refused));
            updates.push(Update::Remove { name });
        }
        for resource in response.resources {
            let (name, read) = match Resource::decode(resource.clone()) {
                Ok(read) => (self.name(&read.name), Ok(read)),
                Err(error) => (self.name(name_of(&resource)), Err(error)),
            };
            if name.is_empty() {
                rejections.push(Rejection { name, reason: "a resource without a name".to_owned() });
                continue;
            }
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    versions.push((name.clone(), Version::Refused));
                    updates.push(Update::Unreadable { name, reason: error.to_string() });
                    continue;
                }
            };
            versions.push((name.clone(), Version::of(read.version)));
            updates.push(match read.resource {
                None => Update::Unreadable { name, reason: "a resource without a body".to_owned() },
                Some(body) if body.type_url != self.type_url => {
                    Update::Unreadable { name, reason: format!("a body of type {}", body.type_url) }
                }
                Some(body) => Update::Upsert { name, body: body.value },
            });
        }
        rejections.extend(handler.apply(self.type_url, updates));
        let rejected: HashSet<&str> = rejections.iter().map(|rejection| &*rejection.name).collect();
        for (name, version) in versions {
            let version = if !rejected.contains(&*name) {
                version
            } else {
                // The handler no longer holds the last good version, and may hold a stand-in. The stand-in must go when
                // the resource is removed or good again, even if that happens while we are disconnected, and even if
                // the resource returns to its last good version. So it is held in a version that no server has.
                Version::Refused
            };
            self.refused += usize::from(version == Version::Refused);
            let before = self.held.insert(name, version);
            self.refused -= usize::from(before == Some(Version::Refused));
        }
        outcome.rejected = rejections.len();
        let request = DeltaDiscoveryRequest {
            type_url: self.type_url.to_owned(),
            response_nonce: response.nonce,
            error_detail: (!rejections.is_empty())
                .then(|| Status { message: describe(&rejections), ..Status::default() }),
            ..Default::default()
        };
        (request, outcome)
    }
}

impl Subscribed {
    /// The name, shared with the held one if there is one.
    fn name(&self, name: &str) -> Name {
        self.held.get_key_value(name).map_or_else(|| name.into(), |(held, _)| held.clone())
    }
}

/// Length of one of a request's held versions, at most: a field of two fields, each with a tag of one
/// byte.
fn told_len(name: &str, version: &str) -> usize {
    let field = |length: usize| 1 + prost::length_delimiter_len(length) + length;
    field(field(name.len()) + field(version.len()))
}

/// The refusal of a response for a type nobody subscribed to.
pub(crate) fn refuse_unknown(response: Response) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        error_detail: Some(Status { message: format!("not subscribed to {}", response.type_url), ..Status::default() }),
        type_url: response.type_url,
        response_nonce: response.nonce,
        ..Default::default()
    }
}

/// `name: reason; name: reason`, as ztunnel words it.
fn describe(rejections: &[Rejection]) -> String {
    let mut text = String::new();
    for (index, rejection) in rejections.iter().enumerate() {
        if text.len() > MAX_REASON {
            text.push_str(&format!("; and {} more", rejections.len() - index));
            break;
        }
        if index > 0 {
            text.push_str("; ");
        }
        text.push_str(&rejection.name);
        text.push_str(": ");
        text.extend(rejection.reason.chars().take(MAX_REASON));
    }
    text
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
