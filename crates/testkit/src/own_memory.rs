//! What this process holds.

#![allow(clippy::unwrap_used, reason = "test code")]

/// Anonymous memory of this process, bytes.
///
/// # Panics
/// If the kernel does not tell.
pub fn anonymous() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}
