//! What a process uses, and how many descriptors it may have.

use std::process::Command;

use crate::stage::run;

/// The kernel's, in what it tells programs, on every machine.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// What a proxy may take while it can accept nothing.
pub(crate) const MOST_OF_A_PROCESSOR: f64 = 0.2;

/// Processor time of a process, in its own code and the kernel's.
pub(crate) fn processor_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The 14th and 15th field; after the name comes the 3rd (proc_pid_stat(5)).
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..=12].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

/// How many descriptors a process has open.
pub(crate) fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Lets a process, and those that it starts, have so many: at once, and by asking for more.
pub(crate) fn limit_descriptors(pid: i32, now: usize, most: usize) {
    run(Command::new("prlimit").args([format!("--pid={pid}"), format!("--nofile={now}:{most}")])).ok();
}
