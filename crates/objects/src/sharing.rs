//! What objects have in common, kept once.
//!
//! The pods of one Deployment say the same about their containers, their owner and most of their labels, and
//! thousands of them are kept for long.

use std::hash::{BuildHasher, Hash, RandomState};

use leno_model::Name;

use crate::Object;
use crate::meta::{Condition, Labels, ObjectMeta, OwnerReference};
use crate::workload::{Container, Pod};

/// As many things of each sort are remembered as there may be Deployments that change at the same time. What
/// is forgotten meanwhile is kept once more, which costs memory and nothing else.
const REMEMBERED: usize = 4096;

/// Remembers what objects were made of.
#[derive(Debug, Default)]
pub struct Sharing {
    hasher: RandomState,
    namespaces: Recent<Name>,
    labels: Recent<Labels>,
    owners: Recent<std::sync::Arc<[OwnerReference]>>,
    containers: Recent<std::sync::Arc<[Container]>>,
    conditions: Recent<std::sync::Arc<[Condition]>>,
}

/// The last thing of each hash.
#[derive(Debug)]
struct Recent<T>(Vec<Option<T>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + PartialEq> Recent<T> {
    /// Makes `thing` the one that was seen before, if it is equal.
    fn share(&mut self, hash: u64, thing: &mut T) {
        if self.0.is_empty() {
            self.0.resize(REMEMBERED, None);
        }
        let Some(slot) = usize::try_from(hash % REMEMBERED as u64).ok().and_then(|slot| self.0.get_mut(slot)) else {
            return;
        };
        match slot {
            Some(seen) if seen == thing => *thing = seen.clone(),
            _ => *slot = Some(thing.clone()),
        }
    }
}

impl Sharing {
    /// Makes an object share what it has in common with those that were seen of late.
    pub fn settle(&mut self, object: &mut Object) {
        self.metadata(object.metadata_mut());
        if let Object::Pod(pod) = object {
            self.pod(pod);
        }
    }

    fn hash(&self, of: impl Hash) -> u64 {
        self.hasher.hash_one(of)
    }

    fn metadata(&mut self, metadata: &mut ObjectMeta) {
        self.namespaces.share(self.hasher.hash_one(&metadata.namespace), &mut metadata.namespace);
        for labels in [&mut metadata.labels, &mut metadata.annotations] {
            if !labels.is_empty() {
                let hash = labels.iter().fold(0_u64, |sum, entry| sum.wrapping_add(self.hasher.hash_one(entry)));
                self.labels.share(hash, labels);
            }
        }
        if let Some(first) = metadata.owner_references.first() {
            let hash = self.hasher.hash_one((&metadata.namespace, &first.name));
            self.owners.share(hash, &mut metadata.owner_references);
        }
    }

    fn pod(&mut self, pod: &mut Pod) {
        // Of one owner all are alike, but for the time of a rollout.
        let owner = pod.metadata.owner_references.first().map(|owner| owner.name.as_str());
        let container = pod.spec.containers.first().map(|container| container.name.as_str());
        let hash = self.hash((&pod.metadata.namespace, owner, container));
        self.containers.share(hash, &mut pod.spec.containers);
        let conditions = pod.status.conditions.iter();
        let said: Vec<(&str, &str)> = conditions.map(|said| (said.kind.as_str(), said.status.as_str())).collect();
        let hash = self.hash(&said);
        self.conditions.share(hash, &mut pod.status.conditions);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn pod(app: &str, image: &str) -> Object {
        let mut pod = Pod::default();
        pod.metadata.labels.insert("app".into(), app.into());
        pod.spec.containers = vec![Container { image: image.to_owned(), ..Container::default() }].into();
        pod.into()
    }

    #[test]
    fn what_is_equal_is_kept_once_and_stays_what_it_is() {
        let mut sharing = Sharing::default();
        let mut settled = |app, image| {
            let (mut object, plain) = (pod(app, image), pod(app, image));
            sharing.settle(&mut object);
            assert_eq!(object, plain);
            let Object::Pod(pod) = object else { panic!("a pod") };
            pod
        };
        let (one, same, other) = (settled("web", "a"), settled("web", "a"), settled("web", "b"));
        assert!(Arc::ptr_eq(&one.spec.containers, &same.spec.containers));
        assert!(
            one.metadata.labels.ptr_eq(&same.metadata.labels) && one.metadata.labels.ptr_eq(&other.metadata.labels)
        );
        assert_eq!(other.spec.containers[0].image, "b");
        assert_eq!(settled("db", "b").metadata.label("app"), Some("db"));
    }
}
