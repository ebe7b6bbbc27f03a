//! What an operator chose, kept beside the installation, so that an upgrade starts from it.

use leno_kubernetes::{Client, Patch};
use leno_objects::UNINSTALLED_ANNOTATION;
use serde_json::{Value, json};

use super::error::doing;
use super::{ClusterError, requests};
use crate::{Error, Profile, Values};

/// Its ConfigMap.
pub(super) const NAME: &str = "leno-install";

/// The choices of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The profile.
    pub profile: Profile,
    /// What differs from the profile, as YAML.
    pub values: String,
    /// Version of the program that installed it.
    pub version: String,
}

impl Record {
    /// Of these values, by this program.
    ///
    /// # Errors
    ///
    /// If the values can't be written down.
    pub fn of(profile: Profile, values: &Values) -> Result<Self, Error> {
        Ok(Self { profile, values: values.given()?, version: env!("CARGO_PKG_VERSION").to_owned() })
    }

    /// Of the installation in a namespace; `None` if there is none that `leno install` made.
    ///
    /// # Errors
    ///
    /// If the API server can't tell.
    pub async fn read(client: &Client, namespace: &str) -> Result<Option<Self>, ClusterError> {
        let found = client.find::<Value>(&path(namespace)).await;
        let Some(object) = found.map_err(doing("reading what was chosen at the installation"))? else {
            return Ok(None);
        };
        let text = |field: &str| object["data"][field].as_str().unwrap_or_default().to_owned();
        let profile = text("profile").parse().unwrap_or_default();
        Ok(Some(Self { profile, values: text("values.yaml"), version: text("version") }))
    }

    pub(super) async fn write(&self, client: &Client, namespace: &str) -> Result<(), ClusterError> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": NAME,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/part-of": "leno", requests::MANAGED_BY: requests::MANAGER},
            },
            "data": {"profile": self.profile.as_str(), "values.yaml": self.values, "version": self.version},
        });
        let path = format!("{}?{}", path(namespace), requests::AS_MANAGER);
        client.patch(&path, Patch::Apply, &object).await.map_err(doing("keeping what was chosen"))
    }
}

/// Refuses an installation over one with other choices, which would be forgotten without a word.
///
/// # Errors
///
/// [`ClusterError::OtherChoices`], or if the API server can't tell.
pub async fn refuse_other_choices(client: &Client, namespace: &str, record: &Record) -> Result<(), ClusterError> {
    match Record::read(client, namespace).await? {
        Some(there) if (there.profile, &there.values) != (record.profile, &record.values) => {
            Err(ClusterError::OtherChoices { namespace: namespace.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Whether a removal has begun and not come to its end.
///
/// # Errors
///
/// If the API server can't tell.
pub async fn is_ending(client: &Client, namespace: &str) -> Result<bool, ClusterError> {
    let found =
        client.find::<Value>(&path(namespace)).await.map_err(doing("reading what was chosen at the installation"))?;
    Ok(found.is_some_and(|object| object["metadata"]["annotations"][UNINSTALLED_ANNOTATION] == "true"))
}

pub(super) fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/{NAME}")
}
