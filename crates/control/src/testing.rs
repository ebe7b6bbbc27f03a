//! Objects from YAML, for tests.

use leno_objects::{Change, Kind, Mode, Object, decode};

use crate::translate::Options;
use crate::{Controller, Feed};

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
            let decoded = serde_saphyr::with_deserializer_from_str(document, |from| decode(kind, Mode::Strict, from));
            decoded.unwrap_or_else(|error| panic!("{error}\n{document}")).object
        })
        .collect()
}

/// The objects of a stream of YAML documents, as changes.
pub(crate) fn upserts(yaml: &str) -> Vec<Change> {
    load(yaml).into_iter().map(Change::upsert).collect()
}

/// A controller whose feed has brought all objects, and that feed.
pub(crate) fn fed(yaml: &str) -> (Controller, Feed) {
    let controller = Controller::new(Options::default());
    let feed = Feed::announce(controller.clone(), Kind::ALL);
    feed.replace(load(yaml));
    (controller, feed)
}
