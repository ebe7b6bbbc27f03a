//! Requests: how they come, where they go, what is answered.
//!
//! ```text
//!  serve    a client's HTTP connection
//!  client   whom it belongs to, and what it may ask for
//!  head     what a request's head must be like, and what of it is passed on
//!  identity who calls, told to the program; trace and request ids
//!  forward  one request and its response
//!  upgrade  connections that cease to be HTTP
//!  answer   what the waypoint answers itself
//!  body     bodies on their way through
//! ```

mod answer;
mod body;
mod client;
mod forward;
mod head;
mod identity;
mod serve;
mod upgrade;

pub(crate) use answer::{Flag, Refusal};
pub(crate) use body::Body;
pub(crate) use client::{Client, View, source};
pub(crate) use head::Asks;
pub(crate) use serve::{Ended, serve};
