//! What is asked of an API server: the path of a request, and what its query selects.

/// A path of objects and the query after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Path of all objects of the kind.
    pub(super) collection: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    query: Vec<(String, String)>,
}

impl Request {
    /// Reads path and query; `None` if they are about no objects.
    pub(super) fn parse(target: &str) -> Option<Self> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (prefix, rest) = match &parts[..] {
            ["api", version, rest @ ..] => (format!("/api/{version}"), rest),
            ["apis", group, version, rest @ ..] => (format!("/apis/{group}/{version}"), rest),
            _ => return None,
        };
        let own = |text: &&str| Some((*text).to_owned());
        let (plural, namespace, name) = match rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, None, own(name)),
            ["namespaces", namespace, plural] => (plural, own(namespace), None),
            // What follows the name is a part of the object, such as its status.
            ["namespaces", namespace, plural, name, ..] => (plural, own(namespace), own(name)),
            _ => return None,
        };
        let query = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Some(Self { collection: format!("{prefix}/{plural}"), namespace, name, query })
    }

    /// A parameter of the query.
    pub(super) fn parameter(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// Whether a parameter of the query is true.
    pub(super) fn flag(&self, key: &str) -> bool {
        matches!(self.parameter(key), Some("1" | "true"))
    }

    /// A number in the query.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.parameter(key)?.parse().ok()
    }

    /// The objects that are asked for.
    pub(super) fn selection(&self) -> Selection {
        Selection {
            namespace: self.namespace.clone(),
            fields: terms(self.parameter("fieldSelector").unwrap_or_default()),
            labels: terms(self.parameter("labelSelector").unwrap_or_default()),
        }
    }
}

/// Which objects of a collection are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selection {
    namespace: Option<String>,
    fields: Vec<Term>,
    labels: Vec<Term>,
}

impl Selection {
    /// Whether an object is among them.
    pub(super) fn has(&self, namespace: &str, name: &str, labels: &[(String, String)]) -> bool {
        let label = |key: &str| labels.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str());
        let field = |key: &str| match key {
            "metadata.name" => Some(name),
            "metadata.namespace" => Some(namespace),
            // No object here is of a phase or a type that somebody would leave out.
            _ => None,
        };
        self.namespace.as_deref().is_none_or(|own| own == namespace)
            && self.fields.iter().all(|term| term.holds(field(&term.key)))
            && self.labels.iter().all(|term| term.holds(label(&term.key)))
    }
}

/// One requirement of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    key: String,
    must: Must,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Must {
    Be(Vec<String>),
    NotBe(Vec<String>),
    Exist,
    NotExist,
}

impl Term {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
        match &self.must {
            Must::Be(values) => among(values),
            Must::NotBe(values) => !among(values),
            Must::Exist => value.is_some(),
            Must::NotExist => value.is_none(),
        }
    }
}

/// The requirements of a selector: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
fn terms(selector: &str) -> Vec<Term> {
    let mut depth = 0_i32;
    let parts = selector.split(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).map(term).collect()
}

fn term(text: &str) -> Term {
    let list = |text: &str| {
        let inner = text.trim().trim_start_matches('(').trim_end_matches(')');
        inner.split(',').map(|value| value.trim().to_owned()).collect()
    };
    let one = |text: &str| vec![text.trim_start_matches('=').trim().to_owned()];
    let (key, must) = if let Some((key, values)) = text.split_once(" notin ") {
        (key, Must::NotBe(list(values)))
    } else if let Some((key, values)) = text.split_once(" in ") {
        (key, Must::Be(list(values)))
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Must::NotBe(one(value)))
    } else if let Some((key, value)) = text.split_once('=') {
        (key, Must::Be(one(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Must::NotExist)
    } else {
        (text, Must::Exist)
    };
    Term { key: key.trim().to_owned(), must }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        let read = |target: &str| {
            let request = Request::parse(target)?;
            Some((request.collection, request.namespace.unwrap_or_default(), request.name.unwrap_or_default()))
        };
        let whole = |collection: &str, namespace: &str, name: &str| {
            Some((collection.to_owned(), namespace.to_owned(), name.to_owned()))
        };
        assert_eq!(read("/api/v1/pods?limit=5"), whole("/api/v1/pods", "", ""));
        assert_eq!(read("/api/v1/namespaces"), whole("/api/v1/namespaces", "", ""));
        assert_eq!(read("/api/v1/namespaces/a"), whole("/api/v1/namespaces", "", "a"));
        let pods = "/api/v1/namespaces/a/pods";
        assert_eq!(read(pods), whole("/api/v1/pods", "a", ""));
        assert_eq!(read(&format!("{pods}/b/status")), whole("/api/v1/pods", "a", "b"));
        let slices = "/apis/discovery.k8s.io/v1/endpointslices";
        assert_eq!(read(slices), whole(slices, "", ""));
        for other in ["/version", "/apis", "/api", "/", "/healthz"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn selectors_select() {
        let has = |query: &str, namespace: &str, name: &str, labels: &[(&str, &str)]| {
            let request = Request::parse(&format!("/api/v1/pods?{query}")).unwrap();
            let labels: Vec<_> = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            request.selection().has(namespace, name, &labels)
        };
        let managed = "labelSelector=managed-by%21%3Dcontroller";
        assert!(!has(managed, "", "", &[("managed-by", "controller")]));
        assert!(has(managed, "", "", &[("managed-by", "me")]) && has(managed, "", "", &[]));
        assert!(has("labelSelector=a%3Db", "", "", &[("a", "b")]) && !has("labelSelector=a%3Db", "", "", &[]));
        let several = "labelSelector=a+in+%28b%2Cc%29%2C%21d%2Ce";
        assert!(has(several, "", "", &[("a", "c"), ("e", "")]));
        assert!(!has(several, "", "", &[("a", "c"), ("e", ""), ("d", "")]) && !has(several, "", "", &[("a", "b")]));
        assert!(!has("labelSelector=a+notin+%28b%29", "", "", &[("a", "b")]));
        assert!(has("fieldSelector=metadata.name%3Dx", "n", "x", &[]));
        assert!(!has("fieldSelector=metadata.name%3Dx", "n", "y", &[]));
        assert!(has("fieldSelector=status.phase%21%3DFailed", "n", "y", &[]));
    }
}
