//! Why something was killed that nobody here has killed.

use leno_telemetry::MemoryGroup;
use nix::sys::signal::Signal;

/// What was known of a process's memory while it ran: when it has ended, nobody can tell any more what limited it.
pub(crate) struct Memory(Option<(MemoryGroup, u64)>);

impl Memory {
    /// Of a process that runs.
    pub(crate) fn of(pid: i32) -> Self {
        let group = MemoryGroup::of(pid);
        Self(group.and_then(|group| Some((group.kills()?, group))).map(|(kills, group)| (group, kills)))
    }

    /// Words that follow those of its end, by exit code or 128 + signal; empty if its memory was not the reason.
    pub(crate) fn reason_of(&self, code: i32) -> String {
        let Some((group, before)) = &self.0 else { return String::new() };
        let killed = code == 128 + Signal::SIGKILL as i32 && group.kills().is_some_and(|now| now > *before);
        match group.limit() {
            _ if !killed => String::new(),
            Some(limit) => format!(
                ": the kernel killed it at the memory limit of its control group ({} MiB); raise that limit, or look what needs so \
                 much",
                limit >> 20
            ),
            None => ": the kernel killed it because the machine had no memory left".to_owned(),
        }
    }
}
