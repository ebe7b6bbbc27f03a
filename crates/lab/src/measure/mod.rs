//! What a subject costs: processor time, memory and descriptors of processes, and of the machine as a whole.
//!
//! Everything comes from `proc(5)`. Processor time of a process includes what the kernel does in its system calls;
//! interrupts and packets handled on the way (`softirq`) are only in the machine's numbers, which is why both are taken.

mod machine;
mod process;

pub use machine::{Machine, MachineCpu, busy_cores};
pub use process::{Cpu, Memory, cpu, memory, others, process_tree};

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
