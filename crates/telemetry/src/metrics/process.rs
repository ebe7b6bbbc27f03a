//! The process as the kernel sees it, read when asked.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::accepting;

/// Standard `process_*` metrics, and what listeners meet that all share its descriptors.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            ("process_open_fds", "Open file descriptors.", open_fds()),
            ("process_resident_memory_bytes", "Memory in RAM.", resident_bytes()),
            ("process_threads", "Threads.", stat_field(20)),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
            }
        }
        if let (Some(user), Some(system)) = (stat_field(14), stat_field(15)) {
            // The kernel reports these in ticks of 10 ms on every architecture Linux runs on
            // today (USER_HZ).
            let seconds = (user + system) as f64 / 100.0;
            let metric = encoder.encode_descriptor(
                "process_cpu_seconds",
                "User and system CPU time.",
                None,
                MetricType::Counter,
            )?;
            ConstCounter::new(seconds).encode(metric)?;
        }
        let metric = encoder.encode_descriptor(
            "leno_accept_pauses",
            "Pauses of listeners that could not accept a connection, most often for want of descriptors.",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(accepting::pauses()).encode(metric)
    }
}

fn open_fds() -> Option<i64> {
    const OPEN: &str = "/proc/self/fd";
    // Since 6.2 the kernel says how many there are; before, it says 0, and all have to be listed.
    match fs::metadata(OPEN).ok()?.len() {
        // One of the entries is the directory that is being read.
        0 => Some(fs::read_dir(OPEN).ok()?.count() as i64 - 1),
        open => Some(open as i64),
    }
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Field `number` of /proc/self/stat, counted from 1 as in proc(5).
fn stat_field(number: usize) -> Option<i64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}
