//! Changes of headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::Name;
use leno_model::http::HeaderChanges;

use super::conditions::header_name;
use super::error::RuleError;

/// What a route must not change: what frames a message or is the mesh's own business on a connection.
const FIXED: [&str; 8] =
    ["connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

/// Changes of headers, compiled once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
}

impl Changes {
    pub(super) fn new(changes: &HeaderChanges) -> Result<Self, RuleError> {
        let pairs = |pairs: &[(Name, Name)]| {
            let pair = |(name, value): &(Name, Name)| {
                let bad = |_| RuleError::HeaderValue(name.clone());
                Ok((changeable(name)?, HeaderValue::from_str(value).map_err(bad)?))
            };
            pairs.iter().map(pair).collect::<Result<_, RuleError>>()
        };
        Ok(Self {
            remove: changes.remove.iter().map(changeable).collect::<Result<_, _>>()?,
            set: pairs(&changes.set)?,
            add: pairs(&changes.add)?,
        })
    }

    /// Changes `headers`: first it removes, then it sets, then it adds.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}

fn changeable(name: &Name) -> Result<HeaderName, RuleError> {
    let header = header_name(name)?;
    if FIXED.contains(&header.as_str()) { Err(RuleError::HeaderFixed(name.clone())) } else { Ok(header) }
}
