//! External authorisers.
//!
//! ```text
//!  ask        which of them are asked about a request, and what becomes of their answers
//!  call       one call: gRPC, or HTTP (over_http)
//! ```

mod ask;
mod call;
mod over_http;

pub(crate) use ask::{ask, asks_somebody};
