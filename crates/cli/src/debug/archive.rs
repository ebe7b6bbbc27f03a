//! The archive: written file by file, so that a large mesh need not fit into memory, and there as a whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::redact::redacted;

pub(super) struct Archive {
    /// `None` once it is finished.
    tar: Option<tar::Builder<GzEncoder<File>>>,
    /// Where it is written, and where it is when it is whole.
    part: PathBuf,
    path: PathBuf,
    /// The one directory in it.
    top: String,
    files: usize,
    errors: Vec<String>,
    now: u64,
}

impl Archive {
    /// Begins one that only its owner may read.
    pub(super) fn create(path: &Path, top: String) -> anyhow::Result<Self> {
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        // A new file: never through somebody's link, and with this mode.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
        let file = file.with_context(|| format!("can't write {}; name another file with -o", part.display()))?;
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(Self { tar: Some(tar), part, path: path.to_owned(), top, files: 0, errors: Vec::new(), now })
    }

    /// How many files are in it.
    pub(super) fn files(&self) -> usize {
        self.files
    }

    /// Adds a text, without what must not be in it.
    pub(super) fn text(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let text = redacted(text);
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(self.now);
        let path = format!("{}/{name}", self.top);
        if let Some(tar) = &mut self.tar {
            tar.append_data(&mut header, path, text.as_bytes())
                .with_context(|| format!("writing {}", self.part.display()))?;
            self.files += 1;
        }
        Ok(())
    }

    /// Adds an object as JSON.
    pub(super) fn json(&mut self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        self.text(name, &(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Adds what was read, or takes down why it could not be.
    pub(super) fn read<T: AsRef<str>>(&mut self, name: &str, read: anyhow::Result<T>) -> anyhow::Result<()> {
        match read {
            Ok(text) => self.text(name, text.as_ref()),
            Err(error) => {
                self.failed(name, &error);
                Ok(())
            }
        }
    }

    /// Takes down that something could not be read.
    pub(super) fn failed(&mut self, name: &str, error: &anyhow::Error) {
        self.errors.push(format!("{name}: {error:#}"));
    }

    /// Completes it. Returns how many things could not be read.
    pub(super) fn finish(mut self) -> anyhow::Result<usize> {
        if !self.errors.is_empty() {
            let errors = self.errors.join("\n") + "\n";
            self.text("errors.txt", &errors)?;
        }
        if let Some(tar) = self.tar.take() {
            let written = tar.into_inner().and_then(GzEncoder::finish).and_then(|file| file.sync_all());
            written.with_context(|| format!("writing {}", self.part.display()))?;
        }
        fs::rename(&self.part, &self.path).with_context(|| format!("writing {}", self.path.display()))?;
        Ok(self.errors.len())
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        // After a rename it is not there any more. Ended early, nothing is left.
        let _ = fs::remove_file(&self.part);
    }
}
