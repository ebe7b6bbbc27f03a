//! A log that a test can wait for.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

/// How long [`Lines::line`] waits: far longer than any awaited event takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many lines a failure shows.
const SHOWN: usize = 30;

/// Collects what is written to it, line by line. Clones share the lines.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    shared: Arc<Mutex<Shared>>,
    written: Arc<watch::Sender<usize>>,
}

#[derive(Debug, Default)]
struct Shared {
    lines: Vec<String>,
    partial: Vec<u8>,
}

impl Lines {
    /// All lines so far.
    pub fn all(&self) -> Vec<String> {
        self.shared.lock().lines.clone()
    }

    /// Forgets all lines so far.
    pub fn clear(&self) {
        self.shared.lock().lines.clear();
    }

    /// The first line that contains all of `parts`. Waits for it if necessary.
    ///
    /// # Panics
    /// If none comes. Shows the lines that came.
    pub async fn line(&self, parts: &[&str]) -> String {
        let mut written = self.written.subscribe();
        let found = async {
            loop {
                written.borrow_and_update();
                if let Some(line) = self.all().into_iter().find(|line| parts.iter().all(|part| line.contains(part))) {
                    return line;
                }
                // `self` holds the sender, so the channel can't be closed.
                let _ = written.changed().await;
            }
        };
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(line) => line,
            Err(_) => {
                let lines = self.all();
                let last = &lines[lines.len().saturating_sub(SHOWN)..];
                panic!("no line with {parts:?} among {}, of which the last are:\n{}", lines.len(), last.join("\n"))
            }
        }
    }

    /// The number of lines that contain all of `parts`.
    pub fn count(&self, parts: &[&str]) -> usize {
        self.all().iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shared = self.shared.lock();
        shared.partial.extend_from_slice(bytes);
        while let Some(end) = shared.partial.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = shared.partial.drain(..=end).collect();
            shared.lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        let count = shared.lines.len();
        drop(shared);
        self.written.send_replace(count);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
