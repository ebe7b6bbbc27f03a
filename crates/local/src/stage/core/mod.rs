//! The stage's one decision maker: it holds what should be and what is, and closes the gap one
//! event at a time.

mod controllers;
mod notes;
mod pods;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leno_objects::{Kind, Object, ObjectKey, Pod};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use self::controllers::{MAKERS, declared_replicas};
use crate::Error;
use crate::cluster::addresses::Slots;
use crate::cluster::admission;
use crate::cluster::config::Config;
use crate::cluster::objects::{Seen, observed};
use crate::cluster::services::DeclaredPorts;
use crate::cluster::waypoints::{self, Surroundings};
use crate::files::{Manifests, PassedOver, Sourced};
use crate::stage::context::Context;
use crate::stage::listing::Listing;
use crate::stage::node::Node;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::report::{PodEvent, Report, Wish};
use crate::stage::pod::volumes;
use crate::stage::request::{Request, StageEvent};

/// Longest a pod may take to end when the whole stage ends, unless somebody is in a hurry.
const LAST_GRACE: Duration = Duration::from_secs(3);

/// A pod that exists.
struct Entry {
    pod: Pod,
    plan: Arc<PodPlan>,
    node: usize,
    /// Which one in the order in which all were made.
    made: u64,
    /// Deployment and template, if it belongs to one.
    owner: Option<(ObjectKey, String)>,
    wish: watch::Sender<Wish>,
    report: Report,
}

impl Entry {
    fn leaving(&self) -> bool {
        self.wish.borrow().stop.is_some()
    }

    /// The pod as the API server would hold it.
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
    /// For each Job, how often it was tried again, and how the last try ended.
    failures: BTreeMap<ObjectKey, (u32, String)>,
    names: show::Names,
    /// Deployments whose pods are being replaced by those of another template.
    rolling: BTreeSet<ObjectKey>,
    /// Files and program together, completed.
    wanted: BTreeMap<ObjectKey, Arc<Object>>,
    pods: BTreeMap<String, Entry>,
    events: mpsc::UnboundedSender<PodEvent>,
    ports: watch::Sender<Arc<DeclaredPorts>>,
    listing: watch::Sender<Listing>,
    news: broadcast::Sender<StageEvent>,
    stopping: Option<oneshot::Sender<()>>,
    /// Longest a pod may take to end when the whole stage ends.
    last_grace: Duration,
    /// Warnings for the authors of the manifests in force.
    warnings: Vec<String>,
    /// What is in the manifests and not in force.
    passed_over: Vec<PassedOver>,
    made: u64,
    /// By their Gateways; for as long as the stage lives, so that an edit restarts no waypoint.
    waypoint_tokens: BTreeMap<ObjectKey, String>,
    around_waypoints: Option<Arc<Surroundings>>,
    /// Whether the first manifests took effect; before that there is nothing to show.
    loaded: bool,
}

