//! One installation: the objects that a namespace and values give.

use serde_json::{Value, json};

use crate::chart::{self, Chart};
use crate::{Error, Values, template, yaml};

/// Where the mesh is installed unless told otherwise.
pub const NAMESPACE: &str = "leno-system";

/// One installation.
#[derive(Debug, Clone)]
pub struct Release {
    /// The namespace of all objects that have one.
    pub namespace: String,
    /// How it is configured.
    pub values: Values,
    /// Whether the definitions of Istio's kinds belong to it.
    pub crds: bool,
}

/// One object.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// The template it comes from, as `helm template` says it.
    pub source: String,
    /// It as YAML, with the template's comments.
    pub text: String,
    /// It as JSON.
    pub object: Value,
}

impl Manifest {
    /// Its kind.
    pub fn kind(&self) -> &str {
        self.object["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

impl Release {
    /// The objects, in an order in which they can be applied.
    ///
    /// # Errors
    ///
    /// If a value is wrong, or the chart is.
    pub fn render(&self) -> Result<Vec<Manifest>, Error> {
        let values = self.values.checked()?;
        let mut manifests = Vec::new();
        if self.crds {
            manifests.extend(definitions()?);
        }
        manifests.extend(render(&chart::LENO, &self.namespace, values)?);
        // The sort keeps the order of equals.
        manifests.sort_by_key(|manifest| rank(manifest.kind()));
        Ok(manifests)
    }
}

/// The definitions of the kinds that the mesh reads. No value changes them.
pub(crate) fn definitions() -> Result<Vec<Manifest>, Error> {
    render(&chart::CRDS, NAMESPACE, &json!({}))
}

/// Helm's order of installing, of the kinds that there are here.
const ORDER: [&str; 15] = [
    "Namespace",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "DaemonSet",
    "Deployment",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

fn rank(kind: &str) -> usize {
    ORDER.iter().position(|known| *known == kind).unwrap_or(ORDER.len())
}

fn render(chart: &Chart, namespace: &str, values: &Value) -> Result<Vec<Manifest>, Error> {
    let version = env!("CARGO_PKG_VERSION");
    let data = json!({
        "Values": values,
        "Release": {"Name": "leno", "Namespace": namespace, "Service": "leno"},
        "Chart": {"Name": chart.name, "Version": version, "AppVersion": version},
    });
    let mut manifests = Vec::new();
    for (file, text) in chart.templates {
        let wrong = |reason| Error::Chart { file, reason };
        let rendered = template::render(chart.parts, text, &data).map_err(wrong)?;
        for document in documents(&rendered) {
            let object = yaml::object(document).map_err(wrong)?;
            if object.as_object().is_none_or(serde_json::Map::is_empty) {
                continue;
            }
            let source = format!("{}/templates/{file}", chart.name);
            manifests.push(Manifest { source, text: format!("{}\n", document.trim()), object });
        }
    }
    Ok(manifests)
}

/// The documents of a text, as texts: their comments are for whoever reads what is applied.
fn documents(text: &str) -> impl Iterator<Item = &str> {
    let bounds = text.match_indices("\n---\n").map(|(at, _)| at).chain([text.len()]);
    bounds.scan(0, move |start, end| {
        let document = &text[*start..end];
        *start = (end + "\n---\n".len()).min(text.len());
        Some(document)
    })
}

#[cfg(test)]
#[path = "release_tests.rs"]
mod tests;
