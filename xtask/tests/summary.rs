//! The last lines of `cargo test --workspace`: what was skipped in the run, and what to do about it.
//!
//! Cargo runs test programs in the order of their packages' names and then their own, and this comes last in it; `structure.rs`
//! checks that. It has no test harness, which would keep to itself what a passing test prints.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    if let Some(summary) = leno_testkit::skips::summary(include_str!("../../.ci/packages")) {
        print!("{summary}");
    }
}
