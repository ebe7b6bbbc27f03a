//! How much of the machine others take: what they do to latencies is not a proxy's doing.

use std::fs;
use std::time::{Duration, Instant};

/// The kernel's unit in `/proc`: USER_HZ, which Linux has as 100 on every architecture that Leno runs on.
const TICK: Duration = Duration::from_millis(10);

/// Processor time since the start: all that was not idle, and what this test's processes took of it.
pub(crate) struct Taken {
    at: Instant,
    busy: Duration,
    own: Duration,
}

impl Taken {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), busy: busy(), own: own() }
    }

    /// The share of the machine, 0 to 1, that others have taken since: programs, the kernel for them, and a hypervisor.
    pub(crate) fn by_others(&self) -> f64 {
        let now = Self::now();
        let others = (now.busy - self.busy).saturating_sub(now.own.saturating_sub(self.own));
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        others.as_secs_f64() / (now.at - self.at).as_secs_f64() / cores
    }
}

/// proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let fields = stat.lines().next().unwrap().split_whitespace().skip(1).map(|field| field.parse::<u32>().unwrap());
    let ticks = fields.take(8).enumerate().filter(|(index, _)| ![3, 4].contains(index)).map(|(_, ticks)| ticks).sum();
    TICK * ticks
}

/// Of all processes in this one's group, which are this test and what it has started.
fn own() -> Duration {
    // proc_pid_stat(5), after the name in parentheses: state, parent, group, …; the 12th and 13th are user and system time.
    let fields = |stat: String| {
        stat.rsplit(") ").next().map(|rest| rest.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap_or_default()
    };
    let mine = fields(fs::read_to_string("/proc/self/stat").unwrap())[2].clone();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ticks = processes.filter_map(|process| {
        let fields = fields(fs::read_to_string(process.path().join("stat")).ok()?);
        (*fields.get(2)? == mine)
            .then(|| Some(fields.get(11)?.parse::<u32>().ok()? + fields.get(12)?.parse::<u32>().ok()?))?
    });
    TICK * ticks.sum()
}