impl Core {
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
            failures: BTreeMap::new(),
            names: show::Names::default(),
            rolling: BTreeSet::new(),
            wanted: BTreeMap::new(),
            pods: BTreeMap::new(),
            events,
            ports,
            listing,
            news,
            stopping: None,
            last_grace: LAST_GRACE,
            warnings: Vec::new(),
            passed_over: Vec::new(),
            made: 0,
            waypoint_tokens: BTreeMap::new(),
            around_waypoints: None,
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
                    if let Some(text) = notes::of_pod(&entry.report, &report) {
                        self.ctx.journal.note(format_args!("pod {}: {text}", entry.plan.label()));
                    }
                    entry.report = *report;
                    entry.report.ready &= !stopped;
                }
            }
            PodEvent::Gone { uid } => {
                if let Some(entry) = self.pods.remove(&uid) {
                    self.slots[entry.node].free(entry.plan.slot);
                    let metadata = &entry.pod.metadata;
                    self.ctx.journal.note(format_args!("pod {}: gone", entry.plan.label()));
                    self.tell(StageEvent::PodGone {
                        namespace: metadata.namespace.to_string(),
                        name: metadata.name.to_string(),
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
                    self.ctx.journal.note(format_args!("the edit is refused, the last good state stays:\n{refused}"));
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
            Request::Hurry => {
                self.last_grace = Duration::ZERO;
                self.reconcile();
            }
        }
    }

    /// Takes a new set of objects as what is wanted, or refuses it as a whole.
    fn adopt(&mut self, files: Manifests, applied: BTreeMap<ObjectKey, Arc<Object>>) -> Result<(), Error> {
        let mut all = files.clone();
        for (key, object) in &applied {
            all.objects.insert(key.clone(), Sourced { object: object.clone(), origin: None });
        }
        let names: Vec<_> = self.nodes.iter().map(|node| node.name.clone()).collect();
        self.waypoints(&mut all)?;
        let mut warnings = all.warnings.clone();
        warnings.extend(admission::complete(&mut all, &names, self.ctx.networks.ipv6)?);
        self.files = files;
        self.applied = applied;
        self.loaded = true;
        let passed_over = std::mem::replace(&mut self.passed_over, all.passed_over.clone());
        let places: BTreeMap<_, _> = all.objects.keys().map(|key| (key.clone(), all.place(key))).collect();
        let wanted = all.objects.into_iter().map(|(key, sourced)| (key, sourced.object)).collect();
        let before = std::mem::replace(&mut self.wanted, wanted);
        for line in notes::of_edit(&before, &self.wanted) {
            self.ctx.journal.note(line);
        }
        self.names = show::Names::of(self.wanted.values().map(|object| &**object));
        self.rollouts_begin(&before);
        // Before pods are made: that may add to them.
        let known = std::mem::replace(&mut self.warnings, warnings);
        self.configure();
        self.reconcile();
        // The control plane's warnings are known when it has the objects.
        for (key, status) in self.ctx.plane.findings() {
            let place = places.get(&key).map_or("", String::as_str);
            self.warnings.extend(status.findings().map(|finding| format!("{place}{key}: {finding}")));
        }
        for new in self.passed_over.iter().filter(|new| !passed_over.contains(new)) {
            self.ctx.journal.note(format_args!("warning: {new}"));
        }
        for warning in self.warnings.iter().filter(|warning| !known.contains(warning)) {
            self.ctx.journal.note(format_args!("warning: {warning}"));
        }
        self.show();
        Ok(())
    }

    /// Adds what makes the Gateways of waypoints into processes.
    fn waypoints(&mut self, all: &mut Manifests) -> Result<(), Error> {
        for (key, gateway) in waypoints::waypoints(all) {
            let around = match &self.around_waypoints {
                Some(around) => around.clone(),
                None => {
                    let around = self.ctx.around_waypoints()?;
                    self.around_waypoints.insert(Arc::new(around)).clone()
                }
            };
            let token = match self.waypoint_tokens.get(&key) {
                Some(token) => token.clone(),
                None => {
                    let token = self.ctx.plane.account_token(&key.namespace, &key.name)?;
                    self.waypoint_tokens.entry(key.clone()).or_insert(token).clone()
                }
            };
            let nodes: Vec<&str> = self.nodes.iter().map(|node| &*node.name).collect();
            waypoints::add(all, (&key, &gateway), &nodes, &token, &around).map_err(|reason| {
                Error::Manifest(format!("{}{key}: no waypoint can be made of it: {reason}", all.place(&key)))
            })?;
        }
        Ok(())
    }

    /// Hands ConfigMaps and Secrets to the pods that are made from now on, and their files to those that run.
    fn configure(&self) {
        let config = Arc::new(Config::of(self.wanted.iter()));
        if **self.ctx.config.lock() == *config {
            return;
        }
        *self.ctx.config.lock() = config.clone();
        let plans: Vec<_> = self.pods.values().map(|entry| entry.plan.clone()).collect();
        tokio::task::spawn_blocking(move || {
            for plan in plans {
                if let Err(reason) = volumes::refresh(&plan, &config) {
                    tracing::warn!(
                        pod = plan.label(),
                        "the files of a changed ConfigMap or Secret stay as they were: {reason}"
                    );
                }
            }
        });
    }

    fn label(&mut self, namespace: &str, key: String, value: Option<String>) -> Result<(), Error> {
        let id = ObjectKey::new(Kind::Namespace, "", namespace);
        let mut object = match self.wanted.get(&id) {
            Some(object) => (**object).clone(),
            None => return Err(Error::NotFound(format!("there is no namespace {namespace}"))),
        };
        match value {
            Some(value) => object.metadata_mut().labels.insert(key.into(), value.into()),
            None => object.metadata_mut().labels.remove(&*key),
        };
        let mut applied = self.applied.clone();
        applied.insert(id, Arc::new(object));
        self.adopt(self.files.clone(), applied)
    }

    /// How many it had.
    fn scale(&mut self, namespace: &str, name: &str, replicas: u32) -> Result<u32, Error> {
        let keys = [Kind::Deployment, Kind::StatefulSet].map(|kind| ObjectKey::new(kind, namespace, name));
        let declared =
            |key: ObjectKey| Some((self.wanted.get(&key).and_then(|object| declared_replicas(object))?, key));
        let Some((in_file, key)) = keys.into_iter().find_map(declared) else {
            let scalable = self.wanted.iter().filter(|(_, object)| declared_replicas(object).is_some());
            let known: Vec<_> = scalable.map(|(key, _)| format!("{}/{}", key.namespace, key.name)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::NotFound(format!(
                "there is no Deployment or StatefulSet {namespace}/{name}; there are: {known}"
            )));
        };
        let before = self.scaled.get(&key).map_or(in_file, |(_, wanted)| *wanted);
        self.ctx.journal.note(format_args!("{key}: scaled from {before} to {replicas} by `leno scale`"));
        self.scaled.insert(key, (in_file, replicas));
        self.reconcile();
        Ok(before)
    }

    fn find(&self, namespace: &str, name: &str) -> Result<(Arc<PodPlan>, Report), Error> {
        let of_pod = |entry: &&Entry| &*entry.pod.metadata.namespace == namespace && &*entry.pod.metadata.name == name;
        if let Some(entry) = self.pods.values().find(of_pod) {
            return Ok((entry.plan.clone(), entry.report.clone()));
        }
        // `leno exec shop/web` means any pod of what is called `web` and makes pods.
        let is_owner =
            |key: &ObjectKey| MAKERS.contains(&key.kind) && &*key.namespace == namespace && &*key.name == name;
        let owned = |entry: &&Entry| entry.owner.as_ref().is_some_and(|(key, _)| is_owner(key));
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

    fn tell(&self, event: StageEvent) {
        // Nobody needs to listen.
        let _ = self.news.send(event);
    }
}
