//! How are names asked for and answered? DNS messages (RFC 1035) as far as a mesh needs them, for the pods' server in a node's
//! proxy and for a cluster's own, and the loops of such a server. What the answer *is* comes from elsewhere, and so does how long
//! a server lives and what keeps its time.

mod message;
mod server;
mod stream;

pub use hickory_proto::op::ResponseCode;
pub use hickory_proto::rr::RecordType;
pub use message::{Answer, Parsed, Question, answers, parse};
pub use server::{Owner, Transport, serve_tcp, serve_udp};
pub use stream::{framed, read};
