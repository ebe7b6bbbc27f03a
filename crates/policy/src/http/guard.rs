//! May this request, or this connection, pass the waypoint?

use std::fmt;
use std::sync::Arc;

use leno_model::http::{Authorizer, Policy, PolicyAction, PolicyRule};
use leno_model::{Name, PolicyName};

use http::HeaderMap;

use super::attribute_test::Test;
use super::authentication::{self, Authentication, Caller, Keys, Rewritten};
use super::error::RuleError;
use super::request::Request;
use super::subject::Subject;
use super::token::TokenError;
use crate::Peer;

/// The policies of a service at its waypoint, compiled once.
#[derive(Debug, Default)]
pub struct Guard {
    /// Those that can't be enforced, with the reason. They let nobody in.
    not_understood: Vec<(PolicyName, Name)>,
    deny: Vec<Compiled>,
    allow: Vec<Compiled>,
    audit: Vec<Compiled>,
    custom: Vec<(Compiled, Arc<Authorizer>)>,
    tokens: Authentication,
}

#[derive(Debug)]
struct Compiled {
    id: PolicyName,
    dry_run: bool,
    rules: Vec<Rule>,
    denied_because: Option<Name>,
}

/// All clauses, each of which has alternatives, each of which is a list of tests.
#[derive(Debug)]
struct Rule(Vec<Vec<Vec<Test>>>);

/// A policy and its rule, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matched<'g> {
    /// The policy.
    pub policy: &'g PolicyName,
    /// The rule.
    pub rule: usize,
}

/// What is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement<'g> {
    /// The rule that allows it (`None` if no ALLOW policy applies), or why it is refused.
    pub verdict: Result<Option<Matched<'g>>, Denied>,
    /// What policies say that are only logged.
    pub notes: Vec<Note<'g>>,
}

/// What a policy says that is only logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'g> {
    /// The policy.
    pub policy: &'g PolicyName,
    /// What it says.
    pub says: Says,
}

/// What a policy says that is only logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// Its action is AUDIT, and it matches.
    Audit,
    /// A dry run that would ask an authoriser.
    WouldAsk,
    /// A dry run that would deny.
    WouldDeny,
    /// A dry run that would allow.
    WouldAllow,
    /// A dry run with action ALLOW that does not match, and no enforced one does either.
    WouldNotAllow,
}

/// Why a request or connection is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A DENY policy matches.
    #[error("denied by rule {} of policy {policy}{}: {peer}", rule + 1, Because(because.as_ref()))]
    Policy {
        /// The policy.
        policy: PolicyName,
        /// Its rule, counted from 0.
        rule: usize,
        /// Why it denies, if its object says something else.
        because: Option<Name>,
        /// Who is refused.
        peer: Peer,
    },
    /// ALLOW policies apply, and none matches.
    #[error("not allowed: no ALLOW policy matches ({}): {peer}", List(checked))]
    NoAllowMatched {
        /// The enforced ALLOW policies.
        checked: Vec<PolicyName>,
        /// Who is refused.
        peer: Peer,
    },
    /// A policy would have an authoriser asked, and nobody has asked it: what passes is no request, or can't be read as one.
    #[error("denied: policy {policy} has the authoriser {provider:?} asked about requests, and this is none: {peer}")]
    NotAsked {
        /// The policy.
        policy: PolicyName,
        /// The authoriser's name.
        provider: Name,
        /// Who is refused.
        peer: Peer,
    },
    /// A policy can't be enforced, so nobody gets in.
    #[error("denied: policy {policy} can't be enforced, so it lets nobody in ({reason}): {peer}")]
    NotUnderstood {
        /// The policy.
        policy: PolicyName,
        /// Why.
        reason: Name,
        /// Who is refused.
        peer: Peer,
    },
}

impl Denied {
    /// What Istio's users expect to read in the response's body. It names no policy: that is in the log.
    pub const TEXT: &'static str = "RBAC: access denied";

    /// Whether the same request may pass later without a change of policies. It may not.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

impl Guard {
    /// Compiles policies. One that can't be compiled lets nobody in.
    pub fn new<'p>(policies: impl IntoIterator<Item = &'p Policy>) -> Self {
        let mut guard = Self::default();
        for policy in policies {
            if policy.action == PolicyAction::Authenticate && policy.not_understood.is_none() {
                match token_rules(policy) {
                    Ok(rules) => guard.tokens.add(rules),
                    Err(error) => guard.not_understood.push((policy.id.clone(), error.to_string().into())),
                }
                continue;
            }
            let compiled = match &policy.not_understood {
                Some(reason) => Err(reason.clone()),
                None => Compiled::new(policy).map_err(|(_, error)| error.to_string().into()),
            };
            match (compiled, policy.action) {
                (Ok(compiled), PolicyAction::Custom) => match &policy.authorizer {
                    Some(authorizer) => guard.custom.push((compiled, authorizer.clone())),
                    None => {
                        let reason = "it does not say which authoriser is to be asked".into();
                        guard.not_understood.push((policy.id.clone(), reason));
                    }
                },
                (Ok(compiled), PolicyAction::Deny) => guard.deny.push(compiled),
                (Ok(compiled), PolicyAction::Allow) => guard.allow.push(compiled),
                (Ok(compiled), PolicyAction::Audit) => guard.audit.push(compiled),
                // It would refuse nobody either.
                (Err(_), PolicyAction::Audit) => {}
                (Ok(_), PolicyAction::Authenticate) => {}
                (Err(_), _) if policy.dry_run => {}
                (Err(reason), _) => guard.not_understood.push((policy.id.clone(), reason)),
            }
        }
        guard
    }

