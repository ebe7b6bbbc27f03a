//! The load generator compared with a public one: same rate, same percentiles.
//!
//! Runs where `fortio` is on the `PATH` or `LENO_FORTIO` names it; otherwise it is skipped. Built with
//! `go install fortio.org/fortio@v1.68.0`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use leno_lab::load::{HttpLoad, Load, LoadSpec, Outcome, Pace, Reuse, run};

const RATE: f64 = 200.0;
const CONNECTIONS: usize = 8;
const SECONDS: f64 = 3.0;
/// How long the server waits before it answers nine requests in ten, and the tenth. This is long compared with the
/// delays of a busy machine, and shorter than the time between two requests of a connection, so that neither generator
/// has to queue.
const DELAYS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(25));
/// Tolerances: of the rate; of a percentile, as a part and in milliseconds for the machine's own delays.
const RATE_TOLERANCE: f64 = 0.03;
const LATENCY_TOLERANCE: (f64, f64) = (0.1, 2.0);
/// How many times each runs, in turns, until they agree.
const ATTEMPTS: usize = 8;

fn fortio() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LENO_FORTIO") {
        return Some(path.into());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join("fortio")).find(|path| path.is_file())
}

fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let count = count.clone();
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                    let tenth = count.fetch_add(1, Ordering::Relaxed).is_multiple_of(10);
                    std::thread::sleep(if tenth { DELAYS.1 } else { DELAYS.0 });
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Requests per second, and milliseconds at 50 % and 99 %: on either side of the step at 90 %.
#[derive(Debug, Clone, Copy)]
struct Found {
    rate: f64,
    p50: f64,
    p99: f64,
}

impl Found {
    /// Other work on the machine can only remove requests and add latency, for either generator.
    fn less_disturbed(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), p50: self.p50.min(other.p50), p99: self.p99.min(other.p99) }
    }
}

fn theirs(fortio: &PathBuf, server: SocketAddr) -> Found {
    let (rate, connections, seconds) = (RATE.to_string(), CONNECTIONS.to_string(), format!("{SECONDS}s"));
    let output = Command::new(fortio)
        .args(["load", "-qps", &rate, "-c", &connections, "-t", &seconds, "-uniform", "-r", "0.0001"])
        .args(["-p", "50,99", "-json", "-", "-loglevel", "error", &format!("http://{server}/")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let percentile = |index: usize| json["DurationHistogram"]["Percentiles"][index]["Value"].as_f64().unwrap() * 1e3;
    Found { rate: json["ActualQPS"].as_f64().unwrap(), p50: percentile(0), p99: percentile(1) }
}

fn ours(server: SocketAddr) -> Found {
    let pace = Pace::Open { per_second: RATE };
    let load = Load::Http(HttpLoad::new(server, "/", CONNECTIONS, pace, Reuse::Kept));
    let spec = LoadSpec { unattended: false, warmup_seconds: 0.2, seconds: SECONDS, load };
    let outcome = run(&spec, mpsc::channel().1, &mut |_| {}).unwrap();
    let Outcome::Http(outcome) = outcome else { panic!("{outcome:?}") };
    assert_eq!(outcome.error_count(), 0, "{:?}", outcome.errors);
    let latency = outcome.latency;
    Found { rate: outcome.achieved_per_second, p50: latency.p50_us / 1e3, p99: latency.p99_us / 1e3 }
}

#[test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
fn same_rate_same_percentiles() {
    let Some(fortio) = fortio() else {
        leno_testkit::skips::skip(
            "same_rate_same_percentiles",
            "fortio is not on the PATH, and LENO_FORTIO=PATH does not name it",
        );
        return;
    };
    let server = server();
    let close =
        |ours: f64, theirs: f64, (part, absolute): (f64, f64)| (ours - theirs).abs() <= theirs * part + absolute;
    let mut least: Option<(Found, Found)> = None;
    for _ in 0..ATTEMPTS {
        let (our, their) = (ours(server), theirs(&fortio, server));
        let (our, their) = least.map_or((our, their), |(o, t)| (our.less_disturbed(o), their.less_disturbed(t)));
        if close(our.rate, their.rate, (RATE_TOLERANCE, 0.0))
            && close(our.p50, their.p50, LATENCY_TOLERANCE)
            && close(our.p99, their.p99, LATENCY_TOLERANCE)
        {
            println!("ours and theirs: {our:?} {their:?}");
            return;
        }
        least = Some((our, their));
    }
    panic!("ours and theirs differ even where each was disturbed least: {least:?}");
}
