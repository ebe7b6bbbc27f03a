//! The routes of one port of a service, compiled once, so that 5 000 of them cost a request what 100 do.

use std::cmp::Reverse;
use std::collections::HashMap;

use leno_model::http::{Route, RouteKind, RouteName};
use leno_model::{Name, ServiceName};
use regex::bytes::{RegexSet, RegexSetBuilder};

use super::bucket::{Bucket, Entry};
use super::conditions::PathTest;
use super::request::Request;
use super::rule::CompiledRule;
use super::tree::Tree;

/// The routes of one port of a service.
#[derive(Debug)]
pub struct Table {
    pub(super) port: u16,
    producer: Option<Group>,
    consumers: HashMap<Name, Group>,
}

/// Routes that are merged: a service's own, or those of one consumer's namespace.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) routes: Vec<RouteName>,
    /// The first route that can't be followed, and why.
    pub(super) not_understood: Option<(RouteName, Name)>,
    hosts: HashMap<Name, Paths>,
    /// By the name behind `*`, with its dot.
    wildcards: HashMap<Name, Paths>,
    any: Paths,
}

/// The matches of one host.
#[derive(Debug, Default)]
struct Paths {
    exact: HashMap<Name, Bucket>,
    prefixes: Tree<Bucket>,
    regexes: Regexes,
}

/// Matches by regular expression. The longest goes first.
#[derive(Debug, Default)]
struct Regexes {
    entries: Vec<(Name, regex::bytes::Regex, Entry)>,
    /// All in one, if there are many: a path is read once then.
    all: Option<RegexSet>,
}

/// With more expressions than this, they are compiled into one.
const TOGETHER_FROM: usize = 8;

/// What a request follows.
pub(super) struct Found<'t> {
    pub(super) entry: &'t Entry,
    /// Length of the prefix that matched, without a slash at its end; 0 if another match was made.
    pub(super) prefix: usize,
}

impl Table {
    /// The table of `port` of `service`. Of `routes`, those of connections and those that belong to another service or port are
    /// left out.
    ///
    /// Where routes of several kinds belong to the port, only those of the most specific kind count, as the Gateway API
    /// has it (GEP-1294). Where a route can't be followed to the letter, the requests of all who would follow it are refused.
    pub fn new<'a>(service: &ServiceName, port: u16, routes: impl IntoIterator<Item = &'a Route>) -> Self {
        let mut groups: HashMap<Option<Name>, Vec<&Route>> = HashMap::new();
        for route in routes.into_iter().filter(|route| route.id.kind.is_of_requests()) {
            let mut consumers: Vec<&Option<Name>> = Vec::new();
            for parent in &route.parents {
                let here = parent.service == *service && parent.port.is_none_or(|only| only == port);
                if here && !consumers.contains(&&parent.consumer) {
                    consumers.push(&parent.consumer);
                    groups.entry(parent.consumer.clone()).or_default().push(route);
                }
            }
        }
        let mut table = Self { port, producer: None, consumers: HashMap::new() };
        for (consumer, routes) in groups {
            let group = Group::new(&routes);
            match consumer {
                None => table.producer = Some(group),
                Some(namespace) => {
                    table.consumers.insert(namespace, group);
                }
            }
        }
        table
    }

    /// Whether no route belongs to the port, so that requests go to the service's own endpoints.
    pub fn is_empty(&self) -> bool {
        self.producer.is_none() && self.consumers.is_empty()
    }

    /// The routes that a caller's requests follow: its namespace's own if there are any, else the service's.
    pub(super) fn group(&self, source_namespace: Option<&str>) -> Option<&Group> {
        source_namespace.and_then(|namespace| self.consumers.get(namespace)).or(self.producer.as_ref())
    }
}

impl Group {
    fn new(routes: &[&Route]) -> Self {
        let mut group = Self::default();
        let kind = routes.iter().map(|route| route.id.kind).min().unwrap_or(RouteKind::Http);
        for route in routes.iter().filter(|route| route.id.kind == kind) {
            group.routes.push(route.id.clone());
            if let Err(problem) = group.add(route) {
                group.not_understood.get_or_insert((route.id.clone(), problem));
            }
        }
        group.hosts.values_mut().chain(group.wildcards.values_mut()).for_each(Paths::finish);
        group.any.finish();
        group
    }

