//! What the stage's log is told of pods and of edits.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_objects::{Deployment, Object, ObjectKey};

use crate::stage::pod::report::Report;

/// Most names in one line: an edit may bring thousands of objects.
const NAMES: usize = 8;

type Objects = BTreeMap<ObjectKey, Arc<Object>>;

/// What changed of a pod, in the words of `leno ps`; `None` if nothing did that anybody looks for.
pub(super) fn of_pod(old: &Report, new: &Report) -> Option<String> {
    let mut parts = Vec::new();
    if new.restarts > old.restarts {
        // A container that can't be started is tried again.
        let what = if new.status == "CreateContainerError" { "tried" } else { "started" };
        parts.push(format!("{what} again (restart {})", new.restarts));
    } else if let (None, Some(sandbox)) = (&old.sandbox, &new.sandbox) {
        parts.push(format!("started (pid {})", sandbox.pid()));
    }
    match (old.enrolled, new.enrolled) {
        (false, true) => parts.push("joined the mesh".to_owned()),
        (true, false) => parts.push("left the mesh".to_owned()),
        _ => {}
    }
    match (old.ready, new.ready) {
        (false, true) => parts.push("ready".to_owned()),
        (true, false) if new.status != "Terminating" => parts.push("not ready".to_owned()),
        _ => {}
    }
    if !new.message.is_empty() && (&old.status, &old.message) != (&new.status, &new.message) {
        parts.push(format!("{}: {}", new.status, new.message));
    } else if old.status != new.status {
        parts.push(new.status.clone());
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// What an edit made of the objects: a line about those that came, changed and went, and lines about Deployments.
pub(super) fn of_edit(old: &Objects, new: &Objects) -> Vec<String> {
    let added = new.keys().filter(|key| !old.contains_key(*key));
    let changed = new.iter().filter(|(key, object)| old.get(*key).is_some_and(|before| before != *object));
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    let changed: Vec<_> = changed.map(|(key, _)| key).collect();
    let parts: Vec<_> =
        [("added", added.collect::<Vec<_>>()), ("changed", changed.clone()), ("removed", removed.collect())]
            .into_iter()
            .filter(|(_, keys)| !keys.is_empty())
            .map(|(what, keys)| format!("{what} {}", names(&keys)))
            .collect();
    let mut lines = Vec::new();
    if !parts.is_empty() {
        lines.push(format!("objects: {}", parts.join("; ")));
    }
    for key in changed {
        let deployment = |objects: &Objects| objects.get(key).and_then(|object| Deployment::of(object).cloned());
        if let (Some(before), Some(after)) = (deployment(old), deployment(new))
            && before.spec.replicas != after.spec.replicas
        {
            lines.push(format!("{key}: scaled from {} to {} by its file", before.spec.replicas, after.spec.replicas));
        }
    }
    lines
}

fn names(keys: &[&ObjectKey]) -> String {
    let named: Vec<_> = keys.iter().take(NAMES).map(ToString::to_string).collect();
    match keys.len().saturating_sub(NAMES) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
#[path = "notes_tests.rs"]
mod tests;
