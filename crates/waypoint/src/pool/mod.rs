//! HTTP connections to endpoints, kept for the next request.
//!
//! ```text
//!  http_pool   the connections, shared by the requests of a thread
//!  stream      what they are made of: a stream of a tunnel, or TCP
//! ```

mod http_pool;
pub(crate) mod stream;

pub(crate) use http_pool::*;
