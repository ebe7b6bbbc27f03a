//! Changes of what a request is addressed to: rewrites and redirects.

use http::HeaderValue;
use leno_model::Name;
use leno_model::http::{PathChange, Redirect, Rewrite};

use super::conditions::normal;
use super::error::RuleError;
use super::host;
use super::path::{self, PathError};
use super::request::Request;

/// A new path.
#[derive(Debug, Clone)]
enum NewPath {
    Full(Name),
    /// Without a slash at its end.
    Prefix(Name),
}

impl NewPath {
    fn new(change: &PathChange) -> Result<Self, RuleError> {
        Ok(match change {
            PathChange::Full(value) => Self::Full(normal(value)?),
            PathChange::Prefix(value) if value.is_empty() => Self::Prefix("".into()),
            PathChange::Prefix(value) => Self::Prefix(normal(value)?.trim_end_matches('/').into()),
        })
    }

    /// The path in place of `path`. `prefix` is how much of it the match describes, without a slash at the end.
    fn of(&self, path: &str, prefix: &str) -> Result<String, PathError> {
        match self {
            Self::Full(new) => Ok((**new).to_owned()),
            Self::Prefix(new) => {
                let rest = path.get(prefix.len()..).unwrap_or_default();
                let whole = format!("{new}{rest}");
                let whole = if whole.is_empty() { "/" } else { &whole };
                // The parts are in order; what stands at the seam may not be.
                path::normalise(whole.as_bytes()).map(std::borrow::Cow::into_owned)
            }
        }
    }

    fn needs_prefix(&self) -> bool {
        matches!(self, Self::Prefix(_))
    }
}

/// A rewrite, compiled once.
#[derive(Debug, Clone)]
pub(super) struct NewTarget {
    pub(super) host: Option<HeaderValue>,
    path: Option<NewPath>,
}

impl NewTarget {
    pub(super) fn new(rewrite: &Rewrite) -> Result<Self, RuleError> {
        let host = rewrite.hostname.as_ref().map(|name| {
            let sound = host::normalise(name.as_bytes()).is_ok_and(|host| host.port.is_none());
            let bad = || RuleError::Host(name.clone());
            if sound { HeaderValue::from_str(name).map_err(|_| bad()) } else { Err(bad()) }
        });
        Ok(Self { host: host.transpose()?, path: rewrite.path.as_ref().map(NewPath::new).transpose()? })
    }

    pub(super) fn path(&self, path: &str, prefix: &str) -> Option<Result<String, PathError>> {
        self.path.as_ref().map(|new| new.of(path, prefix))
    }

    pub(super) fn needs_prefix(&self) -> bool {
        self.path.as_ref().is_some_and(NewPath::needs_prefix)
    }
}

/// A redirect, compiled once.
#[derive(Debug, Clone)]
pub(super) struct NewPlace {
    scheme: Option<Name>,
    host: Option<Name>,
    path: Option<NewPath>,
    port: Option<u16>,
    pub(super) status: u16,
}

impl NewPlace {
    pub(super) fn new(redirect: &Redirect) -> Result<Self, RuleError> {
        if ![301, 302, 303, 307, 308].contains(&redirect.status) {
            return Err(RuleError::Status(redirect.status));
        }
        if let Some(name) = &redirect.hostname
            && !host::normalise(name.as_bytes()).is_ok_and(|host| host.port.is_none())
        {
            return Err(RuleError::Host(name.clone()));
        }
        Ok(Self {
            scheme: redirect.scheme.clone(),
            host: redirect.hostname.clone(),
            path: redirect.path.as_ref().map(NewPath::new).transpose()?,
            port: redirect.port,
            status: redirect.status,
        })
    }

    pub(super) fn needs_prefix(&self) -> bool {
        self.path.as_ref().is_some_and(NewPath::needs_prefix)
    }

    /// The value of `Location`. `port` is the service's, on which the request came.
    pub(super) fn location(&self, request: &Request<'_>, prefix: &str, port: u16) -> Result<String, PathError> {
        let scheme = self.scheme.as_deref().unwrap_or("http");
        let of_scheme = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let port = match (self.port, &self.scheme) {
            (Some(port), _) => port,
            (None, Some(_)) => of_scheme.unwrap_or(port),
            (None, None) => port,
        };
        let mut location = format!("{scheme}://{}", self.host.as_deref().unwrap_or(request.host));
        if of_scheme != Some(port) {
            location.push_str(&format!(":{port}"));
        }
        match &self.path {
            Some(new) => location.push_str(&new.of(request.path, prefix)?),
            None => location.push_str(request.path),
        }
        if let Some(query) = request.query {
            location.push('?');
            location.push_str(query);
        }
        Ok(location)
    }
}
