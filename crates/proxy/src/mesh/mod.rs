//! What a proxy knows of the mesh: the current snapshot, and the feed that keeps it.

mod departed;
mod state;

pub use departed::MOMENT;
pub use state::{Changes, Feed, MeshState};