    /// Whether no policy applies.
    pub fn is_empty(&self) -> bool {
        let Self { not_understood, deny, allow, audit, custom, tokens } = self;
        let nobody = custom.is_empty() && deny.is_empty() && allow.is_empty() && audit.is_empty() && tokens.is_empty();
        not_understood.is_empty() && nobody
    }

    /// Whether no authoriser is ever asked.
    pub fn asks_nobody(&self) -> bool {
        self.custom.is_empty()
    }

    /// Whether a policy is about the server name that a client of TLS asks for, which has to be heard first.
    pub fn needs_server_name(&self) -> bool {
        let custom = self.custom.iter().map(|(policy, _)| policy);
        let mut all = self.deny.iter().chain(&self.allow).chain(&self.audit).chain(custom);
        all.any(Compiled::is_of_server_name)
    }

    /// The authorisers that have to let a request pass, each once, with the first policy that has it asked. What a policy says of
    /// tokens is taken to be so: they are verified later, because an authoriser may be who puts one in.
    pub fn to_ask<'g>(&'g self, subject: &Subject<'_>) -> Vec<(&'g PolicyName, &'g Arc<Authorizer>)> {
        let mut out: Vec<(&PolicyName, &Arc<Authorizer>)> = Vec::new();
        for (policy, authorizer) in &self.custom {
            if !policy.dry_run
                && !out.iter().any(|(_, known)| *known == authorizer)
                && policy.matching(subject, true).is_some()
            {
                out.push((&policy.id, authorizer));
            }
        }
        out
    }

    /// Whether no policy says whose tokens requests may carry.
    pub fn takes_no_tokens(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whose token a request carries, at `now` in seconds since the Unix epoch.
    ///
    /// # Errors
    /// If it carries one that is not accepted.
    pub fn authenticate(&self, request: &Request<'_>, keys: &dyn Keys, now: u64) -> Result<Caller, TokenError> {
        self.tokens.authenticate(request, keys, now)
    }

    /// Whether the query of a request has what may be a token.
    pub fn finds_tokens_in(&self, query: Option<&str>) -> bool {
        query.is_some_and(|query| self.tokens.looks_into(query))
    }

    /// Whether both take the same tokens from the same places, and make the same of them.
    pub fn takes_tokens_as(&self, other: &Self) -> bool {
        self.tokens.is_same(&other.tokens)
    }

    /// Changes the head of a request as the rules for tokens say. To be called before policies are asked: a header that tells of
    /// a token would be the client's until then.
    pub fn tell(&self, caller: &Caller, query: Option<&str>, headers: &mut HeaderMap) -> Rewritten {
        self.tokens.rewrite(caller, query, headers)
    }

    /// Decides in Istio's order: what an authoriser has to be asked about is refused unless it was; what a DENY policy matches is
    /// refused; without ALLOW policies everything else passes; else one of them has to match.
    ///
    /// A connection that is passed on unread has no request. What an ALLOW rule says of requests then never matches, and what
    /// a DENY rule says of them always does.
    pub fn judge(&self, subject: &Subject<'_>) -> Judgement<'_> {
        let mut notes = Vec::new();
        let audits = self.audit.iter().filter(|policy| policy.matching(subject, true).is_some());
        notes.extend(audits.map(|policy| Note { policy: &policy.id, says: Says::Audit }));
        let denied = |verdict, notes| Judgement { verdict: Err(verdict), notes };
        let peer = || Peer(subject.connection.source.cloned());
        for (policy, authorizer) in &self.custom {
            let counts = policy.dry_run || !subject.is_authorized();
            if !counts || policy.matching(subject, true).is_none() {
                continue;
            }
            if policy.dry_run {
                notes.push(Note { policy: &policy.id, says: Says::WouldAsk });
                continue;
            }
            let (policy, provider) = (policy.id.clone(), authorizer.provider.clone());
            return denied(Denied::NotAsked { policy, provider, peer: peer() }, notes);
        }
        let mut by = None;
        for policy in &self.deny {
            let Some(rule) = policy.matching(subject, true) else { continue };
            if policy.dry_run {
                notes.push(Note { policy: &policy.id, says: Says::WouldDeny });
            } else {
                by.get_or_insert((policy, rule));
            }
        }
        if let Some((policy, rule)) = by {
            let (policy, because) = (policy.id.clone(), policy.denied_because.clone());
            return denied(Denied::Policy { policy, rule, because, peer: peer() }, notes);
        }
        if let Some((policy, reason)) = self.not_understood.first() {
            let (policy, reason) = (policy.clone(), reason.clone());
            return denied(Denied::NotUnderstood { policy, reason, peer: peer() }, notes);
        }
        let mut allowed = None;
        let mut enforced = false;
        for policy in self.allow.iter().filter(|policy| !policy.dry_run) {
            enforced = true;
            if let Some(rule) = policy.matching(subject, false) {
                allowed = Some(Matched { policy: &policy.id, rule });
                break;
            }
        }
        for policy in self.allow.iter().filter(|policy| policy.dry_run) {
            match (policy.matching(subject, false), allowed) {
                (Some(_), _) => notes.push(Note { policy: &policy.id, says: Says::WouldAllow }),
                (None, None) => notes.push(Note { policy: &policy.id, says: Says::WouldNotAllow }),
                (None, Some(_)) => {}
            }
        }
        if enforced && allowed.is_none() {
            let all = self.allow.iter().filter(|policy| !policy.dry_run);
            return denied(
                Denied::NoAllowMatched { checked: all.map(|it| it.id.clone()).collect(), peer: peer() },
                notes,
            );
        }
        Judgement { verdict: Ok(allowed), notes }
    }

    /// Each policy with its action and the rule that matches, for those who ask why.
    pub fn examine<'g>(
        &'g self,
        subject: &'g Subject<'_>,
    ) -> impl Iterator<Item = (PolicyAction, &'g PolicyName, bool, Option<usize>)> {
        let of = |action, policies: &'g [Compiled], strict| {
            policies.iter().map(move |it| (action, &it.id, it.dry_run, it.matching(subject, strict)))
        };
        let custom = self.custom.iter();
        let custom = custom.map(|(it, _)| (PolicyAction::Custom, &it.id, it.dry_run, it.matching(subject, true)));
        let others = of(PolicyAction::Deny, &self.deny, true).chain(of(PolicyAction::Allow, &self.allow, false));
        of(PolicyAction::Audit, &self.audit, true).chain(custom).chain(others)
    }
}

