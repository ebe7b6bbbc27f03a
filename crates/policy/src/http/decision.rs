//! What becomes of a request.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use leno_model::http::{BackendTarget, RateLimit, Retry, RouteName, Timeouts};
use leno_model::{Name, ServiceName};

use super::cors::Origins;
use super::error::Refusal;
use super::request::Request;
use super::rule::{CompiledRule, Steps};
use super::session::Sessions;
use super::table::Table;

/// What becomes of a request, and by which rule.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The rule; `None` if no rule was followed.
    pub chosen: Option<Chosen>,
    /// What becomes of the request.
    pub outcome: Outcome,
}

/// A rule that a request follows.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub(super) rule: Arc<CompiledRule>,
    pub(super) matched: usize,
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// No route belongs to the service's port: it goes to the service's own endpoints, as it is.
    Unrouted,
    /// It goes to a backend.
    Forward(Box<Forward>),
    /// It is answered: a redirect, or the answer to a preflight.
    Answer(Answer),
    /// It is refused.
    Refuse(Refusal),
}

/// An answer without a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
}

/// A port of a service that a request, or a copy of it, goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The service.
    pub service: ServiceName,
    /// Its port.
    pub port: u16,
}

/// Says at which backend of a rule a request's session is, by its place among them; `None` if it has none that goes on.
pub type Held<'h> = &'h mut dyn FnMut(&Chosen, &Sessions) -> Option<usize>;

/// How a request is sent to a backend. It keeps what it needs of the table.
#[derive(Debug, Clone)]
pub struct Forward {
    rule: Arc<CompiledRule>,
    backend: usize,
    /// Where it goes.
    pub to: Destination,
    /// The path in place of the request's, normalised and without a query; `None` if it stays.
    pub path: Option<String>,
    /// The host in place of the request's; `None` if it stays.
    pub host: Option<HeaderValue>,
    /// Where copies of it go.
    pub mirrors: Vec<Destination>,
    cors: Option<HeaderMap>,
}

impl Chosen {
    /// The route.
    pub fn route(&self) -> &RouteName {
        &self.rule.route
    }

    /// The rule's name, if it has one.
    pub fn rule_name(&self) -> Option<&Name> {
        self.rule.name.as_ref()
    }

    /// The rule's place in its route, from 0.
    pub fn rule_index(&self) -> usize {
        self.rule.index
    }

    /// The place of the match in its rule, from 0.
    pub fn match_index(&self) -> usize {
        self.matched
    }

    /// How its sessions stay at one endpoint.
    pub fn sessions(&self) -> Option<&Sessions> {
        self.rule.session.as_ref()
    }

    /// How many requests may follow its route.
    pub fn rate(&self) -> Option<RateLimit> {
        self.rule.rate
    }

    /// Its backends in order, each with its weight.
    pub fn backends(&self) -> impl Iterator<Item = (u32, &BackendTarget)> {
        self.rule.backends.iter().map(|backend| (backend.weight, &backend.target))
    }

    /// How a log, a refusal and `leno explain` name the rule.
    pub fn label(&self) -> &Name {
        self.rule.label()
    }
}

impl Forward {
    /// Changes the headers of the request: first as the rule says, then as the backend's filters say.
    pub fn change_request(&self, headers: &mut HeaderMap) {
        for changes in self.steps().into_iter().flat_map(|steps| &steps.request) {
            changes.apply(headers);
        }
    }

    /// Changes the headers of the response: first as the backend's filters say, then as the rule says.
    pub fn change_response(&self, headers: &mut HeaderMap) {
        let [rule, backend] = self.steps();
        for changes in backend.response.iter().chain(&rule.response) {
            changes.apply(headers);
        }
        if let Some(answer) = &self.cors {
            Origins::apply(answer, headers);
        }
    }

    /// How long the request may take.
    pub fn timeouts(&self) -> Timeouts {
        self.rule.timeouts
    }

    /// When it is sent again; `None` for the mesh's own rule.
    pub fn retry(&self) -> Option<&Retry> {
        self.rule.retry.as_ref()
    }

    fn steps(&self) -> [&Steps; 2] {
        [&self.rule.steps, &self.rule.backends[self.backend].steps]
    }
}

impl Table {
    /// Decides what becomes of `request`. `random` chooses among the backends by weight, and which requests are mirrored.
    pub fn decide(&self, request: &Request<'_>, random: &mut dyn FnMut() -> u64) -> Decision {
        self.decide_within(request, random, &mut |_, _| None)
    }

