//! What makes a route impossible to follow.

use leno_model::Name;
use leno_model::http::RouteName;

/// A value in a route that cannot be followed. A control plane refuses such a route, and a proxy that gets one all the
/// same refuses the requests it is for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A regular expression.
    #[error("{value:?} is not a regular expression of the kind that is supported (RE2's syntax): {problem}")]
    Regex {
        /// The expression.
        value: Name,
        /// What is wrong.
        problem: String,
    },
    /// A header's name.
    #[error("{0:?} is not the name of a header")]
    HeaderName(Name),
    /// A header that a route must not change.
    #[error("the header {0:?} is not a route's to change: it decides where a request ends or goes")]
    HeaderFixed(Name),
    /// A header's value.
    #[error("the value of the header {0:?} has a character that no header may have")]
    HeaderValue(Name),
    /// A path to compare or to put in a request's place.
    #[error("the path {value:?} would match or name no request: {problem}")]
    Path {
        /// The path.
        value: Name,
        /// What is wrong.
        problem: String,
    },
    /// A value that a policy compares an attribute with.
    #[error("{value:?} is not a value that {attribute} can have")]
    Value {
        /// The attribute.
        attribute: String,
        /// The value.
        value: Name,
    },
    /// A host name.
    #[error("{0:?} is not a host name")]
    Host(Name),
    /// A path's prefix is to be replaced where a match has none.
    #[error("ReplacePrefixMatch needs each match of the rule to be a PathPrefix")]
    NoPrefix,
    /// A redirect and a rewrite, or two of either, in one rule.
    #[error("a rule can't have both a redirect and a rewrite, or two of either")]
    TwoTargets,
    /// A backend's own filter that changes where a request goes.
    #[error("a backend can't have a {0} filter: by then the backend is chosen")]
    BackendFilter(&'static str),
    /// A redirect's status.
    #[error("a redirect can't have status {0}; it can have 301, 302, 303, 307 or 308")]
    Status(u16),
    /// How sessions are to stay at one endpoint.
    #[error("sessions can't be kept by {name:?}: {problem}")]
    Session {
        /// Name of the cookie or header.
        name: Name,
        /// What is wrong.
        problem: String,
    },
    /// An origin.
    #[error("{0:?} is not an origin: it has to be *, or a scheme and a host with an optional port")]
    Origin(Name),
}

impl RuleError {
    /// Whether the same route may be followed later. It may not.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

/// Why a request gets an answer of the mesh's own instead of one of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Status 404.
    #[error("no rule of the routes for this service matches the request ({})", List(.0))]
    NoRule(Vec<RouteName>),
    /// Status 500.
    #[error("{rule} sends this request to a backend that can't be used: {problem}")]
    Backend {
        /// The rule.
        rule: String,
        /// Why.
        problem: Name,
    },
    /// Status 500.
    #[error("{0} has no backend for this request: it names none, or all have weight 0")]
    NoBackend(String),
    /// Status 500.
    #[error(
        "{route} can't be followed by this proxy ({problem}), so the requests it is for are refused; if the control plane \
         is newer than this proxy, upgrade the proxy"
    )]
    NotUnderstood {
        /// The route.
        route: RouteName,
        /// What was not understood.
        problem: Name,
    },
    /// Status 400.
    #[error("the path that {rule} makes of the request's is not one: {problem}")]
    Rewritten {
        /// The rule.
        rule: String,
        /// What is wrong.
        problem: String,
    },
}

impl Refusal {
    /// The status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::NoRule(_) => 404,
            Self::Backend { .. } | Self::NoBackend(_) | Self::NotUnderstood { .. } => 500,
            Self::Rewritten { .. } => 400,
        }
    }

    /// A short name for a metric's label: Istio's response flag where it has one.
    pub fn flag(&self) -> &'static str {
        match self {
            Self::NoRule(_) => "NR",
            Self::Backend { .. } | Self::NoBackend(_) => "NC",
            Self::NotUnderstood { .. } => "NR",
            Self::Rewritten { .. } => "IH",
        }
    }

    /// Whether the same request may succeed later without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        false
    }
}

/// A message lists at most this many routes.
const LISTED: usize = 3;

struct List<'a>(&'a [RouteName]);

impl std::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, route) in self.0.iter().take(LISTED).enumerate() {
            write!(f, "{}{route}", if index == 0 { "" } else { ", " })?;
        }
        if self.0.len() > LISTED {
            write!(f, " and {} more", self.0.len() - LISTED)?;
        }
        Ok(())
    }
}