impl Compiled {
    fn new(policy: &Policy) -> Result<Self, (usize, RuleError)> {
        let rule = |(index, rule): (usize, &PolicyRule)| Rule::new(rule).map_err(|error| (index, error));
        let rules = policy.rules.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        let denied_because = policy.denied_because.clone();
        Ok(Self { id: policy.id.clone(), dry_run: policy.dry_run, rules, denied_because })
    }

    fn is_of_server_name(&self) -> bool {
        let tests = self.rules.iter().flat_map(|rule| rule.0.iter().flatten().flatten());
        tests.into_iter().any(Test::is_of_server_name)
    }

    fn matching(&self, subject: &Subject<'_>, strict: bool) -> Option<usize> {
        self.rules.iter().position(|rule| rule.matches(subject, strict))
    }
}

impl Rule {
    fn new(rule: &PolicyRule) -> Result<Self, RuleError> {
        let mut clauses = Vec::new();
        for clause in &rule.clauses {
            let tests = |tests: &Vec<_>| tests.iter().map(Test::new).collect::<Result<Vec<_>, _>>();
            clauses.push(clause.alternatives.iter().map(tests).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Self(clauses))
    }

    fn matches(&self, subject: &Subject<'_>, strict: bool) -> bool {
        let passes = |tests: &Vec<Test>| tests.iter().all(|test| test.passes(subject, strict));
        // A list without alternatives says nothing that could be known.
        self.0.iter().all(|all| if all.is_empty() { strict } else { all.iter().any(passes) })
    }
}

/// What of a policy can't be enforced to the letter: the rules, counted from 0, and why.
pub fn mistakes(policy: &Policy) -> Vec<(usize, RuleError)> {
    let tokens = policy.tokens.iter().enumerate();
    let tokens = tokens.filter_map(|(index, rule)| Some((index, authentication::Compiled::new(rule).err()?)));
    let rules = policy.rules.iter().enumerate().flat_map(|(index, rule)| {
        let tests = rule.clauses.iter().flat_map(|clause| clause.alternatives.iter().flatten());
        tests.filter_map(move |test| Some((index, Test::new(test).err()?)))
    });
    tokens.chain(rules).collect()
}

fn token_rules(policy: &Policy) -> Result<Vec<authentication::Compiled>, RuleError> {
    policy.tokens.iter().map(authentication::Compiled::new).collect()
}

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Audit => "matches (AUDIT)",
            Self::WouldAsk => "would have its authoriser asked (dry run)",
            Self::WouldDeny => "would deny (dry run)",
            Self::WouldAllow => "would allow (dry run)",
            Self::WouldNotAllow => "would not allow (dry run)",
        })
    }
}

/// A message lists at most this many policies.
const LISTED: usize = 5;

struct Because<'a>(Option<&'a Name>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |because| write!(f, " ({because})"))
    }
}

struct List<'a>(&'a [PolicyName]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, policy) in self.0.iter().take(LISTED).enumerate() {
            write!(f, "{}{policy}", if index == 0 { "checked " } else { ", " })?;
        }
        if self.0.len() > LISTED {
            write!(f, " and {} more", self.0.len() - LISTED)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
