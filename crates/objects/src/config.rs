//! What programs are configured with: ConfigMap and Secret, and the references to them.

pub(crate) mod rules;

use std::collections::BTreeMap;

use leno_model::Name;

use super::decode::object;
use super::meta::ObjectMeta;

object! {
    /// Texts by name.
    pub struct ConfigMap {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// Texts.
        data: BTreeMap<Name, String> = "data" (check rules::keys),
        /// Bytes, each in base64.
        binary_data: BTreeMap<Name, String> = "binaryData" (check rules::base64_values),
    }
    silent ["apiVersion", "kind", "immutable"]
}

object! {
    /// Texts by name that are not for everybody's eyes.
    pub struct Secret {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// Bytes, each in base64.
        data: BTreeMap<Name, String> = "data" (check rules::base64_values),
        /// Texts; each counts before one of the same name in `data`.
        string_data: BTreeMap<Name, String> = "stringData" (check rules::keys),
    }
    silent ["apiVersion", "kind", "immutable", "type"]
}

impl ConfigMap {
    /// The bytes of one entry.
    pub fn entry(&self, key: &str) -> Option<Vec<u8>> {
        let text = self.data.get(key).map(|text| text.as_bytes().to_vec());
        text.or_else(|| rules::decoded(self.binary_data.get(key)?).ok())
    }

    /// The names of all entries, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Name> {
        self.data.keys().chain(self.binary_data.keys())
    }
}

impl Secret {
    /// The bytes of one entry.
    pub fn entry(&self, key: &str) -> Option<Vec<u8>> {
        let text = self.string_data.get(key).map(|text| text.as_bytes().to_vec());
        text.or_else(|| rules::decoded(self.data.get(key)?).ok())
    }

    /// The names of all entries, in order; one may come twice.
    pub fn keys(&self) -> impl Iterator<Item = &Name> {
        self.data.keys().chain(self.string_data.keys())
    }
}

object! {
    /// One entry of a ConfigMap or a Secret.
    pub struct KeySelector {
        /// Name of the ConfigMap or Secret, in the pod's namespace.
        name: String = "name" (required),
        /// Name of the entry.
        key: String = "key" (required),
        /// Whether it may be missing.
        optional: bool = "optional",
    }
}

object! {
    /// All entries of a ConfigMap or a Secret as variables.
    pub struct EnvFromSource {
        /// Put before each name.
        prefix: String = "prefix",
        /// The ConfigMap.
        config_map_ref: Option<NameReference> = "configMapRef",
        /// The Secret.
        secret_ref: Option<NameReference> = "secretRef",
    }
}

object! {
    /// A ConfigMap or a Secret, in the pod's namespace.
    pub struct NameReference {
        /// Its name.
        name: String = "name" (required),
        /// Whether it may be missing.
        optional: bool = "optional",
    }
}
