//! Closing the gap between the pods that should be and those that are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_objects::{Deployment, Kind, Labels, Object, ObjectKey, Pod, Timestamp, is_enrolled};
use tokio::sync::watch;

use super::controllers::declared_replicas;
use super::{Core, Entry};
use crate::cluster::deployments::{Replica, choose_node, reconcile, template_hash};
use crate::cluster::objects::{replica, unique_id};
use crate::stage::pod::actor::PodActor;
use crate::stage::pod::plan::{PodPlan, Start};
use crate::stage::pod::report::{Report, Stop, Wish};

impl Core {
    /// Brings pods in line with what is wanted, and the controller in line with the pods.
    pub(super) fn reconcile(&mut self) {
        if self.stopping.is_some() {
            let all: Vec<_> = self.pods.keys().cloned().collect();
            for uid in all {
                self.end(&uid, false);
            }
            self.show();
            return;
        }
        self.single_pods();
        self.deployments();
        self.stateful_sets();
        self.jobs();
        self.wishes();
        self.publish();
        self.show();
    }

    fn single_pods(&mut self) {
        let wanted: Vec<Pod> = self.wanted.values().filter_map(|object| Pod::of(object)).cloned().collect();
        let mut surplus: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, entry)| entry.owner.is_none() && !entry.leaving())
            .map(|(uid, _)| uid.clone())
            .collect();
        for pod in wanted {
            let same_name = |entry: &Entry| {
                entry.pod.metadata.name == pod.metadata.name && entry.pod.metadata.namespace == pod.metadata.namespace
            };
            let Some((uid, entry)) = self.pods.iter_mut().find(|(_, entry)| same_name(entry)) else {
                self.begin(pod, None, Start::default());
                continue;
            };
            let uid = uid.clone();
            if entry.leaving() || entry.owner.is_some() {
                // Its name is taken until the old one is gone.
                continue;
            }
            let mut spec = pod.spec.clone();
            if spec.node_name.is_empty() {
                spec.node_name.clone_from(&entry.pod.spec.node_name);
            }
            if entry.pod.spec == spec {
                surplus.retain(|kept| *kept != uid);
                entry.pod.metadata.labels = pod.metadata.labels;
                entry.pod.metadata.annotations = pod.metadata.annotations;
            }
        }
        for uid in surplus {
            self.end(&uid, true);
        }
    }

    fn deployments(&mut self) {
        let wanted: BTreeMap<ObjectKey, Deployment> = self
            .wanted
            .iter()
            .filter_map(|(key, object)| Some((key.clone(), Deployment::of(object)?.clone())))
            .collect();
        let in_file = |key: &ObjectKey| self.wanted.get(key).and_then(|object| declared_replicas(object));
        self.scaled.retain(|key, (file, _)| in_file(key) == Some(*file));
        let orphans: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, entry)| entry.owner.as_ref().is_some_and(|(key, _)| !self.wanted.contains_key(key)))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in orphans {
            self.end(&uid, true);
        }
        for (key, deployment) in wanted {
            let replicas = self.scaled.get(&key).map_or(deployment.spec.replicas, |(_, wanted)| *wanted);
            let hash = template_hash(&format!("{:?}", deployment.spec.template));
            let own = |entry: &&Entry| entry.owner.as_ref().is_some_and(|(owner, _)| *owner == key);
            let (leaving, existing): (Vec<_>, Vec<_>) =
                self.pods.values().filter(own).partition(|entry| entry.leaving());
            let existing: Vec<_> = existing
                .into_iter()
                .map(|entry| Replica {
                    name: entry.pod.metadata.name.to_string(),
                    template: entry.owner.as_ref().map(|(_, hash)| hash.clone()).unwrap_or_default(),
                    ready: entry.report.ready,
                    made: entry.made,
                })
                .collect();
            let leaving: Vec<_> = leaving.into_iter().map(|entry| entry.pod.metadata.name.to_string()).collect();
            let replicas = usize::try_from(replicas).unwrap_or(usize::MAX);
            let step = reconcile(&key.name, &hash, replicas, &existing, &leaving);
            let new = |pod: &Replica| pod.template == hash && pod.ready;
            if leaving.is_empty() && existing.len() == replicas && existing.iter().all(new) && self.rolling.remove(&key)
            {
                self.ctx.journal.note(format_args!("{key}: rolled out; all pods are of the new template and ready"));
            }
            for name in step.delete {
                let uid = self.pods.iter().find(|(_, entry)| {
                    *entry.pod.metadata.name == name && entry.pod.metadata.namespace == key.namespace
                });
                if let Some(uid) = uid.map(|(uid, _)| uid.clone()) {
                    self.end(&uid, true);
                }
            }
            for name in step.create {
                let pod = replica(&key, &deployment, &hash, name);
                self.begin(pod, Some((key.clone(), hash.clone())), Start::default());
            }
        }
    }

    /// Takes down which Deployments have another template than before: their pods are replaced.
    pub(super) fn rollouts_begin(&mut self, before: &BTreeMap<ObjectKey, Arc<Object>>) {
        for (key, object) in &self.wanted {
            let (Some(now), Some(before)) =
                (Deployment::of(object), before.get(key).and_then(|old| Deployment::of(old)))
            else {
                continue;
            };
            if now.spec.template != before.spec.template {
                self.ctx.journal.note(format_args!("{key}: its template changed; its pods are replaced"));
                self.rolling.insert(key.clone());
            }
        }
        self.rolling.retain(|key| self.wanted.contains_key(key));
    }

    /// Makes a pod: node, addresses, actor.
    pub(super) fn begin(&mut self, mut pod: Pod, owner: Option<(ObjectKey, String)>, start: Start) {
        let index = if pod.spec.node_name.is_empty() {
            let counts: Vec<_> = (0..self.nodes.len())
                .map(|node| {
                    let here = self.pods.values().filter(|entry| entry.node == node && !entry.leaving());
                    let own = |entry: &&Entry| {
                        owner.is_some() && entry.owner.as_ref().map(|o| &o.0) == owner.as_ref().map(|o| &o.0)
                    };
                    (here.clone().filter(own).count(), here.count())
                })
                .collect();
            choose_node(&counts)
        } else {
            self.nodes.iter().position(|node| *node.name == *pod.spec.node_name).unwrap_or(0)
        };
        let node = self.nodes[index].clone();
        let Some(slot) = self.slots[index].take() else {
            let text = format!("{} is full; pod {} waits", node.name, pod.metadata.name);
            // Tried again at every change, told once.
            if !self.warnings.contains(&text) {
                self.warnings.push(text);
            }
            return;
        };
        pod.spec.node_name = node.name.as_str().into();
        self.made += 1;
        let uid = unique_id(&pod.metadata, self.made);
        pod.metadata.uid.clone_from(&uid);
        pod.metadata.creation_timestamp = Some(Timestamp(SystemTime::now()));
        let mut ips = vec![IpAddr::from(node.addresses.pod_v4(slot))];
        if self.ctx.networks.ipv6 {
            ips.push(node.addresses.pod_v6(slot).into());
        }
        let dir = self.ctx.run_dir.join("pods").join(format!("{}_{}", pod.metadata.namespace, pod.metadata.name));
        let plan = Arc::new(PodPlan { pod: pod.clone(), uid: uid.clone(), node, slot, ips, dir, start });
        let whose = owner.as_ref().map(|(key, _)| format!(" for {key}")).unwrap_or_default();
        let ips = plan.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        self.ctx.journal.note(format_args!("pod {}: made on {}{whose} ({ips})", plan.label(), plan.node.name));
        let (wish, wishes) = watch::channel(Wish { in_mesh: self.wants_mesh(&pod), stop: None });
        let actor = PodActor {
            plan: plan.clone(),
            ctx: self.ctx.clone(),
            wish: wishes,
            events: self.events.clone(),
            report: Report::default(),
            network: None,
            enrollment: None,
        };
        tokio::spawn(actor.run());
        let made = self.made;
        self.pods.insert(uid, Entry { pod, plan, node: index, made, owner, wish, report: Report::default() });
    }

    /// Asks a pod to end.
    pub(super) fn end(&mut self, uid: &str, drain: bool) {
        let last_grace = self.last_grace;
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let asked = Duration::from_secs(u64::from(entry.pod.spec.termination_grace_period_seconds));
        let grace = if drain { asked } else { asked.min(last_grace) };
        if entry.pod.metadata.deletion_timestamp.is_none() {
            self.ctx.journal.note(format_args!("pod {}: asked to end, within {grace:?}", entry.plan.label()));
            entry.pod.metadata.deletion_timestamp = Some(Timestamp(SystemTime::now()));
            entry.report.ready = false;
            "Terminating".clone_into(&mut entry.report.status);
            entry.wish.send_modify(|wish| wish.stop = Some(Stop { grace, drain }));
        } else if !drain {
            entry.wish.send_if_modified(|wish| {
                let hurry = wish.stop.is_some_and(|stop| stop.grace > grace);
                if hurry {
                    wish.stop = Some(Stop { grace, drain });
                }
                hurry
            });
        }
    }

    fn wishes(&mut self) {
        let wanted: Vec<_> = self.pods.iter().map(|(uid, entry)| (uid.clone(), self.wants_mesh(&entry.pod))).collect();
        for (uid, in_mesh) in wanted {
            if let Some(entry) = self.pods.get(&uid) {
                entry.wish.send_if_modified(|wish| {
                    let changed = wish.in_mesh != in_mesh;
                    wish.in_mesh = in_mesh;
                    changed
                });
            }
        }
    }

    /// Istio's rule: the pod's own label decides, else its namespace's.
    pub(super) fn wants_mesh(&self, pod: &Pod) -> bool {
        let namespace = self.wanted.get(&ObjectKey::new(Kind::Namespace, "", pod.metadata.namespace.clone()));
        let empty = Labels::new();
        let labels = namespace.map_or(&empty, |object| &object.metadata().labels);
        is_enrolled(&pod.metadata, labels)
    }
}
