//! The marks by which a pod's rules and the proxy's sockets recognise each other.

/// The mark on the proxy's sockets, except those of [`crate::sockets::ListenOptions::for_programs`] and
/// [`crate::sockets::established`]. The pod's rules let marked packets pass and capture all others. Istio's value.
pub const PROXY_MARK: u32 = 0x539;

/// The mark on connections from the proxy to the application, and through it on the replies.
pub const REPLY_MARK: u32 = 0x111;
/// The bits of a mark that the mesh uses. Other programs may use the others.
pub const MARK_MASK: u32 = 0xfff;
