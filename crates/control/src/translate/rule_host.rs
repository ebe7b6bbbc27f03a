//! The hosts that a DestinationRule is for.

use leno_objects::DestinationRule;

use super::Options;

/// The hosts that a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Exact(String),
    /// The end of host names, with its point.
    Ending(String),
}

impl Host {
    /// What a rule says.
    pub(super) fn of(options: &Options, rule: &DestinationRule) -> Self {
        let host = rule.spec.host.to_ascii_lowercase();
        if let Some(ending) = host.strip_prefix('*') {
            return Self::Ending(ending.to_owned());
        }
        if host.contains('.') {
            return Self::Exact(host);
        }
        Self::Exact(format!("{host}.{}.svc.{}", rule.metadata.namespace, options.cluster_domain))
    }

    /// Whether it is one of its hosts.
    pub(super) fn covers(&self, hostname: &str) -> bool {
        match self {
            Self::Exact(host) => host == hostname,
            Self::Ending(ending) => hostname.ends_with(ending.as_str()),
        }
    }

    /// How much it says: all of the name, or so many characters of its end.
    pub(super) fn strength(&self) -> (bool, usize) {
        match self {
            Self::Exact(host) => (true, host.len()),
            Self::Ending(ending) => (false, ending.len()),
        }
    }
}
