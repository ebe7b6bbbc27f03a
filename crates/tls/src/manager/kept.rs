//! Certificates that outlast the process: what a [`CertificateStore`] is handed, and what it must hand back.

use std::fmt;

use leno_model::Identity;

use crate::PrivateKey;
use crate::certificate::encode_pem;

/// An issued certificate with its key, as text to be kept.
pub(crate) struct KeptCertificate {
    key: PrivateKey,
    /// The leaf, its intermediates, and last the root bundle, each in PEM.
    chain: Vec<String>,
}

/// Where certificates are kept for the next process, which may start while no authority can be reached. Keys are in
/// them: whoever can read the store has the node's identities.
pub trait CertificateStore: fmt::Debug + Send + Sync {
    /// The text that was saved last for this identity.
    fn load(&self, identity: &Identity) -> Option<String>;

    /// Saves a text for the next process. A failure is the store's to report.
    fn save(&self, identity: &Identity, text: &str);

    /// No workload here has this identity any more.
    fn remove(&self, identity: &Identity);
}

/// Between the certificates of a text.
const PART: &str = "# next\n";

impl KeptCertificate {
    pub(crate) fn new(key: PrivateKey, chain: Vec<String>) -> Self {
        Self { key, chain }
    }

    /// Reads what [`Self::text`] has written.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(PART);
        let key = PrivateKey::from_pem(parts.next()?).ok()?;
        Some(Self { key, chain: parts.map(str::to_owned).collect() })
    }

    /// The text; `None` for a key that has no PKCS#8 form.
    pub(crate) fn text(&self) -> Option<String> {
        let mut text = encode_pem("PRIVATE KEY", self.key.secret_pkcs8_der()?);
        for part in &self.chain {
            text.push_str(PART);
            text.push_str(part);
            if !part.ends_with('\n') {
                text.push('\n');
            }
        }
        Some(text)
    }

    pub(crate) fn into_parts(self) -> (PrivateKey, Vec<String>) {
        (self.key, self.chain)
    }
}
