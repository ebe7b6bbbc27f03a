//! Requests: how they come, where they go, what is answered.
//!
//! ```text
//!  serve    a client's HTTP connection
//!  client   whom it belongs to, and what it may ask for
//!  head     what a request's head must be like, and what of it is passed on
//!  identity who calls, told to the program; request ids; trace  the trace that a request belongs to
//!  forward  one request and its response; send  to endpoints; mirror  copies of it
//!  routing  the route that it follows; session: the endpoint at which it stays
//!  exchange what is told of them; pending  those that are open
//!  fault    failures made on purpose
//!  upgrade  connections that cease to be HTTP; websocket  those that are asked for in HTTP/2
//!  refusal  why a request is not answered by an endpoint; answer: what its client is told
//!  body     bodies on their way to the client; unread  what waits for one that does not read
//! ```

mod answer;
mod authorize;
mod body;
mod check_call;
mod check_http;
mod client;
mod consent;
mod exchange;
mod fault;
#[cfg(test)]
mod footprint_tests;
mod forward;
mod head;
mod identity;
mod key_fetch;
mod mirror;
mod pending;
mod refusal;
mod routing;
mod send;
mod serve;
mod session;
mod tokens;
mod trace;
mod unread;
mod upgrade;
mod websocket;

pub(crate) use client::Client;
pub(crate) use key_fetch::run_errands;
pub(crate) use serve::{FAREWELL, serve};
