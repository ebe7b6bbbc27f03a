//! A request as routes and policies see it.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};

/// A request. Its path and host are in their one form: see [`path`](super::path) and [`host`](super::host).
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Method.
    pub method: &'a str,
    /// Host without its port, normalised.
    pub host: &'a str,
    /// The port that the request names beside the host.
    pub host_port: Option<u16>,
    /// Path without its query, normalised; `*` for `OPTIONS *`.
    pub path: &'a str,
    /// Query as it came, without the `?`.
    pub query: Option<&'a str>,
    /// Headers as they came.
    pub headers: &'a HeaderMap,
    /// Namespace of the caller, from the identity that it proved; `None` if it proved none.
    pub source_namespace: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// The value of a header; several are joined by commas (RFC 9110, §5.3). `None` if it is absent.
    pub fn header(&self, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
        if *name == http::header::HOST {
            return Some(Cow::Borrowed(self.host.as_bytes()));
        }
        let mut values = self.headers.get_all(name).iter();
        let first = values.next()?;
        let mut value = Cow::Borrowed(first.as_bytes());
        for next in values {
            let joined = value.to_mut();
            joined.push(b',');
            joined.extend_from_slice(next.as_bytes());
        }
        Some(value)
    }

    /// The first value of a query parameter, decoded; `None` if it is absent.
    pub fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        let query = self.query?;
        form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The value of the request's `Origin` header, if it has one.
    pub(super) fn origin(&self) -> Option<&'a HeaderValue> {
        self.headers.get(http::header::ORIGIN)
    }
}