    fn add(&mut self, route: &Route) -> Result<(), Name> {
        if let Some(problem) = &route.not_understood {
            return Err(problem.clone());
        }
        for (index, rule) in route.rules.iter().enumerate() {
            let (rule, matches) =
                CompiledRule::new(route, index, rule).map_err(|error| Name::from(error.to_string()))?;
            for matched in matches {
                let entry = Entry { rule: rule.clone(), matched: matched.into(), created: route.created };
                if route.hostnames.is_empty() {
                    self.any.add(entry.clone());
                }
                for host in &route.hostnames {
                    let paths = match host.strip_prefix('*') {
                        Some(suffix) => self.wildcards.entry(suffix.into()).or_default(),
                        None => self.hosts.entry(host.clone()).or_default(),
                    };
                    paths.add(entry.clone());
                }
            }
        }
        Ok(())
    }

    /// The rule that the request follows. A host that is named exactly goes before one named by `*`, and of those the
    /// longest first; then an exact path, the longest prefix, a regular expression, and the prefix of all paths.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<Found<'_>> {
        if let Some(found) = self.hosts.get(request.host).and_then(|paths| paths.find(request)) {
            return Some(found);
        }
        if !self.wildcards.is_empty() {
            // A `*` stands for one label at least.
            for (dot, _) in request.host.match_indices('.').filter(|(dot, _)| *dot > 0) {
                let suffix = &request.host[dot..];
                if let Some(found) = self.wildcards.get(suffix).and_then(|paths| paths.find(request)) {
                    return Some(found);
                }
            }
        }
        self.any.find(request)
    }
}

impl Paths {
    fn add(&mut self, entry: Entry) {
        match &entry.matched.path {
            PathTest::Exact(path) => self.exact.entry(path.clone()).or_default().add(entry),
            PathTest::Prefix(prefix) => {
                let prefix = prefix.clone();
                self.prefixes.entry(&prefix, Bucket::default).add(entry);
            }
            PathTest::Regex(text, regex) => {
                let (text, regex) = (text.clone(), regex.clone());
                self.regexes.entries.push((text, regex, entry));
            }
        }
    }

    fn finish(&mut self) {
        self.exact.values_mut().for_each(Bucket::finish);
        self.prefixes.values_mut(&mut Bucket::finish);
        self.regexes.finish();
    }

    fn find(&self, request: &Request<'_>) -> Option<Found<'_>> {
        let whole = |entry| Found { entry, prefix: 0 };
        if let Some(entry) = self.exact.get(request.path).and_then(|bucket| bucket.find(request)) {
            return Some(whole(entry));
        }
        for (prefix, bucket) in self.prefixes.along(request.path) {
            if let Some(entry) = bucket.find(request) {
                return Some(Found { entry, prefix });
            }
        }
        let regex = self.regexes.find(request).map(whole);
        regex.or_else(|| self.prefixes.of_all().and_then(|bucket| bucket.find(request)).map(whole))
    }
}

impl Regexes {
    fn finish(&mut self) {
        self.entries.sort_by_cached_key(|(text, _, entry)| (Reverse(text.len()), entry.order()));
        if self.entries.len() > TOGETHER_FROM {
            let texts = self.entries.iter().map(|(text, ..)| format!("^(?:{text})$"));
            // If all together are too large, they are tried one by one.
            self.all = RegexSetBuilder::new(texts).unicode(false).build().ok();
        }
    }

    fn find(&self, request: &Request<'_>) -> Option<&Entry> {
        let path = request.path.as_bytes();
        match &self.all {
            Some(all) => {
                let matching = all.matches(path);
                matching.iter().map(|at| &self.entries[at].2).find(|entry| entry.passes(request))
            }
            None => {
                let mut entries = self.entries.iter();
                entries.find(|(_, regex, entry)| entry.passes(request) && regex.is_match(path)).map(|(.., entry)| entry)
            }
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
