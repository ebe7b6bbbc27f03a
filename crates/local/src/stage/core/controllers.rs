//! Which pods StatefulSets and Jobs have.

use std::sync::Arc;

use leno_objects::{
    ClaimVolume, Job, Kind, Object, ObjectKey, Pod, PodManagementPolicy, PodPhase, RestartPolicy, StatefulSet, Volume,
};

use super::{Core, Entry};
use crate::cluster::deployments::template_hash;
use crate::cluster::jobs::{self, Progress};
use crate::cluster::objects::{job_pod, set_pod};
use crate::cluster::stateful_sets::{self, Member, ordinal_of};
use crate::stage::pod::plan::Start;

/// The number of pods that a manifest asks for, if it is of a kind that can be scaled.
pub(super) fn declared_replicas(object: &Object) -> Option<u32> {
    match object {
        Object::Deployment(deployment) => Some(deployment.spec.replicas),
        Object::StatefulSet(set) => Some(set.spec.replicas),
        _ => None,
    }
}

impl Core {
    pub(super) fn stateful_sets(&mut self) {
        for (key, set) in self.all_of(StatefulSet::of) {
            let replicas = self.scaled.get(&key).map_or(set.spec.replicas, |(_, wanted)| *wanted);
            let start = set.spec.ordinals.start;
            let hash = template_hash(&format!("{:?}", set.spec.template));
            let members: Vec<Member> = self
                .owned(&key)
                .filter_map(|entry| {
                    Some(Member {
                        ordinal: ordinal_of(&key.name, &entry.pod.metadata.name)?,
                        template: entry.owner.as_ref().map(|(_, hash)| hash.clone()).unwrap_or_default(),
                        ready: entry.report.ready,
                        leaving: entry.leaving(),
                    })
                })
                .collect();
            let ordered = set.spec.pod_management_policy == PodManagementPolicy::OrderedReady;
            let step = stateful_sets::reconcile(&(start..start.saturating_add(replicas)), &hash, ordered, &members);
            for ordinal in step.delete {
                self.end_named(&key, &format!("{}-{ordinal}", key.name));
            }
            for ordinal in step.create {
                let pod = with_claims(set_pod(&key, &set, &hash, ordinal), &set);
                self.begin(pod, Some((key.clone(), hash.clone())), Start::default());
            }
        }
    }

    pub(super) fn jobs(&mut self) {
        self.failures.retain(|key, _| self.wanted.contains_key(key));
        for (key, job) in self.all_of(Job::of) {
            let hash = template_hash(&format!("{:?}", job.spec.template));
            // What a changed Job has made before does not count.
            let outdated = |entry: &Entry| entry.owner.as_ref().is_some_and(|(_, made_from)| *made_from != hash);
            let old: Vec<String> =
                self.owned(&key).filter(|e| outdated(e)).map(|e| e.pod.metadata.name.to_string()).collect();
            if !old.is_empty() {
                self.failures.remove(&key);
            }
            for name in &old {
                self.end_named(&key, name);
            }
            let pods: Vec<(String, Progress, String)> = self
                .owned(&key)
                .map(|e| (e.pod.metadata.name.to_string(), progress(e), e.report.message.clone()))
                .collect();
            let states: Vec<Progress> = pods.iter().map(|(_, progress, _)| *progress).collect();
            let limit = job.spec.backoff_limit;
            let (mut failures, mut last) = self.failures.get(&key).cloned().unwrap_or_default();
            let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
            let wanted = jobs::Wanted {
                completions: count(job.spec.completions),
                parallelism: count(job.spec.parallelism),
                backoff_limit: limit,
            };
            let step = jobs::reconcile(wanted, &states, failures);
            for (name, _, why) in step.replace.iter().filter_map(|index| pods.get(*index)) {
                failures += 1;
                last.clone_from(why);
                self.end_named(&key, name);
            }
            self.failures.insert(key.clone(), (failures, last.clone()));
            let taken: Vec<&str> = pods.iter().map(|(name, ..)| name.as_str()).collect();
            for name in jobs::unused_names(&key.name, &hash, failures, &taken).take(step.create) {
                let after = (failures > 0).then(|| {
                    (
                        jobs::pause(failures),
                        format!("try {} of {}, after one that {last}", failures + 1, limit.saturating_add(1)),
                    )
                });
                let in_place = job.spec.template.spec.restart_policy == RestartPolicy::OnFailure;
                let start = Start { after, most_restarts: in_place.then_some(limit) };
                self.begin(job_pod(&key, &job, name), Some((key.clone(), hash.clone())), start);
            }
        }
    }

    /// All wanted objects of one kind.
    fn all_of<T: Clone>(&self, of: impl Fn(&Object) -> Option<&T>) -> Vec<(ObjectKey, T)> {
        self.wanted.iter().filter_map(|(key, object)| Some((key.clone(), of(object)?.clone()))).collect()
    }

    /// The pods that one object has made.
    fn owned<'a>(&'a self, owner: &'a ObjectKey) -> impl Iterator<Item = &'a Entry> {
        self.pods.values().filter(move |entry| entry.owner.as_ref().is_some_and(|(key, _)| key == owner))
    }

    fn end_named(&mut self, owner: &ObjectKey, name: &str) {
        let named = self.pods.iter().find(|(_, entry)| {
            *entry.pod.metadata.name == *name && entry.owner.as_ref().is_some_and(|(key, _)| key == owner)
        });
        if let Some(uid) = named.map(|(uid, _)| uid.clone()) {
            self.end(&uid, true);
        }
    }
}

fn progress(entry: &Entry) -> Progress {
    match entry.report.phase {
        _ if entry.leaving() => Progress::Leaving,
        PodPhase::Succeeded => Progress::Succeeded,
        PodPhase::Failed => Progress::Failed,
        _ => Progress::Active,
    }
}

/// The pod with a volume for each directory of its own.
fn with_claims(mut pod: Pod, set: &StatefulSet) -> Pod {
    let mut volumes = pod.spec.volumes.to_vec();
    for template in set.spec.volume_claim_templates.iter() {
        let name = template.metadata.name.to_string();
        let claim_name = format!("{name}-{}", pod.metadata.name).into();
        // As in a cluster, it takes the place of one that the template of the pods has.
        volumes.retain(|volume| volume.name != name);
        volumes.push(Volume { name, persistent_volume_claim: Some(ClaimVolume { claim_name }), ..Volume::default() });
    }
    pod.spec.volumes = Arc::from(volumes);
    pod
}

/// The kinds that make pods.
pub(super) const MAKERS: [Kind; 3] = [Kind::Deployment, Kind::StatefulSet, Kind::Job];
