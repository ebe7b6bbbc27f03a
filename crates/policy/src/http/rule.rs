//! A rule, compiled once: what a table holds and a decision refers to.

use std::sync::Arc;

use leno_model::Name;
use leno_model::http::{
    Backend, BackendTarget, Filter, Match, Mirror, PathMatch, RateLimit, Retry, Route, RouteName, Rule, Timeouts,
};

use super::changes::Changes;
use super::conditions::{HeaderTest, PathTest, Test};
use super::cors::Origins;
use super::error::RuleError;
use super::host;
use super::session::Sessions;
use super::target::{NewPlace, NewTarget};

/// A rule of a route.
#[derive(Debug)]
pub struct CompiledRule {
    pub(super) route: RouteName,
    pub(super) index: usize,
    pub(super) name: Option<Name>,
    label: Name,
    pub(super) steps: Steps,
    pub(super) redirect: Option<NewPlace>,
    pub(super) rewrite: Option<NewTarget>,
    pub(super) cors: Option<Origins>,
    pub(super) backends: Vec<CompiledBackend>,
    pub(super) total_weight: u64,
    pub(super) timeouts: Timeouts,
    pub(super) retry: Option<Retry>,
    pub(super) session: Option<Sessions>,
    pub(super) rate: Option<RateLimit>,
}

/// What a rule or a backend does to requests and responses.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) request: Vec<Changes>,
    pub(super) response: Vec<Changes>,
    pub(super) mirrors: Vec<Mirror>,
}

#[derive(Debug)]
pub(super) struct CompiledBackend {
    pub(super) weight: u32,
    pub(super) target: BackendTarget,
    pub(super) steps: Steps,
}

/// One match of a rule.
#[derive(Debug)]
pub(super) struct CompiledMatch {
    pub(super) path: PathTest,
    pub(super) method: Option<Name>,
    pub(super) headers: Vec<HeaderTest>,
    pub(super) query: Vec<(Name, Test)>,
    pub(super) index: usize,
}

impl CompiledMatch {
    fn new(index: usize, wanted: &Match) -> Result<Self, RuleError> {
        // Of several conditions on one name, only the first counts (Gateway API, HTTPRouteMatch).
        let mut headers = Vec::new();
        for (at, header) in wanted.headers.iter().enumerate() {
            if wanted.headers[..at].iter().all(|other| !other.name.eq_ignore_ascii_case(&header.name)) {
                headers.push(HeaderTest::new(header)?);
            }
        }
        let mut query = Vec::new();
        for (at, parameter) in wanted.query.iter().enumerate() {
            if wanted.query[..at].iter().all(|other| other.name != parameter.name) {
                query.push((parameter.name.clone(), Test::new(&parameter.value)?));
            }
        }
        Ok(Self { path: PathTest::new(&wanted.path)?, method: wanted.method.clone(), headers, query, index })
    }
}

impl CompiledRule {
    /// The rule and its matches.
    pub(super) fn new(route: &Route, index: usize, rule: &Rule) -> Result<(Arc<Self>, Vec<CompiledMatch>), RuleError> {
        let all = [Match::all()];
        let matches = if rule.matches.is_empty() { &all[..] } else { &rule.matches };
        let compiled = matches.iter().enumerate().map(|(at, wanted)| CompiledMatch::new(at, wanted));
        let compiled = compiled.collect::<Result<Vec<_>, _>>()?;
        let label = label(route, index, rule);
        let paths = matches.iter().map(|wanted| &wanted.path);
        let session = rule.session.as_ref().map(|wanted| Sessions::new(&label, wanted, paths)).transpose()?;
        let mut this = Self {
            route: route.id.clone(),
            index,
            name: rule.name.clone(),
            label,
            steps: Steps::default(),
            redirect: None,
            rewrite: None,
            cors: None,
            backends: rule.backends.iter().map(CompiledBackend::new).collect::<Result<_, _>>()?,
            total_weight: rule.backends.iter().map(|backend| u64::from(backend.weight)).sum(),
            timeouts: rule.timeouts,
            retry: rule.retry.clone(),
            session,
            rate: rule.rate,
        };
        for filter in &rule.filters {
            match filter {
                Filter::Redirect(_) | Filter::Rewrite(_) if this.redirect.is_some() || this.rewrite.is_some() => {
                    return Err(RuleError::TwoTargets);
                }
                Filter::Redirect(redirect) => this.redirect = Some(NewPlace::new(redirect)?),
                Filter::Rewrite(rewrite) => this.rewrite = Some(NewTarget::new(rewrite)?),
                Filter::Cors(cors) => this.cors = Some(Origins::new(cors)?),
                step => this.steps.add(step)?,
            }
        }
        let needs_prefix = this.redirect.as_ref().is_some_and(NewPlace::needs_prefix)
            || this.rewrite.as_ref().is_some_and(NewTarget::needs_prefix);
        if needs_prefix && matches.iter().any(|wanted| !matches!(wanted.path, PathMatch::Prefix(_))) {
            return Err(RuleError::NoPrefix);
        }
        Ok((Arc::new(this), compiled))
    }

    /// How a log, a refusal and `leno explain` name it: the route, and the rule's name or its number from 1.
    pub fn label(&self) -> &Name {
        &self.label
    }
}

fn label(route: &Route, index: usize, rule: &Rule) -> Name {
    let label = match &rule.name {
        Some(name) => format!("rule {name} of {}", route.id),
        None => format!("rule {} of {}", index + 1, route.id),
    };
    label.into()
}

impl CompiledBackend {
    fn new(backend: &Backend) -> Result<Self, RuleError> {
        let mut steps = Steps::default();
        for filter in &backend.filters {
            steps.add(filter)?;
        }
        Ok(Self { weight: backend.weight, target: backend.target.clone(), steps })
    }
}

impl Steps {
    fn add(&mut self, filter: &Filter) -> Result<(), RuleError> {
        match filter {
            Filter::RequestHeaders(changes) => self.request.push(Changes::new(changes)?),
            Filter::ResponseHeaders(changes) => self.response.push(Changes::new(changes)?),
            Filter::Mirror(mirror) => self.mirrors.push(mirror.clone()),
            Filter::Redirect(_) => return Err(RuleError::BackendFilter("RequestRedirect")),
            Filter::Rewrite(_) => return Err(RuleError::BackendFilter("URLRewrite")),
            Filter::Cors(_) => return Err(RuleError::BackendFilter("CORS")),
        }
        Ok(())
    }
}

/// Whether the route can be followed to the letter.
///
/// # Errors
/// For each rule that can't, its place in the list and why.
pub fn check(route: &Route) -> Result<(), Vec<(usize, RuleError)>> {
    let mut problems: Vec<_> = route
        .rules
        .iter()
        .enumerate()
        .filter_map(|(index, rule)| CompiledRule::new(route, index, rule).err().map(|error| (index, error)))
        .collect();
    for name in &route.hostnames {
        let plain = name.strip_prefix("*.").unwrap_or(name);
        if host::normalise(plain.as_bytes()).map_or(true, |host| host.name != plain || host.port.is_some()) {
            problems.push((0, RuleError::Host(name.clone())));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}
