//! Connections to a pod: from peers by HBONE, and in the clear from outside the mesh.

mod admit;
pub(crate) mod plaintext;
pub(crate) mod tunnel;
