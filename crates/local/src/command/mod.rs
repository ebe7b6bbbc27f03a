//! What commands call: `leno up`, `leno down`, and those that talk to a running stage.

pub mod client;
pub mod detach;
pub mod down;
pub(crate) mod print_logs;
mod progress;
mod signals;
pub mod up;
