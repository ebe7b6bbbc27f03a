//! Keeps one pod as it should be: in the mesh, or out of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::enroll::{Enrollment, State};
use leno_capture::zds::Agent;
use leno_capture::{Gate, NamespaceId, NetworkNamespace, RuleWatch, pod_rules};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::{Cluster, PodName};
use crate::directory::Wish;
use crate::metrics::AgentMetrics;
use crate::probes::Probes;
use crate::processes::Finder;

/// How long the start of a pod waits for a proxy. The runtime tries again, with a new sandbox.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts of what failed.
const RETRY: Duration = Duration::from_millis(300);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often a pod's listeners are looked at. There is no event for a listener that goes.
const LISTENERS: Duration = Duration::from_millis(500);
/// Whoever changes rules rarely changes one alone.
const CALM: Duration = Duration::from_millis(20);
/// How long requests that peers send through the proxy have to end when a pod leaves the mesh, and peers to hear of it.
const DRAIN: Duration = Duration::from_secs(3);

/// What all pods of the node share.
pub(crate) struct Shared {
    pub(crate) proxies: Agent,
    pub(crate) finder: Finder,
    pub(crate) probes: Probes,
    pub(crate) gate: Gate,
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) metrics: AgentMetrics,
    /// Changes when a pod's [`Standing`] does.
    pub(crate) moved: watch::Sender<u64>,
}

/// Where a pod stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// It is captured, and a proxy has acknowledged it.
    pub(crate) enrolled: bool,
    /// All is as it should be, and the pod says so.
    pub(crate) settled: bool,
}

/// What the container runtime wants of a pod.
#[derive(Debug)]
pub(crate) enum Request {
    /// Its new sandbox must be captured before it may start.
    Add {
        namespace: NetworkNamespace,
        sandbox: String,
        addresses: Vec<IpAddr>,
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// A sandbox ends.
    Ended { namespace: Option<NamespaceId>, sandbox: String, answer: oneshot::Sender<()> },
    /// Is it captured as it should be?
    Check { answer: oneshot::Sender<Result<(), String>> },
}

/// How others reach a pod's task. The pod has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) wish: watch::Sender<Wish>,
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) standing: watch::Receiver<Standing>,
}

/// The task of one pod.
pub(crate) struct PodTask {
    shared: Arc<Shared>,
    wish: watch::Receiver<Wish>,
    requests: mpsc::Receiver<Request>,
    standing: watch::Sender<Standing>,
    network: Option<Network>,
    /// The runtime has ended the pod's sandbox; another one begins with a request.
    sandbox_ended: bool,
    /// What the pod says: whether it is captured.
    told: bool,
    /// The last trouble that the log has.
    trouble: Option<String>,
}

/// The network of a pod's sandbox.
struct Network {
    namespace: NetworkNamespace,
    /// The runtime's id of the sandbox; `None` if it was found running.
    sandbox: Option<String>,
    enrollment: Enrollment,
    rules: Option<RuleWatch>,
    /// Somebody has changed rules.
    suspicious: bool,
    /// When the listeners were looked at.
    looked: Instant,
}

impl PodTask {
    /// For a pod that is to be as `wish` says. `found` is its network namespace, if it is known.
    pub(crate) fn new(shared: Arc<Shared>, wish: Wish, found: Option<NetworkNamespace>) -> (Self, Handle) {
        let told = wish.annotated;
        let (wish_sender, wish) = watch::channel(wish);
        // The runtime asks once at a time.
        let (request_sender, requests) = mpsc::channel(4);
        let (standing, standing_receiver) = watch::channel(Standing::default());
        let mut task =
            Self { shared, wish, requests, standing, network: None, sandbox_ended: false, told, trouble: None };
        task.network = found.map(|namespace| task.network_in(namespace));
        (task, Handle { wish: wish_sender, requests: request_sender, standing: standing_receiver })
    }

