//! The whole product on real network namespaces: the `leno` binary as a user runs it, with
//! programs that know nothing of it. Needs root (or user namespaces) and the programs; what is
//! missing is told on a line that starts with `SKIP`, which the project's CI does not accept.
//!
//! With `LENO_ZTUNNEL=PATH` the same tests run with Istio's node proxy on one node and on both.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on must panic, and tells what it measured"
)]

mod bad_input;
mod comfort;
mod control;
mod demo;
mod ended;
mod explain;
mod fail_closed;
mod footprint;
mod journal;
mod lifecycle;
mod manifests;
mod observe;
mod ownership;
mod page_text;
mod pages;
mod policy;
mod programs;
mod stage;
mod takeover;
mod topology;
mod waiting;
