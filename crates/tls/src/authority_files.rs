//! The authority's directory, laid out like Istio's `cacerts` secret:
//!
//! | file | content |
//! |---|---|
//! | `root-cert.pem` | the roots everybody trusts |
//! | `root-key.pem` | the root's key; ours, Istio keeps it elsewhere. Without it, nothing renews the next two |
//! | `ca-cert.pem`, `ca-key.pem` | the signing (intermediate) certificate and its key |
//! | `cert-chain.pem` | the signing certificate and what leads from it to the root |
//! | `in-use-key.pem` | ours: what signs now, key first, root last, while the files above name a root that waits to be trusted |
//! | `trusted-roots.pem` | ours: the roots that were trusted at the last change, so that a restart does not forget them |
//!
//! A file is replaced by a rename, so a crash leaves the old one or the new one. Keys are
//! written before their certificates: a key without its certificate is a write that never
//! finished, and is made again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Error;
use crate::authority_elsewhere::AuthorityFiles;

pub(crate) const ROOT_CERT: &str = "root-cert.pem";
pub(crate) const ROOT_KEY: &str = "root-key.pem";
pub(crate) const CA_CERT: &str = "ca-cert.pem";
pub(crate) const CA_KEY: &str = "ca-key.pem";
pub(crate) const CERT_CHAIN: &str = "cert-chain.pem";
pub(crate) const TRUSTED_ROOTS: &str = "trusted-roots.pem";
/// Holds a key. Its name shows that, and so it gets a key's file mode.
pub(crate) const IN_USE: &str = "in-use-key.pem";
const LOCK: &str = ".lock";

/// The directory of one authority.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// On disk, locked while this lives.
    Disk { _lock: File },
    /// Not on disk; the path is only a name.
    Elsewhere(AuthorityFiles),
}

/// The contents of the directory; `None` for a missing file.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) root_cert: Option<String>,
    pub(crate) root_key: Option<String>,
    pub(crate) ca_cert: Option<String>,
    pub(crate) ca_key: Option<String>,
    pub(crate) cert_chain: Option<String>,
}

impl Directory {
    /// Opens or creates the directory.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file_error = |action: &'static str| {
            let path = path.to_owned();
            move |source: io::Error| Error::File { action, path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(file_error("create the directory"))?;
        let metadata = fs::metadata(path).map_err(file_error("read the directory"))?;
        if metadata.mode() & 0o022 != 0 {
            return Err(Error::Directory {
                path: path.to_owned(),
                problem: format!("others may write to it (mode {:o})", metadata.mode() & 0o7777),
                action: format!("run: chmod 700 {}", path.display()),
            });
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK))
            .map_err(file_error("lock the directory"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => Error::Directory {
                path: path.to_owned(),
                problem: "another process uses it".to_owned(),
                action: "stop the other control plane, or give this one a directory of its own".to_owned(),
            },
            fs::TryLockError::Error(source) => {
                Error::File { action: "lock the directory", path: path.to_owned(), source }
            }
        })?;
        Ok(Self { path: path.to_owned(), place: Place::Disk { _lock: lock } })
    }

    /// The directory that somebody else keeps.
    pub(crate) fn elsewhere(files: AuthorityFiles) -> Self {
        Self { path: files.name().into(), place: Place::Elsewhere(files) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn read(&self) -> Result<Contents, Error> {
        Ok(Contents {
            root_cert: self.read_file(ROOT_CERT)?,
            root_key: self.read_key(ROOT_KEY)?,
            ca_cert: self.read_file(CA_CERT)?,
            ca_key: self.read_key(CA_KEY)?,
            cert_chain: self.read_file(CERT_CHAIN)?,
        })
    }

    pub(crate) fn read_in_use(&self) -> Result<Option<String>, Error> {
        self.read_key(IN_USE)
    }

    /// A file's contents, and when it was written.
    pub(crate) fn read_dated(&self, name: &str) -> Result<Option<(String, SystemTime)>, Error> {
        let Some(text) = self.read_file(name)? else { return Ok(None) };
        let path = self.path.join(name);
        if let Place::Elsewhere(files) = &self.place {
            // If nobody knows, roots must not be dropped too soon.
            return Ok(Some((text, files.written_at(name).unwrap_or_else(SystemTime::now))));
        }
        let written = fs::metadata(&path).and_then(|metadata| metadata.modified());
        written.map(|at| Some((text, at))).map_err(|source| Error::File { action: "read", path, source })
    }

    fn read_file(&self, name: &str) -> Result<Option<String>, Error> {
        if let Place::Elsewhere(files) = &self.place {
            return Ok(files.read(name));
        }
        let path = self.path.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { action: "read", path, source }),
        }
    }

    fn read_key(&self, name: &str) -> Result<Option<String>, Error> {
        if let Place::Elsewhere(_) = &self.place {
            return self.read_file(name);
        }
        let path = self.path.join(name);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.mode() & 0o077 != 0 => Err(Error::Directory {
                problem: format!("others may read this key (mode {:o})", metadata.mode() & 0o7777),
                action: format!("run: chmod 600 {}; if others could read it, start a new authority", path.display()),
                path,
            }),
            Ok(_) => self.read_file(name),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File { action: "read", path, source }),
        }
    }

    /// Replaces a whole file. Only its owner can read it until the rename; for keys also afterwards.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        if let Place::Elsewhere(files) = &self.place {
            files.write(name, text, name == TRUSTED_ROOTS);
            return Ok(());
        }
        let path = self.path.join(name);
        let temporary = self.path.join(format!(".{name}.new"));
        let write = || -> io::Result<()> {
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mode = if name.ends_with("key.pem") { 0o600 } else { 0o644 };
            let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|source| Error::File { action: "write", path: path.clone(), source })
    }
}
