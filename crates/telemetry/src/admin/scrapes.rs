//! Scrapes of the metrics. There may be many scrapers, and a scrape can have a hundred megabytes.
//!
//! A scrape is written on a thread of its own, once for all requests that came meanwhile. After each one there is a pause of
//! four times its duration. So a client that scrapes without end costs a fifth of a core, and neither the kubelet's probe
//! nor a timer waits for it. The values in a scrape are never older than its request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Length of the pause after a scrape, in multiples of the time that writing it took.
const REST: u32 = 4;
/// The longest pause. A scraper waits ten seconds by default.
const LONGEST_REST: Duration = Duration::from_secs(2);

type Write = dyn Fn() -> Result<String, fmt::Error> + Send + Sync;

/// State shared by all scrapes.
pub(super) struct Scrapes {
    write: Arc<Write>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<oneshot::Sender<Result<Bytes, String>>>,
    /// Whether a scrape is being written, or the pause after one goes on.
    busy: bool,
}

impl Scrapes {
    pub(super) fn new(write: impl Fn() -> Result<String, fmt::Error> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { write: Arc::new(write), state: Mutex::default() })
    }

    /// The metrics, written after this call.
    ///
    /// # Errors
    /// If it can't be written.
    pub(super) async fn scrape(self: Arc<Self>) -> Result<Bytes, String> {
        let (sender, written) = oneshot::channel();
        let begins = {
            let mut state = self.state.lock();
            state.waiting.push(sender);
            !std::mem::replace(&mut state.busy, true)
        };
        if begins {
            tokio::spawn(self.write_while_asked());
        }
        written.await.unwrap_or_else(|_| Err("the runtime ends".to_owned()))
    }

    async fn write_while_asked(self: Arc<Self>) {
        loop {
            let mut waiting = {
                let mut state = self.state.lock();
                if state.waiting.is_empty() {
                    state.busy = false;
                    return;
                }
                std::mem::take(&mut state.waiting)
            };
            waiting.retain(|scrape| !scrape.is_closed());
            if waiting.is_empty() {
                continue;
            }
            let begun = Instant::now();
            let written = on_a_thread(self.write.clone()).await;
            for scrape in waiting {
                // The client may have gone.
                let _ = scrape.send(written.clone());
            }
            tokio::time::sleep((begun.elapsed() * REST).min(LONGEST_REST)).await;
        }
    }
}

async fn on_a_thread(write: Arc<Write>) -> Result<Bytes, String> {
    let (sender, written) = oneshot::channel();
    let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        let written = write().map(Bytes::from).map_err(|error| error.to_string());
        // This fails if nobody waits any more because the process ends.
        let _ = sender.send(written);
    });
    match thread {
        Ok(_) => written.await.unwrap_or_else(|_| Err("the thread that wrote them failed; see the log".to_owned())),
        Err(error) => Err(format!("no thread can be had to write them: {error}")),
    }
}
