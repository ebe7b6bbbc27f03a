//! The mesh's own certificate authority: a root that signs only intermediates, and an intermediate that signs
//! everything else.

mod issuing;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use leno_model::Name;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;

use crate::Error;
use crate::authority_elsewhere::AuthorityFiles;
use crate::authority_files::{CA_CERT, CA_KEY, Contents, Directory, ROOT_CERT, ROOT_KEY, TRUSTED_ROOTS};
use crate::certificate::{describe, parse_pem_certificates};
use crate::rotation::Rotation;
use crate::signing::{CaOptions, RESTORE, Root, Signing, bundle_pem};

/// A root and an intermediate, on disk or in memory.
pub struct CertificateAuthority {
    trust_domain: Name,
    options: CaOptions,
    directory: Option<Directory>,
    rotation: Rotation,
    /// Whether the file of trusted roots still holds a root that is no longer trusted. Locked while that file is
    /// written.
    stale: Mutex<bool>,
    /// The signing certificate that the directory records. Locked while that is written.
    in_use: Mutex<Option<Arc<Signing>>>,
}

impl CertificateAuthority {
    /// Opens the authority in `directory`, or creates one if the directory is empty or missing.
    ///
    /// It also reads a `cacerts` directory of Istio's. Without `root-key.pem`, the signing certificate is used until it
    /// expires and is not renewed.
    ///
    /// # Errors
    /// If the directory is incomplete, damaged, readable by others, or in use. The text says what to do.
    pub fn open(directory: &Path, trust_domain: impl Into<Name>, options: CaOptions) -> Result<Self, Error> {
        Self::in_directory(Directory::open(directory)?, trust_domain.into(), options)
    }

