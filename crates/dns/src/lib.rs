//! How are names asked for and answered? DNS messages (RFC 1035) as far as a mesh needs them, for the pods' server in a node's
//! proxy and for a cluster's own. What the answer *is* comes from elsewhere.

mod message;
mod stream;

pub use hickory_proto::op::ResponseCode;
pub use hickory_proto::rr::RecordType;
pub use message::{Answer, Parsed, Question, answers, parse};
pub use stream::{framed, read};
