//! The matches that say the same of a request's host and path, in order of precedence.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;
use leno_model::Name;
use smallvec::SmallVec;

use super::request::Request;
use super::rule::{CompiledMatch, CompiledRule};

/// With more entries than this, those that ask for one exact value of a header are found by it.
const INDEXED_FROM: usize = 16;

/// One match and its rule.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) rule: Arc<CompiledRule>,
    pub(super) matched: Arc<CompiledMatch>,
    /// When the route was created.
    pub(super) created: u64,
}

impl Entry {
    /// The order of precedence among matches whose host and path are equal (Gateway API, HTTPRouteRule): with a method,
    /// most headers, most query parameters, oldest route, name of the route, first rule, first match.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let (rule, matched) = (&self.rule, &self.matched);
        let route = (rule.route.namespace.clone(), rule.route.name.clone());
        (
            matched.method.is_none(),
            Reverse(matched.headers.len()),
            Reverse(matched.query.len()),
            self.created,
            route,
            (rule.index, matched.index),
        )
    }

    /// Whether the request meets all conditions but those on host and path.
    pub(super) fn passes(&self, request: &Request<'_>) -> bool {
        let matched = &*self.matched;
        matched.method.as_ref().is_none_or(|method| &**method == request.method)
            && matched.headers.iter().all(|test| test.passes(request))
            && matched
                .query
                .iter()
                .all(|(name, test)| request.parameter(name).is_some_and(|value| test.passes(value.as_bytes())))
    }
}

/// The matches of one host and path.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    entries: Vec<Entry>,
    /// Entries that are tried for every request, if some are found by a header.
    always: Vec<usize>,
    by_header: Vec<(HeaderName, HashMap<Name, Vec<usize>>)>,
}

impl Bucket {
    pub(super) fn add(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Puts the entries in order. To be called once, after the last was added.
    pub(super) fn finish(&mut self) {
        self.entries.sort_by_cached_key(Entry::order);
        if self.entries.len() <= INDEXED_FROM {
            return;
        }
        for (at, entry) in self.entries.iter().enumerate() {
            let Some((name, value)) = entry.matched.headers.iter().find_map(|test| test.exact()) else {
                self.always.push(at);
                continue;
            };
            let index = match self.by_header.iter().position(|(known, _)| known == name) {
                Some(index) => index,
                None => {
                    self.by_header.push((name.clone(), HashMap::new()));
                    self.by_header.len() - 1
                }
            };
            self.by_header[index].1.entry(value.clone()).or_default().push(at);
        }
    }

    /// The first entry that the request passes.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<&Entry> {
        if self.by_header.is_empty() {
            return self.entries.iter().find(|entry| entry.passes(request));
        }
        let mut candidates: SmallVec<[usize; 16]> = SmallVec::from_slice(&self.always);
        for (name, values) in &self.by_header {
            let value = request.header(name);
            let value = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
            candidates.extend(value.and_then(|value| values.get(value)).into_iter().flatten().copied());
        }
        candidates.sort_unstable();
        candidates.into_iter().map(|at| &self.entries[at]).find(|entry| entry.passes(request))
    }
}
