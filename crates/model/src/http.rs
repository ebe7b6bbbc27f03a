//! What users wrote about HTTP requests to a service: routes and policies, in the form that a waypoint follows.
//!
//! One [`Route`] stands for one HTTPRoute or GRPCRoute object of the Gateway API, with the names resolved: services
//! instead of references, and matches instead of gRPC methods. What an empty list means and which match wins is part of
//! that specification and decided in the `policy` crate.

mod authorization;
mod authorizer;
mod backend_target;
mod endpoints;
mod filter;
mod matching;
mod request_defaults;
mod route;
mod token;

pub use authorization::{Attribute, AttributeTest, Policy, PolicyAction, PolicyClause, PolicyRule, PolicyTarget};
pub use authorizer::{
    AllowedBy, AnswerHeader, Authorizer, AuthorizerAnswer, CheckedBody, DeniedBy, HeaderMeets, HttpCheck,
};
pub use backend_target::BackendTarget;
pub use endpoints::{Balancing, Ejection, EndpointPolicy, EndpointRules, HashOf, RetryBudget};
pub use filter::{Cors, Filter, HeaderChanges, Mirror, PathChange, Redirect, Rewrite};
pub use matching::{Match, PathMatch, ValueMatch, ValueTest};
pub use request_defaults::{Abort, Fault, RequestDefaults};
pub use route::{
    Backend, Parent, RateLimit, Retry, Route, RouteKind, RouteName, Rule, SessionPersistence, SessionToken, Timeouts,
};
pub use token::{TokenKeys, TokenRule};
