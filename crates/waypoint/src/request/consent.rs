//! What external authorisers have said of a request that may pass.

use std::sync::Arc;

use http::HeaderMap;
use leno_model::http::Authorizer;
use leno_policy::http::authorizer::Allowed;

/// Who has let a request pass, and on what terms.
#[derive(Default, Clone)]
pub(crate) struct Consent {
    /// The authorisers.
    pub(crate) by: Vec<Arc<Authorizer>>,
    /// What they want of its response.
    pub(crate) response: Vec<Allowed>,
    /// Those who gave no answer, and let it pass all the same (`failOpen`), in words.
    pub(crate) unanswered: Vec<String>,
}

impl Consent {
    /// With that of others, too.
    pub(crate) fn join(&mut self, other: Self) {
        self.by.extend(other.by);
        self.response.extend(other.response);
        self.unanswered.extend(other.unanswered);
    }

    /// Whether anything comes of it once the request has been sent.
    pub(crate) fn matters_later(&self) -> bool {
        !self.response.is_empty() || !self.unanswered.is_empty()
    }

    /// Changes the headers of the response.
    pub(crate) fn change_response(&self, headers: &mut HeaderMap) {
        for one in &self.response {
            one.change_response(headers);
        }
    }
}