    /// Works until the pod has ended.
    pub(crate) async fn run(mut self) {
        let mut retry = RETRY;
        let mut annotated = self.told;
        loop {
            let wish = self.wish.borrow_and_update().clone();
            // News of what this task wrote itself may come late, so only what has changed counts.
            if std::mem::replace(&mut annotated, wish.annotated) != wish.annotated {
                self.told = wish.annotated;
            }
            let outcome = self.follow(&wish).await;
            self.report(&outcome);
            let pause = match &outcome {
                Ok(()) => {
                    retry = RETRY;
                    None
                }
                Err(_) => {
                    let pause = retry;
                    retry = (retry * 2).min(RETRY_MAX);
                    Some(pause)
                }
            };
            let enrolled = self.standing.borrow().enrolled;
            tokio::select! {
                changed = self.wish.changed() => if changed.is_err() {
                    break;
                },
                Some(request) = self.requests.recv() => self.serve(request).await,
                () = rules_changed(&self.network), if enrolled => {
                    sleep(CALM).await;
                    if let Some(network) = &mut self.network {
                        network.suspicious = true;
                    }
                }
                () = sleep(LISTENERS), if enrolled => {}
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
        self.leave().await;
    }

    /// Makes the pod what it should be. Errors are sentences.
    async fn follow(&mut self, wish: &Wish) -> Result<(), String> {
        if wish.in_mesh {
            self.join(wish).await?;
        } else {
            self.withdraw(wish).await?;
        }
        self.look_after().await
    }

    /// For a pod that should be in the mesh.
    async fn join(&mut self, wish: &Wish) -> Result<(), String> {
        if self.network.is_none() {
            // One without an address does not run; the runtime will ask.
            if self.sandbox_ended || wish.addresses.is_empty() {
                return Ok(());
            }
            let found = self.shared.finder.find(&wish.runtime_uid, &wish.addresses).await;
            let namespace = found.ok_or("it runs, and none of its processes is found in a network of its own")?;
            self.network = Some(self.network_in(namespace));
        }
        let Some(network) = &mut self.network else { return Ok(()) };
        if network.enrollment.state() != State::Enrolled {
            self.shared.probes.set(&wish.info.uid, &wish.addresses).await;
            let namespace = network.namespace.clone();
            let was_captured = self.shared.gate.run(move || pod_rules::redirects(&namespace).unwrap_or(false)).await;
            let outcome = if was_captured.unwrap_or(false) || network.enrollment.state() == State::Captured {
                network.enrollment.capture_and_announce().await
            } else {
                network.enrollment.announce_and_capture().await
            };
            outcome.map_err(|error| error.to_string())?;
            network.watch_rules();
            tracing::info!(pod = %label(wish), "in the mesh");
        }
        self.tell(wish, true).await
    }

    /// For a pod that should not be in the mesh.
    async fn withdraw(&mut self, wish: &Wish) -> Result<(), String> {
        // Others must have stopped sending HBONE before nobody takes it any more.
        let was_told = self.told;
        self.tell(wish, false).await?;
        if self.network.is_none() && was_told && !self.sandbox_ended {
            let found = self.shared.finder.find(&wish.runtime_uid, &wish.addresses).await;
            self.network = found.map(|namespace| self.network_in(namespace));
        }
        let Some(network) = &mut self.network else { return Ok(()) };
        network.enrollment.release().await.map_err(|error| error.to_string())?;
        // Requests through the proxy may end. New ones don't come.
        let mut again = self.wish.clone();
        let _ = timeout(DRAIN, again.wait_for(|wish| wish.in_mesh)).await;
        if again.borrow().in_mesh {
            return Ok(());
        }
        network.enrollment.withdraw().await;
        self.network = None;
        self.shared.probes.unset(&wish.info.uid);
        tracing::info!(pod = %label(wish), "out of the mesh");
        Ok(())
    }

    /// Puts right what somebody changed in a pod that is in the mesh.
    async fn look_after(&mut self) -> Result<(), String> {
        let metrics = &self.shared.metrics;
        let Some(network) = &mut self.network else { return Ok(()) };
        if network.enrollment.state() != State::Enrolled {
            return Ok(());
        }
        if std::mem::take(&mut network.suspicious) || network.rules.is_none() {
            let problems = network.enrollment.repair_rules().await.map_err(|error| error.to_string())?;
            if let Some(first) = problems.first() {
                metrics.repaired("rules");
                let pod = &self.wish.borrow().info.name;
                tracing::warn!(pod, "somebody changed the rules that capture the pod; they are back ({first})");
            }
        }
        if network.looked.elapsed() >= LISTENERS {
            network.looked = Instant::now();
            if network.enrollment.lacks_listeners().await.map_err(|error| error.to_string())? {
                metrics.repaired("listeners");
                let pod = self.wish.borrow().info.name.clone();
                tracing::warn!(pod, "no proxy listens in the pod, although one took it; it is announced again");
                network.enrollment.announce_again().await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    async fn tell(&mut self, wish: &Wish, captured: bool) -> Result<(), String> {
        if self.told != captured {
            self.shared.cluster.tell(&name(wish), captured).await?;
            self.told = captured;
        }
        Ok(())
    }

    async fn serve(&mut self, request: Request) {
        match request {
            Request::Add { namespace, sandbox, addresses, answer } => {
                let outcome = self.add(namespace, sandbox, &addresses).await;
                if outcome.is_ok() {
                    self.stand(true, false);
                }
                let _ = answer.send(outcome);
            }
            Request::Ended { namespace, sandbox, answer } => {
                self.end_sandbox(namespace, &sandbox).await;
                let _ = answer.send(());
            }
            Request::Check { answer } => {
                let _ = answer.send(self.check().await);
            }
        }
    }

    /// Captures a new sandbox before anything runs in it.
    async fn add(&mut self, namespace: NetworkNamespace, sandbox: String, ips: &[IpAddr]) -> Result<(), String> {
        self.sandbox_ended = false;
        let known = self.network.as_ref().is_some_and(|network| network.namespace == namespace);
        if !known {
            self.network = Some(self.network_in(namespace));
        }
        let uid = self.wish.borrow().info.uid.clone();
        let Some(network) = &mut self.network else { return Ok(()) };
        network.sandbox = Some(sandbox);
        let shared = &self.shared;
        let deadline = Instant::now() + PATIENCE;
        let capture = async {
            loop {
                let failed = match network.enrollment.capture_and_announce().await {
                    Ok(_) => return Ok(()),
                    Err(error) => error,
                };
                if !failed.is_retryable() || Instant::now() >= deadline {
                    return Err(failed.to_string());
                }
                // Another attempt waits for the next proxy by itself.
                sleep(CALM).await;
            }
        };
        let ((), outcome) = tokio::join!(shared.probes.set(&uid, ips), capture);
        outcome?;
        network.watch_rules();
        Ok(())
    }

    async fn end_sandbox(&mut self, namespace: Option<NamespaceId>, sandbox: &str) {
        let Some(network) = &mut self.network else { return };
        let is_this = match &network.sandbox {
            Some(own) => own == sandbox,
            None => namespace == Some(network.namespace.id()),
        };
        if !is_this {
            return;
        }
        // The rules go with the namespace.
        network.enrollment.withdraw().await;
        self.network = None;
        self.sandbox_ended = true;
        self.shared.probes.unset(&self.wish.borrow().info.uid);
        self.stand(false, false);
    }

    async fn check(&mut self) -> Result<(), String> {
        let Some(network) = &mut self.network else { return Err("it is not captured".to_owned()) };
        if network.enrollment.state() != State::Enrolled {
            return Err("no node proxy has taken it".to_owned());
        }
        let problems = network.enrollment.repair_rules().await.map_err(|error| error.to_string())?;
        problems.first().map_or(Ok(()), |first| Err(format!("its rules were changed, and are back ({first})")))
    }

    /// The pod has ended.
    async fn leave(&mut self) {
        let uid = self.wish.borrow().info.uid.clone();
        self.shared.probes.unset(&uid);
        if let Some(mut network) = self.network.take() {
            network.enrollment.withdraw().await;
        } else {
            // A proxy may keep it for later.
            self.shared.proxies.remove(&uid).await;
        }
        self.stand(false, true);
    }

    fn network_in(&self, namespace: NetworkNamespace) -> Network {
        let wish = self.wish.borrow();
        let shared = &self.shared;
        let (info, rules) = (wish.info.clone(), wish.rules.clone());
        let enrollment = Enrollment::new(namespace.clone(), info, rules, shared.proxies.clone(), shared.gate.clone());
        Network { namespace, sandbox: None, enrollment, rules: None, suspicious: true, looked: Instant::now() }
    }

    fn report(&mut self, outcome: &Result<(), String>) {
        let enrolled = self.network.as_ref().is_some_and(|network| network.enrollment.state() == State::Enrolled);
        self.stand(enrolled, outcome.is_ok());
        let trouble = outcome.as_ref().err();
        // Each trouble is said once, not with every attempt.
        if trouble != self.trouble.as_ref()
            && let Some(trouble) = trouble
        {
            let wish = self.wish.borrow();
            let wanted = if wish.in_mesh { "in" } else { "out of" };
            tracing::warn!(pod = %label(&wish), "not yet {wanted} the mesh as it should be: {trouble}");
        }
        self.trouble = trouble.cloned();
    }

    fn stand(&self, enrolled: bool, settled: bool) {
        let new = Standing { enrolled, settled };
        if self.standing.send_if_modified(|standing| std::mem::replace(standing, new) != new) {
            self.shared.moved.send_modify(|count| *count += 1);
        }
    }
}

impl Network {
    fn watch_rules(&mut self) {
        if self.rules.is_none() {
            let watch = RuleWatch::new(&self.namespace);
            self.rules =
                watch.inspect_err(|error| tracing::debug!(%error, "a pod's rules are looked at twice a second")).ok();
        }
        // They may have been changed before.
        self.suspicious = true;
    }
}

async fn rules_changed(network: &Option<Network>) {
    match network.as_ref().and_then(|network| network.rules.as_ref()) {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

fn name(wish: &Wish) -> PodName {
    let info = &wish.info;
    PodName { namespace: info.namespace.clone(), name: info.name.clone(), uid: info.uid.clone() }
}

fn label(wish: &Wish) -> String {
    format!("{}/{}", wish.info.namespace, wish.info.name)
}
