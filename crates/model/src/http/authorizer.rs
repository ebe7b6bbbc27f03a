//! External authorisers: whom a policy with action CUSTOM has asked, and what they answer.

use std::time::Duration;

use crate::Name;

/// Whom a policy has asked: an `envoyExtAuthzGrpc` or `envoyExtAuthzHttp` provider of Istio's MeshConfig.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authorizer {
    /// The provider's name.
    pub provider: Name,
    /// The namespace of its service; empty if the host name alone says which one.
    pub namespace: Name,
    /// The host name of its service.
    pub hostname: Name,
    /// The port of its service.
    pub port: u16,
    /// How long one answer may take.
    pub timeout: Duration,
    /// Whether requests pass while it gives no answer.
    pub fail_open: bool,
    /// The status of what does not pass for want of an answer.
    pub status_on_error: u16,
    /// How it is told of a request's body; `None` if it is not.
    pub body: Option<CheckedBody>,
    /// How it is asked over HTTP; `None` if it is asked over gRPC.
    pub http: Option<Box<HttpCheck>>,
}

/// How an authoriser is asked over HTTP, and which headers of its answer count. Each header is a name in lower case, `x*` or
/// `*x`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HttpCheck {
    /// What stands before the path of each question. Empty, or begins with `/`.
    pub path_prefix: Name,
    /// Headers of requests that it is told.
    pub request_headers: Vec<Name>,
    /// Headers that each question has, with their values.
    pub added: Vec<(Name, Name)>,
    /// Headers of an answer that allows, for the request.
    pub to_upstream: Vec<Name>,
    /// Headers of an answer that denies, for the client. None stands for all.
    pub to_client_denied: Vec<Name>,
    /// Headers of an answer that allows, for the client's response.
    pub to_client_allowed: Vec<Name>,
}

/// How an authoriser is told of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CheckedBody {
    /// The most bytes that it is told.
    pub most: u32,
    /// Whether it is asked about the beginning of a body that is longer. Else such a request is refused.
    pub partial: bool,
    /// Whether it is told the bytes as they are, and not as a text.
    pub raw: bool,
}

/// What an authoriser answers about a request. What it says of headers is not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizerAnswer {
    /// The request may pass.
    Allowed(AllowedBy),
    /// It may not.
    Denied(DeniedBy),
}

/// What changes on a request's way if it may pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedBy {
    /// Headers of the request, in order.
    pub headers: Vec<AnswerHeader>,
    /// Headers that are taken out of the request before.
    pub remove: Vec<String>,
    /// Headers of the response.
    pub response_headers: Vec<AnswerHeader>,
    /// Whether its query is to change, too.
    pub changes_query: bool,
}

/// What a client gets whose request may not pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeniedBy {
    /// The gRPC or HTTP status that says so. Not 0.
    pub code: i32,
    /// What is said of it, for the log.
    pub message: String,
    /// The HTTP status, if one is given.
    pub status: Option<i32>,
    /// Headers of the response.
    pub headers: Vec<AnswerHeader>,
    /// Its body.
    pub body: Vec<u8>,
}

/// A header that an authoriser wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Vec<u8>,
    /// How it meets one of the same name.
    pub how: HeaderMeets,
}

/// How a header meets one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderMeets {
    /// It takes its place.
    Overwrite,
    /// It comes after it.
    Append,
    /// It gives way.
    OnlyIfAbsent,
    /// It takes its place, and is left out if there is none.
    OnlyIfPresent,
}
