//! SPIFFE identity of a workload.

use std::fmt;
use std::str::FromStr;

use crate::Name;

/// Trust domain of a mesh that names none.
pub const DEFAULT_TRUST_DOMAIN: &str = "cluster.local";

/// A SPIFFE id of the one shape the mesh knows:
/// `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
///
/// Compared byte for byte: no case folding, no normalisation (CVE-2025-66220 and its kin came
/// from doing more than that).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    trust_domain: Name,
    namespace: Name,
    service_account: Name,
}

/// Why a string is not a workload's SPIFFE id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a workload identity; expected spiffe://<trust domain>/ns/<namespace>/sa/<service account>")]
pub struct IdentityError(String);

impl Identity {
    /// The identity of `service_account` in `namespace`.
    ///
    /// # Errors
    /// If a part is empty or holds a byte that would change the shape of the URI.
    pub fn new(
        trust_domain: impl Into<Name>,
        namespace: impl Into<Name>,
        service_account: impl Into<Name>,
    ) -> Result<Self, IdentityError> {
        let identity = Self {
            trust_domain: trust_domain.into(),
            namespace: namespace.into(),
            service_account: service_account.into(),
        };
        let sound = [&identity.trust_domain, &identity.namespace, &identity.service_account]
            .into_iter()
            .all(|part| is_path_segment(part));
        if sound { Ok(identity) } else { Err(IdentityError(identity.to_string())) }
    }

    /// The trust domain: who vouches for this identity.
    pub fn trust_domain(&self) -> &Name {
        &self.trust_domain
    }

    /// The Kubernetes namespace.
    pub fn namespace(&self) -> &Name {
        &self.namespace
    }

    /// The Kubernetes service account.
    pub fn service_account(&self) -> &Name {
        &self.service_account
    }

    /// The id without `spiffe://`: the form policies and metric labels compare.
    pub fn principal(&self) -> String {
        format!("{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

/// SPIFFE allows letters, digits, `.`, `-` and `_` in a segment (SPIFFE-ID §2.2).
fn is_path_segment(part: &str) -> bool {
    !part.is_empty()
        && part != "."
        && part != ".."
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(uri: &str) -> Result<Self, Self::Err> {
        let bad = || IdentityError(uri.to_owned());
        let rest = uri.strip_prefix("spiffe://").ok_or_else(bad)?;
        let mut parts = rest.split('/');
        let (Some(trust_domain), Some("ns"), Some(namespace), Some("sa"), Some(service_account), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(bad());
        };
        Self::new(trust_domain, namespace, service_account).map_err(|_| bad())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/ns/{}/sa/{}", self.trust_domain, self.namespace, self.service_account)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for uri in ["spiffe://cluster.local/ns/default/sa/default", "spiffe://a.b/ns/x-1/sa/my.account_2"] {
            assert_eq!(uri.parse::<Identity>().map(|id| id.to_string()), Ok(uri.to_owned()));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for uri in [
            "",
            "spiffe://",
            "spiffe://td",
            "spiffe://td/ns/a/sa/",
            "spiffe://td/ns//sa/b",
            "spiffe:///ns/a/sa/b",
            "spiffe://td/ns/a/sa/b/",
            "spiffe://td/ns/a/sa/b/c",
            "spiffe://td/sa/a/ns/b",
            "SPIFFE://td/ns/a/sa/b",
            "https://td/ns/a/sa/b",
            "spiffe://td/ns/a/sa/b\0",
            "spiffe://td/ns/a/sa/b c",
            "spiffe://td/ns/../sa/b",
            "spiffe://td/ns/ä/sa/b",
        ] {
            assert!(uri.parse::<Identity>().is_err(), "{uri:?}");
        }
    }

    #[test]
    fn principal_has_no_scheme() {
        let id = Identity::new("td", "a", "b").expect("valid");
        assert_eq!(id.principal(), "td/ns/a/sa/b");
    }

    #[test]
    fn its_parts_are_those_of_the_uri() {
        let id: Identity = "spiffe://td/ns/a/sa/b".parse().expect("valid");
        assert_eq!([&**id.trust_domain(), &**id.namespace(), &**id.service_account()], ["td", "a", "b"]);
    }
}
