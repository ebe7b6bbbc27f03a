//! The machine, and its use by all programs.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::process::seconds_per_tick;

/// Processor time of the whole machine since it started, over all cores, seconds.
///
/// Idle time is exact. For the rest, most kernels only look at each clock tick at what a core does. A load at fixed
/// times falls in step with the ticks, which then see all of it or none. So busy time is what was not idle. Part of the
/// time that a hypervisor took is idle as well (a core was to wake and had to wait for it), and the kernel does not say
/// how much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineCpu {
    /// Programs, niced ones included.
    pub user_seconds: f64,
    /// The kernel on their behalf.
    pub system_seconds: f64,
    /// Interrupts.
    pub irq_seconds: f64,
    /// Deferred work of interrupts. Most of the network stack's work is here.
    pub softirq_seconds: f64,
    /// Time that a hypervisor gave to others.
    pub steal_seconds: f64,
    /// No work, or waiting for a disk.
    pub idle_seconds: f64,
    /// The time that passed, over all cores. 0 in reports of the first versions, which did not record it.
    #[serde(default)]
    pub all_seconds: f64,
}

/// The part of the busy time that a hypervisor may have taken. Beyond it, the remainder is not known well enough.
const TAKEN: f64 = 0.05;
/// The kernel's samples are believed up to this distance from the measured busy time.
const BELIEVED: f64 = 0.25;

impl MachineCpu {
    /// Reads the present value.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn now() -> io::Result<Self> {
        let clock = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        Self::parse(&fs::read_to_string("/proc/stat")?, Duration::from(clock))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/stat has no line \"cpu\""))
    }

    pub(super) fn parse(stat: &str, clock: Duration) -> Option<Self> {
        let is_core =
            |line: &str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let cores = stat.lines().filter(|line| is_core(line)).count();
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let tick = seconds_per_tick();
        let ticks: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0.0) * tick;
        ticks.get(3)?;
        Some(Self {
            user_seconds: at(0) + at(1),
            system_seconds: at(2),
            idle_seconds: at(3) + at(4),
            irq_seconds: at(5),
            softirq_seconds: at(6),
            steal_seconds: at(7),
            all_seconds: cores as f64 * clock.as_secs_f64(),
        })
    }

    /// The difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            user_seconds: self.user_seconds - before.user_seconds,
            system_seconds: self.system_seconds - before.system_seconds,
            irq_seconds: self.irq_seconds - before.irq_seconds,
            softirq_seconds: self.softirq_seconds - before.softirq_seconds,
            steal_seconds: self.steal_seconds - before.steal_seconds,
            idle_seconds: self.idle_seconds - before.idle_seconds,
            all_seconds: self.all_seconds - before.all_seconds,
        }
    }

    /// The busy time of all cores, work or taken. The clock is read slightly earlier, so it may come out below zero and
    /// is cut off there.
    fn not_idle_seconds(&self) -> f64 {
        (self.all_seconds - self.idle_seconds).max(0.0)
    }

    /// The work of all programs and the kernel. `None` if a hypervisor took so much that it is unknown, or if it was not
    /// measured, as on the machines of a cluster.
    #[must_use]
    pub fn busy_seconds(&self) -> Option<f64> {
        let not_idle = self.not_idle_seconds();
        (self.all_seconds > 0.0 && self.steal_seconds <= TAKEN * not_idle).then_some(not_idle - self.steal_seconds)
    }

    /// Deferred work of interrupts. `None` if the kernel's samples can't be right.
    #[must_use]
    pub fn believed_softirq_seconds(&self) -> Option<f64> {
        let busy = self.busy_seconds()?;
        let sampled = self.user_seconds + self.system_seconds + self.irq_seconds + self.softirq_seconds;
        ((sampled - busy).abs() <= BELIEVED * busy).then_some(self.softirq_seconds)
    }
}

/// The number of busy cores, averaged over `time`. Time taken by a hypervisor counts.
///
/// # Errors
/// When `/proc` is not mounted.
pub async fn busy_cores(time: Duration) -> io::Result<f64> {
    let before = MachineCpu::now()?;
    tokio::time::sleep(time).await;
    let used = MachineCpu::now()?.since(&before);
    Ok(used.not_idle_seconds() / time.as_secs_f64())
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Load averages over 1, 5 and 15 minutes.
    pub load_average: [f64; 3],
    /// Whether it is a virtual machine, whose cores other guests may share.
    pub is_virtual: bool,
    /// The number of busy cores before the measurement.
    pub busy_cores: f64,
    /// Limit of open descriptors (`RLIMIT_NOFILE`), which proxies inherit.
    pub descriptors: u64,
    /// The frequency governor of the first core, if the kernel has one.
    pub governor: Option<String>,
}

impl Machine {
    /// Describes this machine. Unknown fields are empty, and so are those that take time or a raised limit.
    #[must_use]
    pub fn describe() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let value = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let mut load = [0.0; 3];
        for (average, field) in load.iter_mut().zip(read("/proc/loadavg").split_whitespace()) {
            *average = field.parse().unwrap_or(0.0);
        }
        let memory = read("/proc/meminfo");
        let kibibytes =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        let processor = value("model name");
        Self {
            // Other architectures than x86 give no name, only numbers.
            processor: if processor.is_empty() { std::env::consts::ARCH.to_owned() } else { processor },
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: kibibytes.map_or(0, |kibibytes: u64| kibibytes * 1024),
            load_average: load,
            is_virtual: value("flags").split_whitespace().any(|flag| flag == "hypervisor"),
            busy_cores: 0.0,
            descriptors: 0,
            governor: Some(governor.trim().to_owned()).filter(|governor| !governor.is_empty()),
        }
    }
}
