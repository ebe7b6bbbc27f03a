//! The stage's one decision maker: it holds what should be and what is, and closes the gap one
//! event at a time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_objects::{Deployment, Kind, Labels, Node as NodeObject, Object, ObjectKey, Pod, Timestamp};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::Error;
use crate::cluster::addresses::Slots;
use crate::cluster::admission;
use crate::cluster::deployments::{Replica, choose_node, reconcile, template_hash};
use crate::cluster::objects::{Seen, is_enrolled, node_object, observed, replica, unique_id};
use crate::cluster::services::{DeclaredPorts, declared_ports};
use crate::files::{Manifests, Sourced};
use crate::stage::context::Context;
use crate::stage::listing::{Listing, NodeListing, PodListing};
use crate::stage::node::Node;
use crate::stage::pod::actor::PodActor;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::report::{PodEvent, Report, Stop, Wish};
use crate::stage::pod::sandbox::Sandbox;
use crate::stage::request::{Request, StageEvent};

/// Longest a pod may take to end when the whole stage ends.
const LAST_GRACE: Duration = Duration::from_secs(3);

/// A pod that exists.
struct Entry {
    pod: Pod,
    plan: Arc<PodPlan>,
    node: usize,
    /// Deployment and template, if it belongs to one.
    owner: Option<(ObjectKey, String)>,
    wish: watch::Sender<Wish>,
    report: Report,
}

impl Entry {
    fn leaving(&self) -> bool {
        self.wish.borrow().stop.is_some()
    }

    /// As the API server would hold it.
    fn observed(&self) -> Pod {
        let Report { phase, ready, enrolled, .. } = self.report;
        observed(&self.pod, &Seen { ips: &self.plan.ips, phase, ready, enrolled })
    }
}

pub(crate) struct Core {
    ctx: Arc<Context>,
    nodes: Vec<Arc<Node>>,
    slots: Vec<Slots>,
    /// Last good state of the files, as read.
    files: Manifests,
    /// Objects from the program.
    applied: BTreeMap<ObjectKey, Arc<Object>>,
    /// `leno scale`, until the file says another number: Deployment to (file's number, wanted).
    scaled: BTreeMap<ObjectKey, (u32, u32)>,
    /// Files and program together, completed.
    wanted: BTreeMap<ObjectKey, Arc<Object>>,
    pods: BTreeMap<String, Entry>,
    events: mpsc::UnboundedSender<PodEvent>,
    ports: watch::Sender<Arc<DeclaredPorts>>,
    listing: watch::Sender<Listing>,
    news: broadcast::Sender<StageEvent>,
    stopping: Option<oneshot::Sender<()>>,
    /// What the authors of the manifests in force should know.
    warnings: Vec<String>,
    made: u64,
    /// Whether the first manifests took effect; before that there is nothing to show.
    loaded: bool,
}

impl Core {
    #[allow(clippy::too_many_arguments, reason = "called once, right below its parts' creation")]
    pub(crate) fn new(
        ctx: Arc<Context>,
        nodes: Vec<Arc<Node>>,
        events: mpsc::UnboundedSender<PodEvent>,
        ports: watch::Sender<Arc<DeclaredPorts>>,
        listing: watch::Sender<Listing>,
        news: broadcast::Sender<StageEvent>,
    ) -> Self {
        let slots = nodes.iter().map(|_| Slots::default()).collect();
        Self {
            ctx,
            nodes,
            slots,
            files: Manifests::default(),
            applied: BTreeMap::new(),
            scaled: BTreeMap::new(),
            wanted: BTreeMap::new(),
            pods: BTreeMap::new(),
            events,
            ports,
            listing,
            news,
            stopping: None,
            warnings: Vec::new(),
            made: 0,
            loaded: false,
        }
    }

