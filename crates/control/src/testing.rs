//! Objects from YAML, for tests.

use leno_objects::Change;
use leno_objects::{Kind, Object, decode};

/// The objects of a stream of YAML documents.
pub(crate) fn load(yaml: &str) -> Vec<Object> {
    let documents = yaml.split("\n---").filter(|document| !document.trim().is_empty());
    documents
        .map(|document| {
            let field = |name: &str| {
                let line = document.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.strip_prefix(':')).unwrap_or_else(|| panic!("no {name} in {document}")).trim()
            };
            let kind = Kind::from_api(field("apiVersion"), field("kind")).expect("a kind we know");
            let decoded = serde_saphyr::with_deserializer_from_str(document, |from| decode(kind, from));
            decoded.unwrap_or_else(|error| panic!("{error}\n{document}")).object
        })
        .collect()
}

/// The same, as changes.
pub(crate) fn upserts(yaml: &str) -> Vec<Change> {
    load(yaml).into_iter().map(Change::upsert).collect()
}
