//! Fakes, clocks and builders for the other crates' tests.

pub mod certs;
