//! The `leno` binary.
fn main() {}
