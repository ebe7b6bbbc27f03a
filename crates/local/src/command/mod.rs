//! The functions behind the commands: `leno up`, `leno down`, and those that talk to a running stage.

pub mod client;
pub mod detach;
pub mod down;
mod find_logs;
pub mod logs;
mod print_logs;
mod progress;
mod signals;
pub mod stages;
pub mod up;
