//! A process without descriptors: alone in it, for the limit is the process's.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_telemetry::{Metrics, accepting, admin};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

/// How long what is sure to come may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Takes all descriptors there are, and keeps them from growing more.
fn take_all_descriptors() -> Vec<File> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[tokio::test]
async fn without_descriptors_listeners_pause_say_so_once_a_second_and_go_on_by_themselves() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).init();
    let metrics = Metrics::new("ztunnel", "1", 10);
    let listeners = [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let mut clients = Vec::new();
    for listener in listeners {
        let to = listener.local_addr().unwrap();
        tokio::spawn(admin::serve(listener, admin::metrics(metrics.page()), std::future::pending()));
        clients.push((TcpSocket::new_v4().unwrap(), to));
    }
    let taken = take_all_descriptors();
    let begun = Instant::now();
    let mut asked = Vec::new();
    for (socket, to) in clients {
        let mut client = socket.connect(to).await.unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        asked.push(client);
    }
    // Until they have said it again, and tried again and again.
    let said = || {
        let said = String::from_utf8(log.0.lock().clone()).unwrap();
        said.lines().filter(|line| line.contains("can't accept connections")).count()
    };
    let enough = async {
        while said() < 2 || accepting::pauses() < 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, enough).await.expect("they go on trying, and say so");
    let (lines, pauses, took) = (said(), accepting::pauses(), begun.elapsed());
    // However long it took: a line a second at most, and a pause of 50 ms after each attempt of each listener.
    assert!(lines as f64 <= 1.0 + took.as_secs_f64(), "{lines} lines in {took:?}");
    assert!(pauses as f64 <= 2.0 * (1.0 + took.as_secs_f64() / 0.05), "{pauses} attempts in {took:?}");

    drop(taken);
    for mut client in asked {
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
        let pauses = answer.lines().find_map(|line| line.strip_prefix("leno_accept_pauses_total ")).unwrap();
        // Each of the two has tried again and again.
        assert!(pauses.parse::<u64>().unwrap() >= 10, "{pauses}");
    }
}
