//! Which requests a rule is for.

use crate::Name;

/// All conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Condition on the path.
    pub path: PathMatch,
    /// The method, exactly; `None` for any.
    pub method: Option<Name>,
    /// Conditions on headers. The name is in lower case.
    pub headers: Vec<ValueMatch>,
    /// Conditions on query parameters. The name is compared exactly.
    pub query: Vec<ValueMatch>,
}

impl Match {
    /// The match that every request passes.
    pub fn all() -> Self {
        Self { path: PathMatch::Prefix("/".into()), method: None, headers: Vec::new(), query: Vec::new() }
    }
}

/// A condition on the path without its query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathMatch {
    /// Equal.
    Exact(Name),
    /// Equal, or beginning with the value and a slash. A slash at the end of the value does not count.
    Prefix(Name),
    /// A regular expression that the whole path matches.
    Regex(Name),
}

/// A condition on the value of a header or a query parameter. What is absent matches no condition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ValueMatch {
    /// Name of the header or parameter.
    pub name: Name,
    /// The condition.
    pub value: ValueTest,
}

/// A test of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueTest {
    /// Equal.
    Exact(Name),
    /// A regular expression that the whole value matches.
    Regex(Name),
}
