//! ConfigMaps and Secrets, and what the references to them mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::Name;
use leno_objects::{
    ConfigMap, Container, EnvFromSource, EnvVarSource, KeySelector, KeyToPath, Kind, NameReference, Object, ObjectKey,
    PodSpec, Secret, Volume,
};

/// All ConfigMaps and Secrets there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Config {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
}

/// One file of a volume: its path below the volume, and what is in it.
pub(crate) type VolumeFile = (String, Vec<u8>);

impl Config {
    /// Those among these objects.
    pub(crate) fn of<'a>(objects: impl Iterator<Item = (&'a ObjectKey, &'a Arc<Object>)>) -> Self {
        let ours = objects.filter(|(key, _)| matches!(key.kind, Kind::ConfigMap | Kind::Secret));
        Self { objects: ours.map(|(key, object)| (key.clone(), object.clone())).collect() }
    }

    /// The value of a variable that is an entry of a ConfigMap or a Secret. `None` for a variable that is left out, because
    /// what it refers to may be missing.
    ///
    /// # Errors
    /// What is missing, for whoever wrote the reference.
    pub(crate) fn value(&self, namespace: &str, source: &EnvVarSource) -> Result<Option<String>, String> {
        let (kind, selector) = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(selector), _) => (Kind::ConfigMap, selector),
            (None, Some(selector)) => (Kind::Secret, selector),
            (None, None) => return Err("valueFrom needs fieldRef, configMapKeyRef or secretKeyRef".to_owned()),
        };
        self.selected(&ObjectKey::new(kind, namespace, selector.name.as_str()), selector)
    }

    fn selected(&self, key: &ObjectKey, selector: &KeySelector) -> Result<Option<String>, String> {
        let Some(object) = self.objects.get(key) else {
            return if selector.optional { Ok(None) } else { Err(missing(key)) };
        };
        match entry(object, &selector.key) {
            Some(bytes) => text(bytes).map(Some).map_err(|why| format!("{key}: entry {}: {why}", selector.key)),
            None if selector.optional => Ok(None),
            None => Err(no_entry(key, object, &selector.key)),
        }
    }

    /// The variables that a container has all at once from a ConfigMap or a Secret.
    ///
    /// # Errors
    /// What is missing, for whoever wrote the reference.
    pub(crate) fn variables(&self, namespace: &str, from: &EnvFromSource) -> Result<Vec<(String, String)>, String> {
        let mut found = Vec::new();
        let references = [(Kind::ConfigMap, &from.config_map_ref), (Kind::Secret, &from.secret_ref)];
        for (kind, reference) in references {
            let Some(reference) = reference else { continue };
            let Some((key, object)) = self.referred(kind, namespace, reference)? else { continue };
            for name in names(object) {
                let value = text(entry(object, name).unwrap_or_default());
                let value = value.map_err(|why| format!("{key}: entry {name}: {why}"))?;
                found.push((format!("{}{name}", from.prefix), value));
            }
        }
        Ok(found)
    }

    /// The files of a volume, if its source is a ConfigMap or a Secret, or several.
    ///
    /// # Errors
    /// What is missing, for whoever wrote the volume.
    pub(crate) fn files(&self, namespace: &str, volume: &Volume) -> Result<Option<Vec<VolumeFile>>, String> {
        let mut sources: Vec<(Kind, NameReference, &[KeyToPath])> = Vec::new();
        let reference = |name: &String, optional| NameReference { name: name.clone(), optional };
        if let Some(source) = &volume.config_map {
            sources.push((Kind::ConfigMap, reference(&source.name, source.optional), &source.items));
        } else if let Some(source) = &volume.secret {
            sources.push((Kind::Secret, reference(&source.name, source.optional), &source.items));
        } else if let Some(projected) = &volume.projected {
            for source in projected.sources.iter() {
                let of = [(Kind::ConfigMap, &source.config_map), (Kind::Secret, &source.secret)];
                for (kind, source) in of.into_iter().filter_map(|(kind, source)| Some((kind, source.as_ref()?))) {
                    sources.push((kind, source.reference(), &source.items));
                }
            }
        } else {
            return Ok(None);
        }
        let mut files = Vec::new();
        for (kind, reference, items) in sources {
            let Some((key, object)) = self.referred(kind, namespace, &reference)? else { continue };
            if items.is_empty() {
                files.extend(names(object).map(|name| (name.to_string(), entry(object, name).unwrap_or_default())));
            }
            for item in items {
                match entry(object, &item.key) {
                    Some(bytes) => files.push((item.path.clone(), bytes)),
                    None if reference.optional => {}
                    None => return Err(no_entry(&key, object, &item.key)),
                }
            }
        }
        Ok(Some(files))
    }

    fn referred(
        &self,
        kind: Kind,
        namespace: &str,
        reference: &NameReference,
    ) -> Result<Option<(ObjectKey, &Object)>, String> {
        let key = ObjectKey::new(kind, namespace, reference.name.as_str());
        match self.objects.get(&key) {
            Some(object) => Ok(Some((key, object))),
            None if reference.optional => Ok(None),
            None => Err(missing(&key)),
        }
    }

    /// Every reference of a pod that leads nowhere, each with its place in the pod.
    pub(crate) fn dangling(&self, namespace: &str, spec: &PodSpec) -> Vec<String> {
        let mut found = Vec::new();
        for container in spec.all_containers() {
            self.dangling_in(namespace, container, &mut found);
        }
        for volume in spec.volumes.iter() {
            if let Err(why) = self.files(namespace, volume) {
                found.push(format!("volume {}: {why}", volume.name));
            }
        }
        found
    }

    fn dangling_in(&self, namespace: &str, container: &Container, found: &mut Vec<String>) {
        let at = format!("container {}", container.name);
        for variable in &container.env {
            let Some(source) = variable.value_from.as_ref().filter(|source| source.field_ref.is_none()) else {
                continue;
            };
            if let Err(why) = self.value(namespace, source) {
                found.push(format!("{at}: env {}: {why}", variable.name));
            }
        }
        for from in &container.env_from {
            if let Err(why) = self.variables(namespace, from) {
                found.push(format!("{at}: envFrom: {why}"));
            }
        }
    }
}

fn entry(object: &Object, name: &str) -> Option<Vec<u8>> {
    match object {
        Object::ConfigMap(map) => ConfigMap::entry(map, name),
        Object::Secret(secret) => Secret::entry(secret, name),
        _ => None,
    }
}

/// The names of all entries, each once.
fn names(object: &Object) -> impl Iterator<Item = &Name> {
    let all: std::collections::BTreeSet<&Name> = match object {
        Object::ConfigMap(map) => map.keys().collect(),
        Object::Secret(secret) => secret.keys().collect(),
        _ => std::collections::BTreeSet::new(),
    };
    all.into_iter()
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err("it is no text, and a variable can be nothing else; mount it as a volume".to_owned()),
    }
}

fn missing(key: &ObjectKey) -> String {
    format!("there is no {key} in the manifests; add it, or write `optional: true` where it is referred to")
}

fn no_entry(key: &ObjectKey, object: &Object, name: &str) -> String {
    let known: Vec<_> = names(object).map(|name| &**name).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    format!("{key} has no entry {name}; it has: {known}")
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