    /// Opens the authority whose files somebody else keeps, or creates one if there are none.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_elsewhere(
        files: AuthorityFiles,
        trust_domain: impl Into<Name>,
        options: CaOptions,
    ) -> Result<Self, Error> {
        Self::in_directory(Directory::elsewhere(files), trust_domain.into(), options)
    }

    fn in_directory(directory: Directory, trust_domain: Name, options: CaOptions) -> Result<Self, Error> {
        let contents = directory.read()?;
        let (root, signing) = Self::load(&directory, &contents, &trust_domain, &options, true)?;
        // A root that signed for an earlier process may be new to others.
        let had_root = contents.root_cert.is_some();
        let signed_until = if had_root { options.clock.now() + options.max_ttl } else { SystemTime::UNIX_EPOCH };
        let (known, written) = Self::trusted_before(&directory, &options)?;
        let rotation = match Self::still_signing(&directory, &signing, &options) {
            Some(before) => {
                let announced = if known.contains(&signing.root) { written } else { options.clock.now() };
                let rotation = Rotation::new(root, before, signed_until);
                rotation.announce_again(signing, announced + options.max_ttl);
                rotation
            }
            None => Rotation::new(root, signing, signed_until),
        };
        let authority = Self {
            trust_domain,
            options,
            directory: Some(directory),
            rotation,
            stale: Mutex::new(false),
            in_use: Mutex::new(None),
        };
        authority.remember_roots(known, written)?;
        authority.write_in_use();
        Ok(authority)
    }

    /// The root and signing certificate of a directory. They are created and written if the directory is to have its
    /// own. An unusable signing certificate is replaced only if `may_repair` is set.
    fn load(
        directory: &Directory,
        contents: &Contents,
        trust_domain: &Name,
        options: &CaOptions,
        may_repair: bool,
    ) -> Result<(Root, Signing), Error> {
        // These files are written after the root was complete.
        let was_complete = contents.ca_cert.is_some() || contents.ca_key.is_some() || contents.cert_chain.is_some();
        let root = match (&contents.root_cert, &contents.root_key) {
            (None, _) if !was_complete => {
                // The directory is new, or a first start was cut off before its root was complete. Nobody can have
                // trusted that root.
                let root = Root::generate(trust_domain, options)?;
                if let Some(key) = &root.key {
                    directory.write(ROOT_KEY, &key.serialize_pem())?;
                }
                directory.write(ROOT_CERT, &bundle_pem(&root.certificates))?;
                root
            }
            (None, _) => {
                return Err(Error::Directory {
                    path: directory.path().join(ROOT_CERT),
                    problem: "it is missing beside an existing signing certificate".to_owned(),
                    action: RESTORE.to_owned(),
                });
            }
            (Some(certificate), key) => Root::load(directory, certificate, key.as_deref())?,
        };
        let signing = match Signing::load(directory, &root, contents) {
            Ok(Some(signing)) if options.clock.now() < signing.not_after => signing,
            Ok(_) if !may_repair => {
                return Err(Error::Directory {
                    path: directory.path().to_owned(),
                    problem: format!("{CA_CERT} has expired, or it or {CA_KEY} is missing"),
                    action: "put both there; the old ones go on".to_owned(),
                });
            }
            Ok(found) => {
                if root.key.is_none() {
                    return Err(match found {
                        Some(_) => Error::AuthorityExpired { renewable: false },
                        None => Error::Directory {
                            path: directory.path().to_owned(),
                            problem: format!("{CA_CERT} or {CA_KEY} is missing, and there is no {ROOT_KEY}"),
                            action: RESTORE.to_owned(),
                        },
                    });
                }
                let signing = root.new_signing(trust_domain, options)?;
                signing.write(directory)?;
                signing
            }
            Err(error) if may_repair && root.key.is_some() => {
                tracing::warn!(%error, "signing certificate is unusable; making a new one from the root");
                let signing = root.new_signing(trust_domain, options)?;
                signing.write(directory)?;
                signing
            }
            Err(error) => return Err(error),
        };
        Ok((root, signing))
    }

    /// The certificate that signed last, if it is below another root than `configured`. It keeps signing until the
    /// configured root is trusted.
    fn still_signing(directory: &Directory, configured: &Signing, options: &CaOptions) -> Option<Signing> {
        match Signing::read_in_use(directory) {
            Ok(before) => {
                before.filter(|before| before.root != configured.root && options.clock.now() < before.not_after)
            }
            Err(error) => {
                tracing::warn!(%error, "what signed before can't be read, so the configured root signs at once");
                None
            }
        }
    }

    /// The roots that were trusted when the directory was last in use, and since when. Empty if that is not recorded.
    fn trusted_before(
        directory: &Directory,
        options: &CaOptions,
    ) -> Result<(Vec<CertificateDer<'static>>, SystemTime), Error> {
        match directory.read_dated(TRUSTED_ROOTS)? {
            Some((pem, written)) => Ok((parse_pem_certificates(&pem)?, written)),
            None => Ok((Vec::new(), options.clock.now())),
        }
    }

    /// Records in the directory which certificate signs now, unless that is recorded already.
    fn write_in_use(&self) {
        let Some(directory) = &self.directory else { return };
        let mut written = self.in_use.lock();
        let signing = self.rotation.signing();
        if written.as_ref().is_some_and(|written| Arc::ptr_eq(written, &signing)) {
            return;
        }
        match signing.write_in_use(directory) {
            Ok(()) => *written = Some(signing),
            Err(error) => {
                tracing::warn!(%error, "what signs can't be written down yet; a restart would let another root wait again")
            }
        }
    }

    /// Loads the directory again. If it holds another root or signing certificate, takes that over and returns true.
    /// The new one signs when every proxy trusts it ([`Self::all_trust_it`]), or when everything has expired that was
    /// signed before it was announced. The old root stays trusted until everything that it signed has expired.
    ///
    /// # Errors
    /// As [`Self::open`]. Then nothing changes.
    pub fn reload(&self) -> Result<bool, Error> {
        let Some(directory) = &self.directory else { return Ok(false) };
        let contents = directory.read()?;
        // A missing root is about to be replaced. If we created one, the operator would not know it.
        if contents.root_cert.is_none() {
            return Err(Error::Directory {
                path: directory.path().join(ROOT_CERT),
                problem: "it is missing".to_owned(),
                action: "put the new one there; the old one goes on".to_owned(),
            });
        }
        let configured = contents.root_cert.as_deref().map(parse_pem_certificates).transpose()?.unwrap_or_default();
        let signing = contents.ca_cert.as_deref().map(parse_pem_certificates).transpose()?.unwrap_or_default();
        if self.rotation.is_of(&configured, signing.first()) {
            return Ok(false);
        }
        // Below the same root, this is the operator's change, half done. Our own certificate would overwrite it.
        let may_repair = !self.rotation.is_below(configured.first());
        let (root, signing) = Self::load(directory, &contents, &self.trust_domain, &self.options, may_repair)?;
        let _writing = self.stale.lock();
        let mut trusted = parse_pem_certificates(&self.root_pem())?;
        for root in &root.certificates {
            if !trusted.contains(root) {
                trusted.push(root.clone());
            }
        }
        // This comes first, so that a failure here is retried at the next check.
        directory.write(TRUSTED_ROOTS, &bundle_pem(&trusted))?;
        self.rotation.announce(root, signing);
        Ok(true)
    }

    /// Trusts the roots that were trusted when the directory was last in use and are no longer configured, until
    /// everything that was signed then must have expired.
    fn remember_roots(&self, known: Vec<CertificateDer<'static>>, written: SystemTime) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let now = self.options.clock.now();
        let configured = parse_pem_certificates(&self.root_pem())?;
        let changed = configured.iter().any(|root| !known.contains(root));
        // The last certificate of the old root lives for one lifetime. The new root may have waited for another one
        // before that.
        let since = if changed { now } else { written };
        self.rotation.remember(known, since + 2 * self.options.max_ttl);
        let gone = self.rotation.tick(now);
        if changed || gone { directory.write(TRUSTED_ROOTS, &self.root_pem()) } else { Ok(()) }
    }

    /// Creates a new root, for an authority in memory; see [`Self::reload`].
    ///
    /// # Errors
    /// If the crypto library can't generate keys.
    pub fn rotate_root(&self) -> Result<(), Error> {
        let root = Root::generate(&self.trust_domain, &self.options)?;
        let signing = root.new_signing(&self.trust_domain, &self.options)?;
        self.rotation.announce(root, signing);
        Ok(())
    }

    /// A number that changes when another root begins to sign.
    pub(crate) fn signing_number(&self) -> u64 {
        self.rotation.number()
    }

    /// Whether a new signing certificate waits for its root to be trusted.
    pub fn announces_a_root(&self) -> bool {
        self.rotation.announces()
    }

    /// Every proxy trusts the current value of [`Self::trust`], so the announced root may sign.
    pub fn all_trust_it(&self) {
        self.rotation.sign_with_the_next();
        self.write_in_use();
    }

    /// The trusted roots as one PEM bundle, and its changes. The root of the signing certificate is the first one.
    pub fn trust(&self) -> watch::Receiver<Arc<str>> {
        self.rotation.trust()
    }

    /// Drops roots that are no longer needed, and lets a new root sign that has waited long enough.
    pub fn tick(&self) {
        self.advance(self.options.clock.now());
        self.write_in_use();
        let Some(directory) = &self.directory else { return };
        let mut stale = self.stale.lock();
        if *stale {
            // Otherwise a start after the next change would trust the dropped root again.
            match directory.write(TRUSTED_ROOTS, &self.root_pem()) {
                Ok(()) => *stale = false,
                Err(error) => tracing::warn!(%error, "a root that is no longer trusted stays in its file for now"),
            }
        }
    }

    /// As [`Self::tick`], without writing files.
    fn advance(&self, now: SystemTime) {
        if self.rotation.tick(now) {
            *self.stale.lock() = true;
        }
    }

    /// An authority in memory, which lives as long as this process.
    ///
    /// # Errors
    /// If the crypto library can't generate keys.
    pub fn ephemeral(trust_domain: impl Into<Name>, options: CaOptions) -> Result<Self, Error> {
        let trust_domain = trust_domain.into();
        let root = Root::generate(&trust_domain, &options)?;
        let signing = root.new_signing(&trust_domain, &options)?;
        let rotation = Rotation::new(root, signing, SystemTime::UNIX_EPOCH);
        Ok(Self {
            trust_domain,
            options,
            directory: None,
            rotation,
            stale: Mutex::new(false),
            in_use: Mutex::new(None),
        })
    }

    /// The trust domain this authority signs for.
    pub fn trust_domain(&self) -> &Name {
        &self.trust_domain
    }

    /// The trusted roots as one PEM bundle.
    pub fn root_pem(&self) -> String {
        self.trust().borrow().to_string()
    }

    /// End of the signing certificate's validity.
    pub fn signing_not_after(&self) -> SystemTime {
        self.rotation.signing().not_after
    }

    /// End of the validity of the root that signs.
    ///
    /// # Errors
    /// If the root can't be read.
    pub fn root_not_after(&self) -> Result<SystemTime, Error> {
        Ok(describe(&self.rotation.signing().root)?.not_after)
    }

    /// Replaces the signing certificate now. Certificates signed before stay valid: their
    /// holders present the old intermediate themselves.
    ///
    /// # Errors
    /// If the root's key is missing, the root has expired, or the files can't be written.
    pub fn rotate_intermediate(&self) -> Result<(), Error> {
        self.rotation.renew(|_, _| true, |root| self.renew(root))
    }

    fn renew(&self, root: &Root) -> Result<Signing, Error> {
        let signing = root.new_signing(&self.trust_domain, &self.options)?;
        if let Some(directory) = &self.directory {
            signing.write(directory)?;
        }
        tracing::info!(not_after = ?signing.not_after, "made a new signing certificate");
        Ok(signing)
    }

    /// The signing certificate, renewed if it is past half its life.
    fn current_signing(&self) -> Result<Arc<Signing>, Error> {
        let now = self.options.clock.now();
        self.advance(now);
        let renewed = self
            .rotation
            .renew(|signing, root| root.key.is_some() && signing.wants_renewal(now), |root| self.renew(root));
        let current = self.rotation.signing();
        match renewed {
            _ if now >= current.not_after => Err(renewed.err().unwrap_or(Error::AuthorityExpired { renewable: false })),
            // The old one still signs. The next request tries again.
            Err(error) => {
                tracing::warn!(%error, "cannot renew the signing certificate yet");
                Ok(current)
            }
            Ok(()) => Ok(current),
        }
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("trust_domain", &self.trust_domain)
            .field("directory", &self.directory.as_ref().map(Directory::path))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
