//! The processes that a subject's traffic goes through.

/// A process that carries a node's traffic.
pub(super) struct Carrier {
    pub node: String,
    pub pid: i32,
    pub restarts: u32,
}
