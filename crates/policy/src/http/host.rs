//! The one normaliser of host names, for routes and policies.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// Why what a request is addressed to is refused, with status 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HostError {
    /// No host.
    #[error("the request names no host")]
    Missing,
    /// Several `Host` headers, or one that differs from the request's target.
    #[error("the request names several hosts; programs would take one or another, so it is refused")]
    Several,
    /// Not a host name or address with an optional port.
    #[error("the request's host is neither a name nor an address with an optional port")]
    Malformed,
}

impl HostError {
    /// A short name for a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Missing => "host_missing",
            Self::Several => "host_several",
            Self::Malformed => "host_malformed",
        }
    }

    /// Whether the same request may succeed later. It may not.
    pub fn is_retryable(self) -> bool {
        false
    }
}

/// What a request is addressed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host<'a> {
    /// The name in lower case without a dot at its end, or the address (IPv6 in brackets).
    pub name: Cow<'a, str>,
    /// The port, if the request names one.
    pub port: Option<u16>,
}

/// The host of a request. `target` is the authority of the request's target (`:authority`, or an absolute-form target);
/// `headers` are the values of all its `Host` headers.
///
/// # Errors
/// If there is not exactly one host; several that are equal count as several, because some programs join their values.
/// A target and a header may both name it if they are equal in lower case.
pub fn of_request<'a>(
    target: Option<&'a [u8]>,
    mut headers: impl Iterator<Item = &'a [u8]>,
) -> Result<Host<'a>, HostError> {
    let header = headers.next();
    if headers.next().is_some() {
        return Err(HostError::Several);
    }
    match (target, header) {
        (Some(target), Some(header)) if !target.eq_ignore_ascii_case(header) => Err(HostError::Several),
        (Some(host), _) | (None, Some(host)) => normalise(host),
        (None, None) => Err(HostError::Missing),
    }
}

/// The form of a host with an optional port that routes and policies compare. Most are in this form already and are
/// borrowed.
///
/// # Errors
/// If it is neither a name nor an address.
pub fn normalise(host: &[u8]) -> Result<Host<'_>, HostError> {
    let text = std::str::from_utf8(host).map_err(|_| HostError::Malformed)?;
    if text.is_empty() {
        return Err(HostError::Missing);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or(HostError::Malformed)?;
        let address: Ipv6Addr = address.parse().map_err(|_| HostError::Malformed)?;
        return Ok(Host { name: Cow::Owned(format!("[{address}]")), port: port(rest)? });
    }
    let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
    let port = port(rest)?;
    let name = name.strip_suffix('.').unwrap_or(name);
    let sound =
        |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if name.len() > 253 || !name.split('.').all(sound) {
        return Err(HostError::Malformed);
    }
    let upper = name.bytes().any(|byte| byte.is_ascii_uppercase());
    Ok(Host { name: if upper { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }, port })
}

/// The port that `:80` stands for; an empty text stands for none.
fn port(text: &str) -> Result<Option<u16>, HostError> {
    let Some(digits) = text.strip_prefix(':') else {
        return if text.is_empty() { Ok(None) } else { Err(HostError::Malformed) };
    };
    // Without the check, `+80` would be a number.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HostError::Malformed);
    }
    digits.parse().map(Some).map_err(|_| HostError::Malformed)
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
