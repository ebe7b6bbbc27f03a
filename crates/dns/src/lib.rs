//! How are names asked for and answered? DNS messages (RFC 1035) as far as a mesh needs them, and a server's loops, for the
//! pods' server in a node's proxy and for a cluster's own server. The server's [`Owner`] decides the answers, how long the
//! server lives, and who keeps its timers.

mod message;
mod server;
mod stream;

pub use hickory_proto::op::ResponseCode;
pub use hickory_proto::rr::RecordType;
pub use message::{Answer, Parsed, Question, answers, parse};
pub use server::{Owner, Transport, serve_tcp, serve_udp};
pub use stream::{framed, read};
