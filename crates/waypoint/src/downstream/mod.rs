//! Clients: how their connections come in, and what each of them is for.
//!
//! ```text
//!  accept        peers' tunnels: who may open them, and how long they live
//!  plaintext     connections in the clear, for tests and measurements
//!  dispatch      one connection in a tunnel: its target, and which protocol it speaks
//!  http          a client's HTTP connection, served to its end
//! ```

pub(crate) mod accept;
pub(crate) mod dispatch;
pub(crate) mod http;
pub(crate) mod plaintext;
