//! A waypoint with a control plane, clients in tunnels and endpoints, all in this process.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod clear;
mod http1;
mod http2;
mod others;
mod refused;
mod routes;
mod support;
mod told;
