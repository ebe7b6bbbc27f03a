//! Which pods a Deployment should have next: a pure function of what it wants and what there is.

use std::cmp::Reverse;

use crate::stable_hash::fnv;

/// A pod of a Deployment, as the decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replica {
    pub name: String,
    /// Hash of the template it was made from.
    pub template: String,
    pub ready: bool,
    /// Which one in the order in which all pods were made.
    pub made: u64,
}

/// The next actions. More may follow when pods become ready or are gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub create: Vec<String>,
    pub delete: Vec<String>,
}

/// One step towards `replicas` pods of `template`, like a rolling update with `maxUnavailable: 0`: the update never
/// reduces the number of ready pods below `replicas`. `existing` are the pods that are not being deleted. Names in
/// `leaving` are still taken.
pub(crate) fn reconcile(
    deployment: &str,
    template: &str,
    replicas: usize,
    existing: &[Replica],
    leaving: &[String],
) -> Step {
    let mut step = Step::default();
    let (new, old): (Vec<_>, Vec<_>) = existing.iter().partition(|pod| pod.template == template);
    // Kubernetes' default maxSurge, 25 %, rounded up.
    let surge = replicas.div_ceil(4).max(1);

    let room = (replicas + surge).saturating_sub(existing.len());
    let missing = replicas.saturating_sub(new.len()).min(if old.is_empty() { usize::MAX } else { room });
    let taken: Vec<&str> =
        existing.iter().map(|pod| pod.name.as_str()).chain(leaving.iter().map(String::as_str)).collect();
    step.create.extend(unused_names(deployment, template, &taken).take(missing));

    let mut surplus: Vec<_> = new.iter().collect();
    // Those that serve nobody go first, of equals the youngest: the oldest has most connections and the warmest caches.
    surplus.sort_by_key(|pod| (pod.ready, Reverse(pod.made)));
    step.delete.extend(surplus.iter().take(new.len().saturating_sub(replicas)).map(|pod| pod.name.clone()));

    let ready_new = new.iter().filter(|pod| pod.ready).count().min(replicas);
    let (ready_old, unready_old): (Vec<_>, Vec<_>) = old.into_iter().partition(|pod| pod.ready);
    step.delete.extend(unready_old.into_iter().map(|pod| pod.name.clone()));
    let spare = (ready_new + ready_old.len()).saturating_sub(replicas);
    step.delete.extend(ready_old.into_iter().take(spare).map(|pod| pod.name.clone()));
    step
}

/// Short hash of a template's JSON text, as it appears in pod names.
pub(crate) fn template_hash(template: &str) -> String {
    letters(fnv(template.as_bytes()), 9)
}

/// Names for further pods of a Deployment.
fn unused_names(owner: &str, template: &str, taken: &[&str]) -> impl Iterator<Item = String> {
    (0_u64..).map(move |ordinal| pod_name(owner, template, ordinal)).filter(|name| !taken.contains(&name.as_str()))
}

/// Name of a Deployment's pod: the same for the same template and ordinal in every run.
fn pod_name(deployment: &str, template: &str, ordinal: u64) -> String {
    let suffix = letters(fnv(format!("{deployment}/{template}/{ordinal}").as_bytes()), 5);
    format!("{deployment}-{template}-{suffix}")
}

/// Kubernetes' alphabet for generated names: no vowels, so that no words appear.
pub(crate) fn letters(mut hash: u64, count: usize) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = String::with_capacity(count);
    for _ in 0..count {
        let index = usize::try_from(hash % 27).unwrap_or(0);
        text.push(char::from(ALPHABET[index]));
        hash /= 27;
    }
    text
}

/// The node for a new pod: the one with fewest pods of the same owner, then fewest pods, then
/// the first. `counts` holds, per node in order, `(pods of this owner, all pods)`.
pub(crate) fn choose_node(counts: &[(usize, usize)]) -> usize {
    counts.iter().enumerate().min_by_key(|(index, counts)| (**counts, *index)).map_or(0, |(index, _)| index)
}

#[cfg(test)]
#[path = "deployments_tests.rs"]
mod tests;
