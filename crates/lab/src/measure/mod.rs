//! The cost of a subject: processor time, memory and descriptors of processes, and of the machine as a whole.
//!
//! Everything comes from `proc(5)`. A process's time includes its system calls. Interrupts and packet processing
//! (`softirq`) are only in the machine's numbers, which is why both are recorded.

mod machine;
mod process;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub use machine::{Machine, MachineCpu, busy_cores};
pub use process::{Cpu, Memory, cpu, memory, others, process_tree};

/// The time, to the second: RFC 3339, UTC.
pub(crate) fn now() -> String {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
