//! Who takes what the client hears.

use bytes::Bytes;
use leno_model::Name;

/// One change to what the mesh is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// The resource is new or changed.
    Upsert {
        /// Its name.
        name: Name,
        /// The encoded message.
        body: Bytes,
    },
    /// The resource is new or changed, in a way that leaves nothing to read. What was held under
    /// its name no longer holds. To be rejected with this reason.
    Unreadable {
        /// Its name.
        name: Name,
        /// What is wrong with it.
        reason: String,
    },
    /// The resource is gone. It may be one that was never held.
    Remove {
        /// Its name.
        name: Name,
    },
}

/// A resource the handler can't take. The others of the response count; the server is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The resource's name.
    pub name: Name,
    /// Why, for the control plane's log.
    pub reason: String,
}

/// Takes updates. Called on the client's task: hand heavy work elsewhere.
pub trait Handler: Send {
    /// Applies one response, removals before upserts. What is returned as rejected was not
    /// understood; the server will send it again, or its removal.
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection>;

    /// The first response of a type was applied, empty or not: what there is is now known.
    fn synced(&mut self, type_url: &str) {
        let _ = type_url;
    }
}
