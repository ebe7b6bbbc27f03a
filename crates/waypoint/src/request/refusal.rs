//! Why a request is not answered by an endpoint.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use http::StatusCode;
use leno_model::http::{RateLimit, RouteName};
use leno_policy::RouteError;
use leno_policy::http::authorizer;
use leno_policy::http::token::TokenError;
use leno_policy::http::{Denied, rate};

use crate::failure::Failure;

/// What went wrong with a request, in the two letters that Istio's access log and metrics have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flag {
    /// Nothing did.
    None,
    /// No route.
    NoRoute,
    /// No healthy endpoint.
    NoHealthyUpstream,
    /// The endpoint could not be connected to.
    UpstreamFailure,
    /// The endpoint closed the connection before it had answered.
    UpstreamTermination,
    /// The client went away.
    Downstream,
    /// The client broke the protocol.
    ProtocolError,
    /// The waypoint is ending.
    Stopped,
    /// A policy refuses it.
    Denied,
    /// An external authoriser refuses it, or gives no answer.
    External,
    /// It took too long.
    Timeout,
    /// A rule permits no more requests or connections.
    Overflow,
    /// Too many come in a time.
    RateLimited,
    /// There is no memory for it.
    Overload,
    /// It fails on purpose.
    Fault,
    /// What the routes say, in their own letters.
    Routes(&'static str),
}

impl Flag {
    /// Istio's letters.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::NoRoute => "NR",
            Self::NoHealthyUpstream => "UH",
            Self::UpstreamFailure => "UF",
            Self::UpstreamTermination => "UC",
            Self::Downstream => "DC",
            Self::ProtocolError => "DPE",
            Self::Stopped => "LR",
            Self::Denied => "DENY",
            Self::External => "UAEX",
            Self::Timeout => "UT",
            Self::Overflow => "UO",
            Self::RateLimited => "RL",
            Self::Overload => "OM",
            Self::Fault => "FI",
            Self::Routes(letters) => letters,
        }
    }
}

/// An answer that is the waypoint's own.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) flag: Flag,
    pub(crate) reason: Cow<'static, str>,
    /// What the client is told instead of the reason.
    pub(crate) told: Option<&'static str>,
    /// What an authoriser answers to the client, which goes before all of this.
    pub(crate) by: Option<Box<authorizer::Denied>>,
    /// The gRPC status, if it is not the one for `status`.
    pub(crate) grpc: Option<u16>,
    /// When it may come again.
    pub(crate) after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, flag: Flag, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, flag, reason: reason.into(), told: None, by: None, grpc: None, after: None }
    }

    /// For a request that a policy refuses. Its client learns no more than that.
    pub(crate) fn denied(denied: &dyn Display) -> Self {
        let told = Some(Denied::TEXT);
        Self { told, ..Self::new(StatusCode::FORBIDDEN, Flag::Denied, denied.to_string()) }
    }

    /// For a request whose token is not accepted.
    pub(crate) fn token(error: &TokenError) -> Self {
        let told = Some("the request's token (JWT) is not accepted");
        Self { told, ..Self::new(StatusCode::UNAUTHORIZED, Flag::Denied, format!("not authenticated: {error}")) }
    }

    /// For a request that there is no memory for.
    pub(crate) fn overload() -> Self {
        let reason = "the waypoint has as much memory as it may (LENO_MAX_MEMORY); it needs more, or replicas";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Flag::Overload, reason)
    }

    /// For a request that is one too many for the limit of its route.
    pub(crate) fn too_many(route: &RouteName, limit: RateLimit, wait: Duration) -> Self {
        let reason = format!("{}, as its annotation leno.mesh/rate-limit says ({route})", rate::said(limit));
        Self { after: Some(wait), ..Self::new(StatusCode::TOO_MANY_REQUESTS, Flag::RateLimited, reason) }
    }

    /// For a request that breaks the rules of HTTP.
    pub(crate) fn malformed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Flag::ProtocolError, reason)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let (status, flag) = match &failure {
            Failure::Route(error) => match **error {
                RouteError::NoHealthyEndpoint { .. } => (StatusCode::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream),
                RouteError::NoSuchPort { .. } => (StatusCode::NOT_FOUND, Flag::NoRoute),
                _ => (StatusCode::SERVICE_UNAVAILABLE, Flag::NoRoute),
            },
            Failure::NoRoute | Failure::Outside(_) => (StatusCode::SERVICE_UNAVAILABLE, Flag::NoRoute),
            Failure::Circle { .. } => (StatusCode::LOOP_DETECTED, Flag::NoRoute),
            Failure::Denied(denied) => return Self::denied(&**denied),
            Failure::Overflow(_) => (StatusCode::SERVICE_UNAVAILABLE, Flag::Overflow),
            Failure::Stopped => (StatusCode::SERVICE_UNAVAILABLE, Flag::Stopped),
            _ => (StatusCode::SERVICE_UNAVAILABLE, Flag::UpstreamFailure),
        };
        Self::new(status, flag, failure.to_string())
    }
}