    /// As [`Self::decide`], for a request that may belong to a session: where the rule keeps sessions, `held` says at which of
    /// its backends the session is, and weights don't count then (GEP-1619).
    pub fn decide_within(&self, request: &Request<'_>, random: &mut dyn FnMut() -> u64, held: Held<'_>) -> Decision {
        let nobody = |outcome| Decision { chosen: None, outcome };
        let Some(group) = self.group(request.source_namespace) else { return nobody(Outcome::Unrouted) };
        if let Some((route, problem)) = &group.not_understood {
            let refusal = Refusal::NotUnderstood { route: route.clone(), problem: problem.clone() };
            return nobody(Outcome::Refuse(refusal));
        }
        let Some(found) = group.find(request) else {
            return nobody(Outcome::Refuse(Refusal::NoRule(group.routes.clone())));
        };
        let rule = found.entry.rule.clone();
        let prefix = request.path.get(..found.prefix).unwrap_or_default();
        let chosen = Chosen { rule, matched: found.entry.matched.index };
        let outcome = self.outcome(&chosen, request, prefix, random, held).unwrap_or_else(Outcome::Refuse);
        Decision { chosen: Some(chosen), outcome }
    }

    fn outcome(
        &self,
        chosen: &Chosen,
        request: &Request<'_>,
        prefix: &str,
        random: &mut dyn FnMut() -> u64,
        held: Held<'_>,
    ) -> Result<Outcome, Refusal> {
        let rule = &chosen.rule;
        let rewritten = |error: super::path::PathError| Refusal::Rewritten {
            rule: rule.label().to_string(),
            problem: error.to_string(),
        };
        if let Some(headers) = rule.cors.as_ref().and_then(|cors| cors.preflight(request)) {
            return Ok(Outcome::Answer(Answer { status: 204, headers }));
        }
        let cors = rule.cors.as_ref().and_then(|cors| cors.of_response(request));
        if let Some(redirect) = &rule.redirect {
            let location = redirect.location(request, prefix, self.port).map_err(rewritten)?;
            let location = HeaderValue::try_from(location)
                .map_err(|error| Refusal::Rewritten { rule: rule.label().to_string(), problem: error.to_string() })?;
            let mut headers = cors.unwrap_or_default();
            headers.insert(header::LOCATION, location);
            return Ok(Outcome::Answer(Answer { status: redirect.status, headers }));
        }
        let held = rule.session.as_ref().and_then(|sessions| rule.at(held(chosen, sessions)?));
        let (backend, to) = match held {
            Some(held) => held,
            None => backend(rule, random)?,
        };
        let path = rule.rewrite.as_ref().and_then(|rewrite| rewrite.path(request.path, prefix));
        let mut mirrors = Vec::new();
        for mirror in [&rule.steps, &rule.backends[backend].steps].into_iter().flat_map(|steps| &steps.mirrors) {
            let share = (u128::from(random()) * u128::from(mirror.denominator)) >> 64;
            if share < u128::from(mirror.numerator)
                && let BackendTarget::Service { service, port } = &mirror.target
            {
                mirrors.push(Destination { service: service.clone(), port: *port });
            }
        }
        Ok(Outcome::Forward(Box::new(Forward {
            backend,
            to,
            path: path.transpose().map_err(rewritten)?,
            host: rule.rewrite.as_ref().and_then(|rewrite| rewrite.host.clone()),
            mirrors,
            cors,
            rule: rule.clone(),
        })))
    }
}

impl CompiledRule {
    /// The backend at this place, if requests can go there.
    fn at(&self, place: usize) -> Option<(usize, Destination)> {
        match &self.backends.get(place)?.target {
            BackendTarget::Service { service, port } => {
                Some((place, Destination { service: service.clone(), port: *port }))
            }
            BackendTarget::Invalid(_) => None,
        }
    }
}

/// Chooses a backend by weight.
fn backend(rule: &CompiledRule, random: &mut dyn FnMut() -> u64) -> Result<(usize, Destination), Refusal> {
    // With one backend nothing is chosen, and no random number is used up.
    let mut share =
        if rule.backends.len() > 1 { ((u128::from(random()) * u128::from(rule.total_weight)) >> 64) as u64 } else { 0 };
    for (index, backend) in rule.backends.iter().enumerate() {
        if share < u64::from(backend.weight) {
            return match &backend.target {
                BackendTarget::Service { service, port } => {
                    Ok((index, Destination { service: service.clone(), port: *port }))
                }
                BackendTarget::Invalid(problem) => {
                    Err(Refusal::Backend { rule: rule.label().to_string(), problem: problem.clone() })
                }
            };
        }
        share -= u64::from(backend.weight);
    }
    Err(Refusal::NoBackend(rule.label().to_string()))
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
