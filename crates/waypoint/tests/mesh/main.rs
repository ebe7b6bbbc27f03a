//! A waypoint with a control plane, clients in tunnels and endpoints, all in this process.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code")]

mod authorizer_bodies;
mod authorizers;
mod authorizers_over_http;
mod balance;
mod clear;
mod connections;
mod drained;
mod h2spec;
mod http1;
mod http2;
mod limits;
mod others;
mod paths;
mod policies;
mod rates;
mod refused;
mod routes;
mod rules;
mod served_keys;
mod sessions;
mod smuggling;
mod smuggling_http2;
mod support;
mod tokens;
mod told;
mod websockets;
