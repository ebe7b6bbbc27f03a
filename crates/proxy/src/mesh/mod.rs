//! The proxy's knowledge of the mesh: the current snapshot, and the feed that updates it.

mod departed;
mod endpoint_policies;
mod of_requests;
mod overlaps;
mod recent;
mod request_defaults;
mod request_policies;
mod routes;
mod state;

pub use departed::MOMENT;
pub use recent::Changed;
pub use state::{Changes, Feed, MeshState};
