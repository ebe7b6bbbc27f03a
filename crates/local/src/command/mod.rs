//! What commands call: `leno up`, `leno down`, and those that talk to a running stage.

pub mod client;
pub mod down;
pub(crate) mod print_logs;
pub mod up;
