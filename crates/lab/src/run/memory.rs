//! Memory that remains after a burst.

use std::io;
use std::time::{Duration, Instant};

use crate::measure::{Memory, memory};

/// Memory counts as given back if it exceeds a fresh proxy's by at most this part.
const SLACK: f64 = 0.25;
/// When all processes have given their memory back, the check ends.
const NOTHING: f64 = 0.02;
/// The pause between checks.
const LOOKS: Duration = Duration::from_millis(500);
/// This many additional descriptors may stay open: tunnels that are kept for the next connection.
const DESCRIPTORS: u64 = 64;

/// The memory of one process after a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rest {
    /// Its memory at the end.
    pub memory: Memory,
    /// Seconds until its memory was near its earlier value. `None` if it never was.
    pub back: Option<f64>,
}

/// Checks processes until `limit` has passed, or each has given all its memory back. `processes` are process ids with
/// their memory when fresh. The error has the index of the process that is gone.
pub(super) async fn settle(processes: &[(i32, Memory)], limit: Duration) -> Result<Vec<Rest>, (usize, io::Error)> {
    let begun = Instant::now();
    let mut back = vec![None; processes.len()];
    loop {
        let (mut rest, mut all_back) = (Vec::new(), true);
        for (index, (pid, fresh)) in processes.iter().enumerate() {
            let memory = memory(*pid).map_err(|error| (index, error))?;
            let closed = memory.descriptors <= fresh.descriptors + DESCRIPTORS;
            let near = |part: f64| closed && memory.rss_bytes as f64 <= fresh.rss_bytes as f64 * (1.0 + part);
            if near(SLACK) {
                back[index].get_or_insert_with(|| begun.elapsed().as_secs_f64());
            }
            all_back &= near(NOTHING);
            rest.push(Rest { memory, back: back[index] });
        }
        // The report has the memory at the end, not at the first moment when it was low enough.
        if all_back || begun.elapsed() >= limit {
            return Ok(rest);
        }
        tokio::time::sleep(LOOKS).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    /// One process holds memory until told, and another never gives it back.
    #[tokio::test]
    async fn each_process_is_judged_by_itself() {
        let shell = || {
            let script = "echo; read line; x=$(head -c 30000000 /dev/zero | tr '\\0' x); echo; read line; unset x; echo; read line";
            let mut shell =
                Command::new("bash").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let said = BufReader::new(shell.stdout.take().unwrap());
            (shell, said)
        };
        let mut line = String::new();
        let mut shells = [shell(), shell()];
        let mut processes = Vec::new();
        for (shell, said) in &mut shells {
            said.read_line(&mut line).unwrap();
            let pid = i32::try_from(shell.id()).unwrap();
            processes.push((pid, memory(pid).unwrap()));
            shell.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            said.read_line(&mut line).unwrap();
        }
        let (first, said) = &mut shells[0];
        first.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        said.read_line(&mut line).unwrap();
        let rest = settle(&processes, Duration::from_millis(600)).await.unwrap();
        assert!(rest[0].back.is_some() && rest[1].back.is_none(), "{rest:?}");
        assert!(rest[1].memory.rss_bytes > rest[0].memory.rss_bytes + (20 << 20), "{rest:?}");
        for (mut shell, _) in shells {
            shell.kill().unwrap();
            shell.wait().unwrap();
        }
        assert_eq!(settle(&processes, Duration::ZERO).await.unwrap_err().0, 0, "a process that is gone is no zero");
    }
}
