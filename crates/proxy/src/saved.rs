//! What a proxy leaves for the next one in the directory `LENO_STATE_DIR`: the mesh, and the certificates of the node's
//! pods with their keys.

mod certificates;
mod files;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_model::Identity;
use leno_tls::CertificateStore;

use self::certificates::{Certificates, is_certificate};
use self::files::{make_private, read_private, write_private};
use crate::config::Config;

/// How long a certificate's file may take to be written.
const HALF_WRITTEN: Duration = Duration::from_secs(60);
/// The layout of the directory. Another version's files are removed.
const LAYOUT: u32 = 1;
/// A new number at every boot. Pods of an earlier one are gone, and so is what was true of them.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The directory, checked.
pub(crate) struct SavedState {
    dir: PathBuf,
    certificates: Arc<Certificates>,
}

impl SavedState {
    /// The directory that is configured. It is made if it is not there. If it can't be used, that is said, and the proxy
    /// does without.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let dir = config.state_dir.as_deref()?;
        let boot = match fs::read_to_string(BOOT) {
            Ok(boot) => boot,
            Err(error) => {
                tracing::warn!(%error, "{BOOT} can't be read, so nobody could tell whose state is saved; nothing is saved");
                return None;
            }
        };
        let owner = format!(
            "layout {LAYOUT}\nboot {}\nnode {}\ncluster {}\ncontrol plane {}\n",
            boot.trim(),
            config.node,
            config.cluster_id,
            config.xds_address,
        );
        Self::open(dir, &owner, config.secret_ttl)
    }

    /// `owner` says whose state it is. That of another one is removed. Certificates are asked for with a life of `ttl`,
    /// so those that are older have ended.
    fn open(dir: &Path, owner: &str, ttl: Duration) -> Option<Self> {
        let certificates = Arc::new(Certificates::new(dir.join("certificates")));
        let state = Self { dir: dir.to_owned(), certificates };
        match state.prepare(owner, ttl) {
            Ok(()) => Some(state),
            Err(error) => {
                tracing::warn!(
                    dir = %dir.display(), %error,
                    "LENO_STATE_DIR is not used: a proxy that starts while no control plane can be reached will carry nothing"
                );
                None
            }
        }
    }

    /// Where discovery keeps its journal.
    pub(crate) fn mesh(&self) -> PathBuf {
        self.dir.join("mesh")
    }

    /// Where certificates are kept.
    pub(crate) fn certificates(&self) -> Arc<dyn CertificateStore> {
        self.certificates.clone()
    }

    /// Removes the certificates of all other identities: those of pods that left while no proxy ran.
    pub(crate) fn keep_only<'a>(&self, identities: impl Iterator<Item = &'a Identity>) {
        self.certificates.keep_only(identities);
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(&self.dir)?.map(|file| Ok(file?.path())).collect()
    }

    fn prepare(&self, owner: &str, ttl: Duration) -> io::Result<()> {
        make_private(&self.dir)?;
        let whose = self.dir.join("owner");
        let before = match read_private(&whose) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Whatever it is, it does not say that the rest is this proxy's.
            Err(_) => Some(String::new()),
            Ok(text) => Some(text),
        };
        if before.is_none() && self.files()?.iter().any(|file| !is_of_a_proxy(file)) {
            return Err(io::Error::other("it holds other files; name an empty directory, or one that does not exist"));
        }
        make_private(self.certificates.dir())?;
        if before.as_deref() != Some(owner) {
            if before.is_some() {
                tracing::info!(
                    dir = %self.dir.display(),
                    "the saved state is of another boot, node, cluster, control plane or version; it is removed"
                );
            }
            for file in self.files()?.iter().filter(|file| is_of_a_proxy(file) && !file.is_dir()) {
                fs::remove_file(file)?;
            }
            self.keep_only(std::iter::empty());
            // Last, so that nothing is left of another owner once this one is named.
            write_private(&whose, owner)?;
        }
        for file in fs::read_dir(self.certificates.dir())?.flatten() {
            let age =
                file.metadata().and_then(|found| found.modified()).ok().and_then(|written| written.elapsed().ok());
            // A file that is only half there was left by a writer that was killed: writing one takes no time to speak of.
            let most = if is_certificate(&file.path()) { ttl } else { ttl.min(HALF_WRITTEN) };
            if age.is_some_and(|age| age > most) {
                let _ = fs::remove_file(file.path());
            }
        }
        Ok(())
    }
}

/// Whether a proxy has made this file of its directory.
fn is_of_a_proxy(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name == "certificates"
        || ["mesh", "owner", crate::draining::NAME].contains(&name.split('.').next().unwrap_or_default())
}

#[cfg(test)]
#[path = "saved_tests.rs"]
mod tests;
