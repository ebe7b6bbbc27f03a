//! A request and its response: their heads, bodies and records.
//!
//! ```text
//!  client             the HTTP connection that it came by: whom that belongs to, and what applies to its requests
//!  head               what a request's head must be like, and what of it is passed on
//!  forwarded_headers  x-forwarded-client-cert, x-forwarded-proto, x-request-id; trace_context: W3C traceparent
//!  websocket          WebSockets that are asked for in HTTP/2 (RFC 8441)
//!  record             its access log line and metrics; open_requests: those that have not ended
//!  consent            what external authorisers have said of a request that may pass
//!  refusal            why no endpoint answers it; local_reply: what its client is told
//!  response_body      the way of a response's body; slow_reader: what waits for a client that does not read
//! ```

pub(crate) mod client;
pub(crate) mod consent;
#[cfg(test)]
mod footprint_tests;
pub(crate) mod forwarded_headers;
pub(crate) mod head;
mod local_reply;
pub(crate) mod open_requests;
pub(crate) mod record;
pub(crate) mod refusal;
pub(crate) mod response_body;
pub(crate) mod slow_reader;
pub(crate) mod trace_context;
pub(crate) mod websocket;
