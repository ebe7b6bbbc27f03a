//! Bodies of requests.
//!
//! ```text
//!  client          as a client sends it: passed on as it comes, or held until an authoriser has seen it
//!  upstream        on its way to an endpoint, and copies of it
//!  grpc_messages   how many gRPC messages it has
//! ```

pub(crate) mod client;
pub(crate) mod grpc_messages;
pub(crate) mod upstream;
