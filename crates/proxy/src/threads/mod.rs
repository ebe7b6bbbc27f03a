//! The threads that connections run on, and what one of them owes the others: timers are kept
//! elsewhere, memory is given back.

pub mod give_back;
mod workers;

pub use give_back::Lives;
pub use workers::Workers;
