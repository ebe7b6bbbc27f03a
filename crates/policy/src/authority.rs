//! The `:authority` of a CONNECT request (RFC 9113 §8.5): host and port, and nothing else.
//!
//! It decides which address a peer reaches, so it is read strictly. If two readers disagreed about a sloppy form, one
//! could let through what the other refused.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where a peer wants to be connected to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Authority {
    /// An address. IPv4-mapped IPv6 is converted to IPv4.
    Address(SocketAddr),
    /// A host name in lower case.
    Host {
        /// The name, without a trailing dot.
        host: String,
        /// The port.
        port: u16,
    },
}

/// What is wrong with an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AuthorityError {
    /// There is no authority.
    #[error("it is missing")]
    Missing,
    /// Longer than a host name and port can be.
    #[error("it is too long")]
    TooLong,
    /// `user@host`.
    #[error("user information is not allowed")]
    UserInfo,
    /// No `:port`.
    #[error("the port is missing")]
    NoPort,
    /// Not a decimal number from 1 to 65535 without sign or leading zeros.
    #[error("the port is not a number from 1 to 65535")]
    BadPort,
    /// Brackets without an IPv6 address in them, or an IPv6 address without brackets.
    #[error("the IPv6 address is malformed or lacks its brackets")]
    BadIpv6,
    /// Neither an IPv4 address nor a host name.
    #[error("the host is neither an IP address nor a host name")]
    BadHost,
}

/// Longest host name, bytes (RFC 1035 §2.3.4, in text form).
const MAX_HOST: usize = 253;
/// Longest label of a host name, bytes.
const MAX_LABEL: usize = 63;

/// Reads `IPv4:port`, `[IPv6]:port` or `host:port`.
///
/// # Errors
/// For anything else. It never panics, whatever the input.
pub fn parse_authority(text: &str) -> Result<Authority, AuthorityError> {
    if text.is_empty() {
        return Err(AuthorityError::Missing);
    }
    if text.len() > MAX_HOST + ":65535".len() {
        return Err(AuthorityError::TooLong);
    }
    if text.contains('@') {
        return Err(AuthorityError::UserInfo);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or(AuthorityError::BadIpv6)?;
        let port = port(rest.strip_prefix(':').ok_or(AuthorityError::NoPort)?)?;
        // A zone (`%eth0`) has a meaning only on the sender's machine, so the parser refuses it.
        let address: Ipv6Addr = address.parse().map_err(|_| AuthorityError::BadIpv6)?;
        return Ok(Authority::Address(SocketAddr::new(IpAddr::V6(address).to_canonical(), port)));
    }
    let (host, digits) = text.rsplit_once(':').ok_or(AuthorityError::NoPort)?;
    if host.contains(':') {
        return Err(AuthorityError::BadIpv6);
    }
    let port = port(digits)?;
    if let Ok(address) = host.parse() {
        return Ok(Authority::Address(SocketAddr::new(IpAddr::V4(address), port)));
    }
    if is_host_name(host) {
        return Ok(Authority::Host { host: host.to_ascii_lowercase(), port });
    }
    Err(AuthorityError::BadHost)
}

fn port(digits: &str) -> Result<u16, AuthorityError> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|port| plain && *port != 0).ok_or(AuthorityError::BadPort)
}

fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= MAX_LABEL
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    // Many resolvers take `127.1`, `2130706433` and `0x7f000001` for addresses; strict parsers don't. A top-level
    // domain is never a number (RFC 3696 §2).
    let last = host.rsplit('.').next().unwrap_or(host);
    let numeric = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    host.len() <= MAX_HOST && host.split('.').all(label) && !numeric
}

impl Authority {
    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Host { port, .. } => *port,
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Host { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