    /// Runs until shut down.
    pub(crate) async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        mut events: mpsc::UnboundedReceiver<PodEvent>,
    ) {
        let mut proxies: Vec<_> = self.nodes.iter().map(|node| node.proxy.clone()).collect();
        loop {
            if self.stopping.is_some() && self.pods.is_empty() {
                self.publish();
                if let Some(done) = self.stopping.take() {
                    let _ = done.send(());
                }
                return;
            }
            let proxy_changed =
                futures_util::future::select_all(proxies.iter_mut().map(|state| Box::pin(state.changed())));
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    self.pod_event(event);
                    // A burst is one change: an update of everything costs as much as of one.
                    while let Ok(event) = events.try_recv() {
                        self.pod_event(event);
                    }
                    self.reconcile();
                }
                request = requests.recv() => match request {
                    Some(request) => self.request(request),
                    None => self.stop_all(None),
                },
                _ = proxy_changed => self.show(),
            }
        }
    }

    fn pod_event(&mut self, event: PodEvent) {
        match event {
            PodEvent::Changed { uid, report } => {
                if let Some(entry) = self.pods.get_mut(&uid) {
                    let stopped = entry.leaving();
                    entry.report = *report;
                    entry.report.ready &= !stopped;
                }
            }
            PodEvent::Gone { uid } => {
                if let Some(entry) = self.pods.remove(&uid) {
                    self.slots[entry.node].free(entry.plan.slot);
                    let metadata = &entry.pod.metadata;
                    self.tell(StageEvent::PodGone {
                        namespace: metadata.namespace.clone(),
                        name: metadata.name.clone(),
                    });
                }
            }
            PodEvent::Barrier { reached } => {
                self.publish();
                let _ = reached.send(());
            }
        }
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Reload(manifests) => {
                let result = manifests.and_then(|files| self.adopt(files, self.applied.clone()));
                let refused = result.err().map(|reason| reason.to_string()).unwrap_or_default();
                self.listing.send_modify(|listing| listing.refused.clone_from(&refused));
                if refused.is_empty() {
                    self.tell(StageEvent::Loaded { objects: self.files.objects.len() });
                } else {
                    self.tell(StageEvent::Refused(refused));
                }
            }
            Request::Apply(objects, done) => {
                let mut applied = self.applied.clone();
                applied.extend(objects.into_iter().map(|object| (object.key(), Arc::new(object))));
                let _ = done.send(self.adopt(self.files.clone(), applied));
            }
            Request::Withdraw(key, done) => {
                let mut applied = self.applied.clone();
                let result = if applied.remove(&key).is_some() {
                    self.adopt(self.files.clone(), applied)
                } else {
                    Err(Error::NotFound(format!("{key} was not applied by this program")))
                };
                let _ = done.send(result);
            }
            Request::Label { namespace, key, value, done } => {
                let _ = done.send(self.label(&namespace, key, value));
            }
            Request::Scale { namespace, name, replicas, done } => {
                let _ = done.send(self.scale(&namespace, &name, replicas));
            }
            Request::Find { namespace, name, found } => {
                let _ = found.send(self.find(&namespace, &name));
            }
            Request::Shutdown(done) => self.stop_all(Some(done)),
        }
    }

    /// Takes a new set of objects as what is wanted, or refuses it as a whole.
    fn adopt(&mut self, files: Manifests, applied: BTreeMap<ObjectKey, Arc<Object>>) -> Result<(), Error> {
        let mut all = files.clone();
        for (key, object) in &applied {
            all.objects.insert(key.clone(), Sourced { object: object.clone(), origin: None });
        }
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.clone()).collect();
        let mut warnings = all.warnings.clone();
        warnings.extend(admission::complete(&mut all, &names, self.ctx.networks.ipv6)?);
        self.files = files;
        self.applied = applied;
        self.loaded = true;
        let mut places = BTreeMap::new();
        for (key, sourced) in &all.objects {
            places.insert(key.clone(), sourced.origin.as_ref().map(|origin| format!("{origin}: ")).unwrap_or_default());
        }
        self.wanted = all.objects.into_iter().map(|(key, sourced)| (key, sourced.object)).collect();
        // Before pods are made: that may add to them.
        self.warnings = warnings;
        self.reconcile();
        // What the control plane makes of them is known once it has them.
        for (key, findings) in self.ctx.plane.findings() {
            let place = places.get(&key).map_or("", String::as_str);
            self.warnings.extend(findings.into_iter().map(|finding| format!("{place}{key}: {finding}")));
        }
        self.show();
        Ok(())
    }

    fn label(&mut self, namespace: &str, key: String, value: Option<String>) -> Result<(), Error> {
        let id = ObjectKey::new(Kind::Namespace, "", namespace);
        let mut object = match self.wanted.get(&id) {
            Some(object) => (**object).clone(),
            None => return Err(Error::NotFound(format!("there is no namespace {namespace}"))),
        };
        match value {
            Some(value) => object.metadata_mut().labels.insert(key, value),
            None => object.metadata_mut().labels.remove(&key),
        };
        let mut applied = self.applied.clone();
        applied.insert(id, Arc::new(object));
        self.adopt(self.files.clone(), applied)
    }

    fn scale(&mut self, namespace: &str, name: &str, replicas: u32) -> Result<(), Error> {
        let key = ObjectKey::new(Kind::Deployment, namespace, name);
        let Some(deployment) = self.wanted.get(&key).and_then(|object| Deployment::of(object)) else {
            let known: Vec<_> = self
                .wanted
                .keys()
                .filter(|key| key.kind == Kind::Deployment)
                .map(|key| format!("{}/{}", key.namespace, key.name))
                .collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::NotFound(format!("there is no Deployment {namespace}/{name}; there are: {known}")));
        };
        self.scaled.insert(key, (deployment.spec.replicas, replicas));
        self.reconcile();
        Ok(())
    }

    fn find(&self, namespace: &str, name: &str) -> Result<(Arc<PodPlan>, Report), Error> {
        let of_pod = |entry: &&Entry| entry.pod.metadata.namespace == namespace && entry.pod.metadata.name == name;
        if let Some(entry) = self.pods.values().find(of_pod) {
            return Ok((entry.plan.clone(), entry.report.clone()));
        }
        // `leno exec shop/web` means any pod of the Deployment `web`.
        let owner = ObjectKey::new(Kind::Deployment, namespace, name);
        let owned = |entry: &&Entry| entry.owner.as_ref().is_some_and(|(key, _)| *key == owner);
        let mut owned: Vec<_> = self.pods.values().filter(owned).filter(|entry| !entry.leaving()).collect();
        owned.sort_by_key(|entry| (!entry.report.ready, entry.pod.metadata.name.clone()));
        if let Some(entry) = owned.first() {
            return Ok((entry.plan.clone(), entry.report.clone()));
        }
        let mut known: Vec<_> =
            self.pods.values().map(|e| format!("{}/{}", e.pod.metadata.namespace, e.pod.metadata.name)).collect();
        known.sort();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::NotFound(format!("there is no pod {namespace}/{name}; there are: {known}")))
    }

    fn stop_all(&mut self, done: Option<oneshot::Sender<()>>) {
        let done = done.unwrap_or_else(|| oneshot::channel().0);
        self.stopping = Some(done);
        self.reconcile();
    }

    /// Brings pods in line with what is wanted, and the controller in line with the pods.
    fn reconcile(&mut self) {
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
                self.begin(pod, None);
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
        self.scaled.retain(|key, (file, _)| wanted.get(key).is_some_and(|d| d.spec.replicas == *file));
        let orphans: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, entry)| entry.owner.as_ref().is_some_and(|(key, _)| !wanted.contains_key(key)))
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
                    name: entry.pod.metadata.name.clone(),
                    template: entry.owner.as_ref().map(|(_, hash)| hash.clone()).unwrap_or_default(),
                    ready: entry.report.ready,
                })
                .collect();
            let leaving: Vec<_> = leaving.into_iter().map(|entry| entry.pod.metadata.name.clone()).collect();
            let replicas = usize::try_from(replicas).unwrap_or(usize::MAX);
            let step = reconcile(&key.name, &hash, replicas, &existing, &leaving);
            for name in step.delete {
                let uid = self.pods.iter().find(|(_, entry)| {
                    entry.pod.metadata.name == name && entry.pod.metadata.namespace == key.namespace
                });
                if let Some(uid) = uid.map(|(uid, _)| uid.clone()) {
                    self.end(&uid, true);
                }
            }
            for name in step.create {
                let pod = replica(&key, &deployment, &hash, name);
                self.begin(pod, Some((key.clone(), hash.clone())));
            }
        }
    }

    /// Makes a pod: node, addresses, actor.
    fn begin(&mut self, mut pod: Pod, owner: Option<(ObjectKey, String)>) {
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
            self.nodes.iter().position(|node| node.name == pod.spec.node_name).unwrap_or(0)
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
        pod.spec.node_name.clone_from(&node.name);
        self.made += 1;
        let uid = unique_id(&pod.metadata, self.made);
        pod.metadata.uid.clone_from(&uid);
        pod.metadata.creation_timestamp = Some(Timestamp(SystemTime::now()));
        let mut ips = vec![IpAddr::from(node.addresses.pod_v4(slot))];
        if self.ctx.networks.ipv6 {
            ips.push(node.addresses.pod_v6(slot).into());
        }
        let dir = self.ctx.run_dir.join("pods").join(format!("{}_{}", pod.metadata.namespace, pod.metadata.name));
        let plan = Arc::new(PodPlan { pod: pod.clone(), uid: uid.clone(), node, slot, ips, dir });
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
        self.pods.insert(uid, Entry { pod, plan, node: index, owner, wish, report: Report::default() });
    }

    /// Asks a pod to end.
    fn end(&mut self, uid: &str, drain: bool) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        let asked = Duration::from_secs(u64::from(entry.pod.spec.termination_grace_period_seconds));
        let grace = if drain { asked } else { asked.min(LAST_GRACE) };
        if entry.pod.metadata.deletion_timestamp.is_none() {
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
    fn wants_mesh(&self, pod: &Pod) -> bool {
        let namespace = self.wanted.get(&ObjectKey::new(Kind::Namespace, "", &pod.metadata.namespace));
        let empty = Labels::new();
        let labels = namespace.map_or(&empty, |object| &object.metadata().labels);
        is_enrolled(&pod.metadata, labels)
    }

    /// Hands the controller everything as it is now; it finds the differences.
    fn publish(&mut self) {
        if !self.loaded {
            return;
        }
        let pods: Vec<Pod> = self.pods.values().map(Entry::observed).collect();
        let declared = self.wanted.values().map(|object| &**object);
        let ports = declared_ports(declared, &pods.iter().collect::<Vec<_>>(), &self.ctx.cluster_domain);
        let mut all: BTreeMap<ObjectKey, Object> = self
            .wanted
            .iter()
            .filter(|(key, _)| !matches!(key.kind, Kind::Pod | Kind::Node))
            .map(|(key, object)| (key.clone(), (**object).clone()))
            .collect();
        for node in &self.nodes {
            let declared = self.wanted.get(&ObjectKey::new(Kind::Node, "", &node.name));
            let declared = declared.and_then(|object| NodeObject::of(object));
            let object = Object::Node(node_object(&node.name, node.addresses, declared));
            all.insert(object.key(), object);
        }
        all.extend(
            pods.into_iter()
                .map(|pod| (ObjectKey::new(Kind::Pod, &pod.metadata.namespace, &pod.metadata.name), pod.into())),
        );
        // Before the proxies are told: rules for what is gone go first.
        self.ports.send_if_modified(|now| {
            let changed = **now != ports;
            if changed {
                *now = Arc::new(ports);
            }
            changed
        });
        self.ctx.plane.publish(all.into_values());
    }

    fn show(&mut self) {
        if !self.loaded {
            return;
        }
        let nodes = self
            .nodes
            .iter()
            .map(|node| {
                let proxy = node.proxy.borrow().clone();
                let mut ips = vec![IpAddr::from(node.addresses.fabric_v4())];
                if self.ctx.networks.ipv6 {
                    ips.push(node.addresses.fabric_v6().into());
                }
                NodeListing {
                    name: node.name.clone(),
                    proxy: proxy.program,
                    ready: proxy.ready,
                    ips,
                    netns: node.network.name.clone(),
                    pid: proxy.pid,
                    restarts: proxy.restarts,
                    message: proxy.message,
                }
            })
            .collect();
        let mut pods: Vec<_> = self.pods.values().map(|entry| self.pod_listing(entry)).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self.listing.send_if_modified(|listing| {
            let changed = listing.nodes != nodes || listing.pods != pods || listing.warnings != self.warnings;
            listing.warnings.clone_from(&self.warnings);
            listing.nodes = nodes;
            listing.pods = pods;
            changed
        });
    }

    fn pod_listing(&self, entry: &Entry) -> PodListing {
        let metadata = &entry.pod.metadata;
        PodListing {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            node: self.nodes[entry.node].name.clone(),
            ips: entry.plan.ips.clone(),
            in_mesh: entry.report.enrolled,
            ready: entry.report.ready,
            status: entry.report.status.clone(),
            restarts: entry.report.restarts,
            message: entry.report.message.clone(),
            wants_mesh: entry.wish.borrow().in_mesh,
            netns: self.ctx.networks.names.pod(&metadata.namespace, &metadata.name),
            pid: entry.report.sandbox.as_ref().map(Sandbox::pid),
        }
    }

    fn tell(&self, event: StageEvent) {
        // Nobody needs to listen.
        let _ = self.news.send(event);
    }
}
