//! What is done to a request on its way.

use crate::Name;
use crate::http::BackendTarget;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// Changes headers of the request.
    RequestHeaders(HeaderChanges),
    /// Changes headers of the response.
    ResponseHeaders(HeaderChanges),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Changes what the request is addressed to.
    Rewrite(Rewrite),
    /// Sends a copy of the request somewhere else; its response is dropped.
    Mirror(Mirror),
    /// Answers for cross-origin requests of browsers.
    Cors(Cors),
}

/// Changes of headers: first those removed, then those set, then those added. Names are in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderChanges {
    /// Replaces all values.
    pub set: Vec<(Name, Name)>,
    /// Adds a value to those there are.
    pub add: Vec<(Name, Name)>,
    /// Removes all values.
    pub remove: Vec<Name>,
}

/// A change of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathChange {
    /// The new path.
    Full(Name),
    /// What takes the place of the prefix that matched.
    Prefix(Name),
}

/// A redirect. What is `None` stays as it is in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<Name>,
    /// Host name.
    pub hostname: Option<Name>,
    /// Path.
    pub path: Option<PathChange>,
    /// Port. If it is `None` and a scheme is given, the scheme's own port.
    pub port: Option<u16>,
    /// Status: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// A change of what the request is addressed to. What is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rewrite {
    /// Host name.
    pub hostname: Option<Name>,
    /// Path.
    pub path: Option<PathChange>,
}

/// A copy of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Where copies go.
    pub target: BackendTarget,
    /// Share of the requests that are copied: `numerator` of `denominator`.
    pub numerator: u32,
    /// See `numerator`; never 0.
    pub denominator: u32,
}

/// Answers for cross-origin requests (the Fetch standard's CORS protocol). `*` in a list stands for everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cors {
    /// Origins that may read responses: `scheme://host`, `scheme://host:port`, `scheme://*.host` or `*`.
    pub allow_origins: Vec<Name>,
    /// Whether requests may carry credentials.
    pub allow_credentials: bool,
    /// Methods.
    pub allow_methods: Vec<Name>,
    /// Headers of requests.
    pub allow_headers: Vec<Name>,
    /// Headers of responses that scripts may read.
    pub expose_headers: Vec<Name>,
    /// Seconds for which a browser may keep a preflight's answer.
    pub max_age: u32,
}
