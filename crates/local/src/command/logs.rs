//! `leno logs`: finding a log, and printing what of it is wanted.

pub use crate::command::find_logs::{Found, Source, find_logs};
pub use crate::command::print_logs::{Wanted, print_logs};
