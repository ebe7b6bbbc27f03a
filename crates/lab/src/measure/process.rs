//! Processor time, memory and descriptors of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Processor time of processes, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Time in the programs themselves.
    pub user_seconds: f64,
    /// Time in the kernel on behalf of the programs.
    pub system_seconds: f64,
}

impl Cpu {
    /// The sum of both.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }

    /// The same division for another total. The kernel, too, divides a total in this way.
    fn scaled_to(self, seconds: f64) -> Self {
        let of_programs = if self.seconds() > 0.0 { self.user_seconds / self.seconds() } else { 0.0 };
        let user_seconds = of_programs * seconds;
        Self { user_seconds, system_seconds: seconds - user_seconds }
    }

    /// The difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user_seconds: self.user_seconds - before.user_seconds,
            system_seconds: self.system_seconds - before.system_seconds,
        }
    }
}

impl std::ops::Add for Cpu {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            user_seconds: self.user_seconds + other.user_seconds,
            system_seconds: self.system_seconds + other.system_seconds,
        }
    }
}

/// Memory and descriptors of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident bytes (VmRSS): the program's own pages too.
    pub rss_bytes: u64,
    /// Resident bytes that the process allocated (RssAnon).
    pub anonymous_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Processor time of a process and its descendants so far, living or reaped. If a descendant ends between two calls,
/// the second still contains it as part of its parent.
///
/// # Errors
/// When the process is gone.
pub fn cpu(pid: i32) -> io::Result<Cpu> {
    let mut total = usage(pid)?;
    // A process that has ended and was not reaped yet still has an entry.
    if fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| fields(&stat).first() == Some(&"Z")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    for child in process_tree(pid)?.into_iter().filter(|child| *child != pid) {
        // If it ends between the listing and the query, its parent has its time.
        total = total + usage(child).unwrap_or_default();
    }
    Ok(total)
}

/// Memory and descriptors of a process and its living descendants.
///
/// # Errors
/// When the process is gone, or its descriptors can't be listed.
pub fn memory(pid: i32) -> io::Result<Memory> {
    let mut total = Memory::default();
    for member in process_tree(pid)? {
        let status = match fs::read_to_string(format!("/proc/{member}/status")) {
            Ok(status) => status,
            Err(_) if member != pid => continue,
            Err(error) => return Err(error),
        };
        total.rss_bytes += kibibytes(&status, "VmRSS:");
        total.anonymous_bytes += kibibytes(&status, "RssAnon:");
        match fs::read_dir(format!("/proc/{member}/fd")) {
            Ok(entries) => total.descriptors += entries.count() as u64,
            Err(_) if member != pid => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

fn kibibytes(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Processor time, in seconds, of all programs that are not descendants of `pid`, which must be alive. Kernel threads
/// are left out, because they work for everybody.
///
/// # Errors
/// If `pid` is gone.
pub fn others(pid: i32) -> io::Result<f64> {
    const KERNEL: i32 = 2;
    let own = process_tree(pid)?;
    let mut total = 0.0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(other) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // A process that ends meanwhile counts in its parent's time.
        let Ok(stat) = fs::read_to_string(format!("/proc/{other}/stat")) else { continue };
        let parent = fields(&stat).get(1).and_then(|parent| parent.parse::<i32>().ok());
        if !own.contains(&other) && other != KERNEL && parent != Some(KERNEL) {
            total += time(&stat).seconds();
        }
    }
    Ok(total)
}

/// Processor time of a process and its reaped children. Its own part is the scheduler's count in nanoseconds, because a
/// tick of 10 ms is all that a proxy takes for a few hundred requests.
fn usage(pid: i32) -> io::Result<Cpu> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let [own, reaped] = times(&stat);
    let precise = clock_getcpuclockid(Pid::from_raw(pid)).and_then(clock_gettime);
    // A process that has ended has no clock.
    let own = precise.map_or(own, |now| own.scaled_to(Duration::from(now).as_secs_f64()));
    Ok(own + reaped)
}

/// Processor time of a process and its reaped children from `/proc/PID/stat`, in whole ticks.
fn time(stat: &str) -> Cpu {
    let [own, reaped] = times(stat);
    own + reaped
}

/// The processor time of a process, and that of its reaped children.
fn times(stat: &str) -> [Cpu; 2] {
    let fields = fields(stat);
    let tick = seconds_per_tick();
    let seconds =
        |number: usize| fields.get(number - 3).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0) * tick;
    // Fields 14 to 17 of proc_pid_stat(5): utime, stime, cutime, cstime. `fields` starts with field 3.
    [(14, 15), (16, 17)].map(|(user, system)| Cpu { user_seconds: seconds(user), system_seconds: seconds(system) })
}

/// The fields behind the program's name, which may itself contain blanks and parentheses.
fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default()
}

pub(super) fn seconds_per_tick() -> f64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    1.0 / ticks.filter(|ticks| *ticks > 0).unwrap_or(100) as f64
}

/// A process and its living descendants.
///
/// # Errors
/// When the process is gone.
pub fn process_tree(pid: i32) -> io::Result<BTreeSet<i32>> {
    fs::metadata(format!("/proc/{pid}"))?;
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        if let Some(parent) = fields(&stat).get(1).and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut tree = BTreeSet::new();
    let mut next = vec![pid];
    while let Some(member) = next.pop() {
        if tree.insert(member) {
            next.extend(children.get(&member).into_iter().flatten());
        }
    }
    Ok(tree)
}
