//! What does the mesh decide about an HTTP request? Its path and host in one form, the rule of a route that it follows, and
//! what becomes of it, and whether policies let it pass: pure functions over [`leno_model::http`].

pub mod host;
pub mod path;
pub mod rate;

mod attribute_test;
mod authentication;
pub mod authorizer;
mod bucket;
mod changes;
mod conditions;
mod cors;
mod decision;
mod error;
mod guard;
pub mod over_http;
mod path_pattern;
mod request;
mod rule;
mod session;
mod subject;
mod table;
mod target;
pub mod token;
mod tree;
mod unique_json;

pub use authentication::{Caller, Keys, Rewritten};
pub use changes::Changes;
pub use decision::{Answer, Chosen, Decision, Destination, Forward, Held, Outcome};
pub use error::{Refusal, RuleError};
pub use guard::{Denied, Guard, Judgement, Matched, Note, Says, mistakes};
pub use request::Request;
pub use rule::{CompiledRule, check};
pub use session::{Scope, Sessions, Token};
pub use subject::Subject;
pub use table::Table;

#[cfg(test)]
mod naive_tests;
