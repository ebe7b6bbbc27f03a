//! Stores equal parts of objects once.
//!
//! The pods of a Deployment have equal containers and owners and mostly equal labels, and thousands of them are kept
//! for long.

use std::hash::{BuildHasher, Hash, RandomState};

use leno_model::{Names, Recent};

use crate::Object;
use crate::meta::{Condition, Labels, ObjectMeta, OwnerReference};
use crate::workload::{Container, Pod};

/// Remembers what objects were made of.
#[derive(Debug, Default)]
pub struct Sharing {
    hasher: RandomState,
    names: Names,
    labels: Recent<Labels>,
    owners: Recent<std::sync::Arc<[OwnerReference]>>,
    containers: Recent<std::sync::Arc<[Container]>>,
    conditions: Recent<std::sync::Arc<[Condition]>>,
}

impl Sharing {
    /// Makes an object share its parts with recent objects.
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
        self.names.settle_name(&mut metadata.namespace);
        for labels in [&mut metadata.labels, &mut metadata.annotations] {
            if !labels.is_empty() {
                let hash = labels.iter().fold(0_u64, |sum, entry| sum.wrapping_add(self.hasher.hash_one(entry)));
                let names = &mut self.names;
                self.labels.share(hash, labels, |labels| {
                    // Those that are only this object's are called as those of others.
                    let settled = labels.iter().map(|(key, value)| {
                        let mut key = key.clone();
                        names.settle_name(&mut key);
                        (key, value.clone())
                    });
                    *labels = settled.collect();
                });
            }
        }
        if let Some(first) = metadata.owner_references.first() {
            let hash = self.hasher.hash_one((&metadata.namespace, &first.name));
            self.owners.share(hash, &mut metadata.owner_references, |_| ());
        }
    }

    fn pod(&mut self, pod: &mut Pod) {
        let spec = &mut pod.spec;
        for name in [&mut spec.node_name, &mut spec.service_account_name, &mut spec.service_account] {
            self.names.settle_name(name);
        }
        // Of one owner all are alike, but for the time of a rollout.
        let owner = pod.metadata.owner_references.first().map(|owner| owner.name.as_str());
        let container = pod.spec.containers.first().map(|container| container.name.as_str());
        let hash = self.hash((&pod.metadata.namespace, owner, container));
        self.containers.share(hash, &mut pod.spec.containers, |_| ());
        if !pod.spec.init_containers.is_empty() {
            self.containers.share(hash.rotate_left(1), &mut pod.spec.init_containers, |_| ());
        }
        let conditions = pod.status.conditions.iter();
        let said: Vec<(&str, &str)> = conditions.map(|said| (said.kind.as_str(), said.status.as_str())).collect();
        let hash = self.hash(&said);
        self.conditions.share(hash, &mut pod.status.conditions, |_| ());
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
