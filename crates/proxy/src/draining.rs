//! What a proxy that drains tells the one that follows it: how many connections it still waits for.
//!
//! Its own ports belong to the next proxy by then, so it writes a file in a directory that both know. It has the file
//! locked as long as it lives, so a file that is not locked was left by a process that was killed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

/// How the files' names begin.
pub(crate) const NAME: &str = "draining";
/// Between two counts.
const EVERY: Duration = Duration::from_secs(1);
/// Longest file that is read, bytes.
const LONGEST: u64 = 4 << 10;

/// A proxy's file. It goes with this value.
pub(crate) struct Told {
    file: File,
    path: PathBuf,
    until: SystemTime,
}

impl Told {
    /// Makes the file. The drain ends at `until` at the latest.
    pub(crate) fn begin(dir: &Path, until: SystemTime) -> io::Result<Self> {
        let path = dir.join(format!("{NAME}.{:08x}", rand::random::<u32>()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        file.lock()?;
        Ok(Self { file, path, until })
    }

    /// Says how many connections there are.
    pub(crate) fn say(&self, connections: usize) -> io::Result<()> {
        let text = json!({"connections": connections, "until": rfc3339(self.until)}).to_string();
        // Padded, so that a shorter text covers a longer one and a reader never finds half of each.
        self.file.write_all_at(format!("{text:<200}").as_bytes(), 0)
    }

    /// Says so every second, as long as it is polled. What can't be written is not said: the drain matters more.
    pub(crate) async fn keep_saying(self, count: impl Fn() -> usize + Send + Sync + 'static) {
        let this = std::sync::Arc::new((self, count));
        loop {
            let saying = this.clone();
            // The thread that calls keeps the workers' timers.
            let said = tokio::task::spawn_blocking(move || saying.0.say((saying.1)())).await;
            if !matches!(said, Ok(Ok(()))) {
                return std::future::pending().await;
            }
            #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
            tokio::time::sleep(EVERY).await;
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What the proxies that drain say, as members of `/status`. What was left by killed ones is removed.
pub(crate) fn others(dir: &Path) -> Vec<Value> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = files.filter(|file| file.file_name().to_string_lossy().starts_with(&format!("{NAME}.")));
    named.filter_map(|file| read(&file.path())).collect()
}

fn read(path: &Path) -> Option<Value> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {}
        Ok(()) => {
            let _ = fs::remove_file(path);
            return None;
        }
        Err(TryLockError::Error(_)) => return None,
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    // Empty for the moment between its making and its first words.
    serde_json::from_str(text.trim()).ok()
}

/// A time, as `/status` and the configuration dump write it.
pub(crate) fn rfc3339(time: SystemTime) -> Option<String> {
    let seconds = time::OffsetDateTime::from(time).replace_nanosecond(0).ok()?;
    seconds.format(&time::format_description::well_known::Rfc3339).ok()
}

#[cfg(test)]
#[path = "draining_tests.rs"]
mod tests;
