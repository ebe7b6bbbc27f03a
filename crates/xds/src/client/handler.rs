//! The receiver of what the client is sent.

use bytes::Bytes;
use leno_model::Name;

/// One change of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// The resource is new or changed.
    Upsert {
        /// Its name.
        name: Name,
        /// The encoded message.
        body: Bytes,
    },
    /// The resource is new or changed, but can't be decoded at all. The earlier version under its name is no longer
    /// valid. The handler rejects it with this reason.
    Unreadable {
        /// Its name.
        name: Name,
        /// What is wrong with it.
        reason: String,
    },
    /// The resource is gone. The handler may never have held it.
    Remove {
        /// Its name.
        name: Name,
    },
}

/// A resource that the handler refuses. The others of the response are applied; the server is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The resource's name.
    pub name: Name,
    /// Why, for the control plane's log.
    pub reason: String,
}

/// Takes updates. It is called on the client's task, so heavy work belongs on another one.
pub trait Handler: Send {
    /// Applies one response, removals before upserts. Returns the resources that it could not understand. The server
    /// will send these again, or their removal.
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection>;

    /// The first response of a type was applied, even if it was empty. From now on everything of that type is known.
    fn synced(&mut self, type_url: &str) {
        let _ = type_url;
    }
}
