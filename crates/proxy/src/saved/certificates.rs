//! The saved certificates: one file for each identity, written by a thread of its own.
//!
//! The control thread keeps the workers' timers, so no disk may delay it. What is to be written waits in memory, of each
//! identity only the latest, and is what a reader finds until it is written.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_model::Identity;
use leno_tls::CertificateStore;
use parking_lot::{Condvar, Mutex};

use super::files::{read_private, write_private};

/// Longest name of a file, bytes, with room for the end that it has while it is written.
const LONGEST_NAME: usize = 255 - ".new-00000000".len();
/// How much of a longer name is kept for people.
const SHOWN: usize = 100;

/// One file for each identity.
#[derive(Debug)]
pub(super) struct Certificates {
    dir: PathBuf,
    queue: Arc<Queue>,
}

/// What is to be written or removed, by file.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// `None` for a file that is to be removed.
    files: HashMap<PathBuf, Option<String>>,
    /// The one that is just being written.
    current: Option<(PathBuf, Option<String>)>,
    /// Whether there is a thread.
    started: bool,
    /// Whether nobody will order anything any more.
    ended: bool,
}

impl Certificates {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, queue: Arc::default() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// No part of an identity has a `/`, and none begins the name, so the file is in the directory. A name that is too long
    /// for a file ends with its hash. If two had the same, each would find the other's certificate, which is checked anyway.
    pub(super) fn path(&self, identity: &Identity) -> PathBuf {
        let name = identity.to_string().trim_start_matches("spiffe://").replace('/', "~");
        let whole = format!("id~{name}.pem");
        if whole.len() <= LONGEST_NAME {
            return self.dir.join(whole);
        }
        let start: String = name.chars().take(SHOWN).filter(char::is_ascii).collect();
        let hash = leno_tls::sha256(name.as_bytes()).unwrap_or_default();
        self.dir.join(format!("id~{start}~{hash}.pem"))
    }

    /// Has a thread write or remove a file.
    fn order(&self, path: PathBuf, text: Option<String>) {
        let mut waiting = self.queue.waiting.lock();
        waiting.files.insert(path, text);
        if !std::mem::replace(&mut waiting.started, true) {
            let queue = self.queue.clone();
            let started =
                std::thread::Builder::new().name("saved certificates".to_owned()).spawn(move || queue.carry_out(&put));
            if let Err(error) = started {
                waiting.started = false;
                waiting.files.clear();
                tracing::warn!(%error, "certificates are not saved: no thread can be started");
            }
        }
        self.queue.changed.notify_all();
    }

    /// Removes the files of all other identities.
    pub(super) fn keep_only<'a>(&self, identities: impl Iterator<Item = &'a Identity>) {
        let kept = identities.map(|identity| self.path(identity)).collect::<std::collections::HashSet<_>>();
        let found = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for file in found.map(|file| file.path()).filter(|file| is_certificate(file) && !kept.contains(file)) {
            let _ = fs::remove_file(file);
        }
    }

    /// Returns when all that was ordered is done.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        let mut waiting = self.queue.waiting.lock();
        while !waiting.files.is_empty() || waiting.current.is_some() {
            self.queue.changed.wait(&mut waiting);
        }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        self.queue.waiting.lock().ended = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    /// Hands what is ordered to `put`, one after the other, until nobody orders any more.
    fn carry_out(&self, put: &dyn Fn(&Path, Option<&str>)) {
        loop {
            let mut waiting = self.waiting.lock();
            waiting.current = None;
            self.changed.notify_all();
            while waiting.files.is_empty() {
                if waiting.ended {
                    return;
                }
                self.changed.wait(&mut waiting);
            }
            let next = waiting.files.keys().next().cloned();
            let Some((path, text)) = next.and_then(|path| waiting.files.remove_entry(&path)) else { continue };
            waiting.current = Some((path.clone(), text.clone()));
            drop(waiting);
            put(&path, text.as_deref());
        }
    }

    /// What a file is to be, if that is not what it is.
    fn ordered(&self, path: &Path) -> Option<Option<String>> {
        let waiting = self.waiting.lock();
        let current = || waiting.current.as_ref().filter(|(of, _)| of == path).map(|(_, text)| text);
        waiting.files.get(path).or_else(current).cloned()
    }
}

fn put(path: &Path, text: Option<&str>) {
    match text.map_or_else(|| fs::remove_file(path), |text| write_private(path, text)) {
        Ok(()) => {}
        Err(error) if text.is_none() && error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(
            file = %path.display(), %error,
            "a saved certificate can't be changed: a proxy that starts without a control plane will not have the latest"
        ),
    }
}

/// Whether it is a certificate's whole file, and none that another proxy is just writing.
pub(super) fn is_certificate(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "pem")
}

impl CertificateStore for Certificates {
    fn load(&self, identity: &Identity) -> Option<String> {
        let path = self.path(identity);
        if let Some(ordered) = self.queue.ordered(&path) {
            return ordered;
        }
        match read_private(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(%identity, %error, "a saved certificate is not used");
                None
            }
        }
    }

    fn save(&self, identity: &Identity, text: &str) {
        self.order(self.path(identity), Some(text.to_owned()));
    }

    fn remove(&self, identity: &Identity) {
        self.order(self.path(identity), None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn id(account: &str) -> Identity {
        Identity::new("cluster.local", "shop", account).unwrap()
    }

    #[test]
    fn a_disk_that_is_stuck_keeps_nobody_waiting_and_gets_the_latest_once() {
        let certificates = Certificates::new(PathBuf::from("/nowhere"));
        certificates.queue.waiting.lock().started = true;
        let (begun, beginnings) = mpsc::channel();
        let (free, freed) = mpsc::channel::<()>();
        let queue = certificates.queue.clone();
        let thread = std::thread::spawn(move || {
            queue.carry_out(&|path, text| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                begun.send((name, text.map(str::to_owned))).unwrap();
                freed.recv().unwrap();
            });
        });
        certificates.save(&id("web"), "1");
        let file = "id~cluster.local~ns~shop~sa~web.pem".to_owned();
        assert_eq!(beginnings.recv().unwrap(), (file.clone(), Some("1".to_owned())));
        assert_eq!(certificates.load(&id("web")).as_deref(), Some("1"), "while it is being written");
        for text in ["2", "3", "4"] {
            certificates.save(&id("web"), text);
        }
        assert_eq!(certificates.load(&id("web")).as_deref(), Some("4"));
        free.send(()).unwrap();
        assert_eq!(beginnings.recv().unwrap(), (file.clone(), Some("4".to_owned())));
        certificates.remove(&id("web"));
        assert_eq!(certificates.load(&id("web")), None);
        free.send(()).unwrap();
        assert_eq!(beginnings.recv().unwrap(), (file, None));
        free.send(()).unwrap();
        drop(certificates);
        thread.join().unwrap();
        assert!(beginnings.try_recv().is_err());
    }

    #[test]
    fn an_identity_of_any_length_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(dir.path().to_owned());
        let [long, longer] = ["a".repeat(250), format!("{}b", "a".repeat(249))].map(|account| id(&account));
        certificates.save(&long, "one");
        certificates.save(&longer, "other");
        certificates.settle();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let next = Certificates::new(dir.path().to_owned());
        assert_eq!(next.load(&long).as_deref(), Some("one"));
        assert_eq!(next.load(&longer).as_deref(), Some("other"));
        next.keep_only([&long].into_iter());
        assert_eq!((next.load(&long).as_deref(), next.load(&longer)), (Some("one"), None));
    }
}
