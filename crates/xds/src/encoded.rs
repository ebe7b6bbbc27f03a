//! A resource in wire format: encoded once, for all proxies.

use std::ops::Range;

use leno_model::Name;

use crate::resource::{Resource, reach_of};
use crate::wire::{self, Fields};

/// `DeltaDiscoveryResponse.resources`.
const RESOURCES: u8 = 2;
const VERSION: u8 = 1;
const RESOURCE: u8 = 2;
const NAME: u8 = 3;
const ALIASES: u8 = 4;
const ANY_TYPE: u8 = 1;
const ANY_VALUE: u8 = 2;

/// One published resource.
#[derive(Debug)]
pub struct Published {
    name: Name,
    /// The response field that carries it: tag, length, and the message `Resource`.
    field: Box<[u8]>,
    version: Range<u32>,
    body: Range<u32>,
    /// The offset of the aliases, which come last.
    aliases: u32,
    reach: Option<u8>,
}

impl PartialEq for Published {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.field == other.field
    }
}

impl Eq for Published {}

impl Published {
    pub(crate) fn new(type_url: &str, name: Name, resource: &Resource) -> Self {
        let Resource { version, body, aliases } = resource;
        let any = wire::length(type_url.len()) + wire::length(body.len());
        let of_aliases: usize = aliases.iter().map(|alias| wire::length(alias.len())).sum();
        let message = wire::length(version.len()) + wire::length(any) + wire::length(name.len()) + of_aliases;
        let mut field = Vec::with_capacity(wire::length(message));
        let at = |field: &Vec<u8>| field.len() as u32;
        let head = |field: &mut Vec<u8>, number: u8, length: usize| {
            field.push(wire::tag(number));
            // Fails only if the buffer is full, and a vector grows.
            prost::encode_length_delimiter(length, field).unwrap_or_default();
        };
        head(&mut field, RESOURCES, message);
        wire::put(&mut field, VERSION, version.as_bytes());
        let version_at = at(&field) - version.len() as u32..at(&field);
        head(&mut field, RESOURCE, any);
        wire::put(&mut field, ANY_TYPE, type_url.as_bytes());
        wire::put(&mut field, ANY_VALUE, body);
        let body_at = at(&field) - body.len() as u32..at(&field);
        wire::put(&mut field, NAME, name.as_bytes());
        let aliases_at = at(&field);
        for alias in aliases {
            wire::put(&mut field, ALIASES, alias.as_bytes());
        }
        Self {
            name,
            field: field.into_boxed_slice(),
            version: version_at,
            body: body_at,
            aliases: aliases_at,
            reach: reach_of(version),
        }
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The version; see [`Resource::version`].
    pub fn version(&self) -> &str {
        // It was written there as text.
        std::str::from_utf8(self.part(&self.version)).unwrap_or_default()
    }

    /// The encoded message.
    pub fn body(&self) -> &[u8] {
        self.part(&self.body)
    }

    /// Other names by which it can be requested.
    pub fn aliases(&self) -> Vec<&str> {
        self.each_alias().collect()
    }

    pub(crate) fn each_alias(&self) -> impl Iterator<Item = &str> {
        let aliases = Fields(&self.field[self.aliases as usize..]);
        aliases.filter_map(|field| std::str::from_utf8(field.ok()?.1).ok())
    }

    /// See [`Resource::with_reach`].
    pub(crate) fn reach(&self) -> Option<u8> {
        self.reach
    }

    /// The response field that carries it.
    pub(crate) fn field(&self) -> &[u8] {
        &self.field
    }

    fn part(&self, range: &Range<u32>) -> &[u8] {
        &self.field[range.start as usize..range.end as usize]
    }
}

#[cfg(test)]
#[path = "encoded_tests.rs"]
mod tests;
