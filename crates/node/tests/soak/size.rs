//! How much is done: little on every run, all of it with `LENO_SOAK=1`.

use std::time::Duration;

/// Sizes of everything.
pub(crate) struct Size {
    /// Latencies and shares of processor time are measured, which takes a quiet machine. Otherwise only what is counted
    /// matters.
    pub(crate) measured: bool,
    /// Connections that come and go.
    pub(crate) short: usize,
    /// Connections that lie idle, and how long.
    pub(crate) idle: usize,
    pub(crate) held: Duration,
    /// Peers that never finish beginning, and how long.
    pub(crate) half_open: usize,
    pub(crate) besieged: Duration,
    /// They compute only when nobody else wants to. Beside other tests they would never.
    pub(crate) behind: bool,
    /// Connections that nobody reads, each way.
    pub(crate) stalled: usize,
    /// Workloads of the mesh that a proxy is told of.
    pub(crate) workloads: usize,
    /// Connections to a program that has stopped reading, and what they may cost a proxy, bytes: what it
    /// may hold unread, and a little for each.
    pub(crate) stopped: usize,
    pub(crate) stopped_cost: usize,
    /// How long a neighbour's latency is taken for.
    pub(crate) sample: Duration,
    /// How often it is taken while nothing else goes on.
    pub(crate) bases: usize,
    /// How often it is taken at most beside what does; in more than half of them it must be good. A
    /// machine that does something else meanwhile is not the proxy's doing.
    pub(crate) rounds: usize,
    /// How many times its base a neighbour's p99 may be.
    pub(crate) times: f64,
    /// What a neighbour's p99 may be however small its base.
    pub(crate) at_least: Duration,
    /// What may be left of memory that was allocated, bytes: an allocator gives back whole pages,
    /// and something lives on in some of them.
    pub(crate) left: usize,
    /// Settings of the proxies.
    pub(crate) handshake: Duration,
    pub(crate) tunnel_kept: Duration,
}

impl Size {
    /// The size of this run.
    pub(crate) fn of_this_run() -> Self {
        if std::env::var_os("LENO_SOAK").is_some_and(|value| value == "1") { Self::full() } else { Self::small() }
    }

    /// Unoptimised, on a machine that runs other tests.
    fn small() -> Self {
        Self {
            measured: false,
            short: 2000,
            idle: 500,
            held: Duration::from_secs(3),
            half_open: 200,
            besieged: Duration::from_secs(4),
            behind: false,
            stalled: 8,
            workloads: 5000,
            stopped: 1000,
            // An unoptimised proxy takes more for each. Windows alone were 16 MiB for each hundred.
            // And what waits lies in buffers that hold more than that.
            stopped_cost: (28 << 20) + 1000 * (10 << 10),
            sample: Duration::from_secs(2),
            bases: 1,
            rounds: 3,
            times: 4.0,
            // An unoptimised handshake takes ten, and some may come one after the other.
            at_least: Duration::from_millis(50),
            // Ended connections that are kept for `leno observe` keep pages of the burst from being given back: up to
            // 1.5 MiB were seen after forty programs that had read much (with one kept instead of 512, 0.6).
            left: 2 << 20,
            handshake: Duration::from_secs(5),
            tunnel_kept: Duration::from_secs(1),
        }
    }

    /// As it is in the field: the default settings.
    fn full() -> Self {
        let stopped = 20_000.min(connections_of_the_kernel());
        Self {
            measured: false,
            short: 100_000,
            idle: 10_000,
            held: Duration::from_secs(600),
            half_open: 1000,
            besieged: Duration::from_secs(30),
            behind: true,
            stalled: 32,
            workloads: 50_000,
            stopped,
            // On 25 November the receiving proxy held 26 MB for the tunnels and 5.4 KB for each connection, half of them
            // bytes that nobody reads.
            stopped_cost: (32 << 20) + stopped * (5 << 10) + stopped * (1 << 9),
            sample: Duration::from_secs(10),
            bases: 5,
            rounds: 5,
            times: 2.0,
            at_least: Duration::ZERO,
            left: 3 << 20,
            handshake: Duration::from_secs(10),
            tunnel_kept: Duration::from_secs(60),
        }
    }
}

/// How many connections through both proxies the machine's kernel has memory for. It takes 0.2 MiB for each that
/// nobody reads, however small the buffers are set, and with the usual `net.ipv4.tcp_mem` it has 2 GiB for all of TCP.
/// Beyond that, nobody's connections work.
fn connections_of_the_kernel() -> usize {
    const PAGE: usize = 4 << 10;
    let pages = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok();
    let most = pages.and_then(|pages| pages.split_whitespace().nth(2)?.parse::<usize>().ok());
    most.map_or(8000, |pages| pages * PAGE / (256 << 10))
}
