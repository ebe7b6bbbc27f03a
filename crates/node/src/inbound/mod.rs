//! Connections to a pod: HBONE from peers, and plaintext from outside the mesh.

mod admit;
pub(crate) mod plaintext;
pub(crate) mod tunnel;
