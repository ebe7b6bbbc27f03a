//! Paths of an API server.

use serde_json::Value;

/// The resource that a request's path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    /// Path of all objects of the kind.
    pub(super) collection: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    query: Vec<(String, String)>,
}

/// The path of all objects of a kind.
pub(super) fn collection(api_version: &str, plural: &str) -> String {
    let prefix = if api_version.contains('/') { "apis" } else { "api" };
    format!("/{prefix}/{api_version}/{plural}")
}

impl Path {
    pub(super) fn parse(target: &str) -> Option<Self> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (version, rest) = match &parts[..] {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let own = |text: &&str| Some((*text).to_owned());
        let (plural, namespace, name) = match rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, None, own(name)),
            ["namespaces", namespace, plural] => (plural, own(namespace), None),
            ["namespaces", namespace, plural, name, ..] => (plural, own(namespace), own(name)),
            _ => return None,
        };
        let query = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Some(Self { collection: collection(&version, plural), namespace, name, query })
    }

    pub(super) fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// Whether an object belongs to the result.
    pub(super) fn selects(&self, object: &Value) -> bool {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let field = |name: &str| self.query("fieldSelector").and_then(|selector| selector.strip_prefix(name));
        let metadata = &object["metadata"];
        self.namespace.as_deref().is_none_or(|own| own == text(&metadata["namespace"]))
            && field("metadata.name=").is_none_or(|own| own == text(&metadata["name"]))
            && field("spec.nodeName=").is_none_or(|own| own == text(&object["spec"]["nodeName"]))
            && self.selects_labels(&metadata["labels"])
    }

    /// Whether an object with these labels is among those that are asked for: `labelSelector=a=b,c=d`.
    fn selects_labels(&self, labels: &Value) -> bool {
        let wanted = self.query("labelSelector").unwrap_or_default();
        wanted.split(',').filter_map(|pair| pair.split_once('=')).all(|(key, value)| labels[key] == value)
    }
}
