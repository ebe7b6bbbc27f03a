//! Which processes live in a network namespace, told by the kernel and not by who started them.

use std::fs;

use leno_capture::NamespaceId;

/// `program[pid@start]` of every process in the namespace, in order of pid. The start time tells a process from a later
/// one with the same pid.
pub(super) fn of(namespace: NamespaceId) -> String {
    let mut found: Vec<(u32, String)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // A process that ends meanwhile isn't one of those that stay.
        .filter_map(|pid| {
            let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
            (link.to_str()? == namespace.to_string()).then(|| describe(pid)).flatten().map(|text| (pid, text))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
}

fn describe(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (program, start) = program_and_start(&stat)?;
    Some(format!("{program}[{pid}@{start}]"))
}

/// Fields 2 and 22 of proc_pid_stat(5). The program's name may hold spaces and parentheses.
fn program_and_start(stat: &str) -> Option<(&str, &str)> {
    let (_, rest) = stat.split_once('(')?;
    let (program, rest) = rest.rsplit_once(") ")?;
    Some((program, rest.split(' ').nth(19)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_odd_names() {
        let stat = "12 (a) (b c) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2";
        assert_eq!(program_and_start(stat), Some(("a) (b c", "987654")));
    }

    #[test]
    fn finds_this_process() {
        let own = leno_capture::NetworkNamespace::current().unwrap().id();
        assert!(of(own).contains(&format!("[{}@", std::process::id())));
    }
}
