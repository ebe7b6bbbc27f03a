//! How a pod joins and leaves the mesh: captured, announced, acknowledged, released.
//!
//! Two things make a pod part of the mesh: the rules inside its network namespace ([`crate::pod_rules`]), and a proxy
//! of its node that has acknowledged it ([`crate::zds`]). Their order keeps traffic safe and connections alive, and it
//! is decided here. [`Enrollment`] is told a namespace and its identity, and knows nothing else of a pod.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::gate::{Gate, Stopped};
use crate::listeners::others_listen;
use crate::netns::NetworkNamespace;
use crate::pod_rules::{PodRules, Problem};
use crate::zds::{self, Agent, PodInfo};
use crate::{pod_hold, pod_rules};

/// How long one attempt waits for a proxy before it reports that there is none.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a pod's new connections wait for the next proxy before they are refused. It is longer than a proxy takes to
/// start, also on a busy machine, and a program should learn soon that there is none.
const HOLD: Duration = Duration::from_secs(10);

/// Why a step of an enrollment failed. The step can be repeated. What was done before stays done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the rules.
    #[error("rules in the pod: {0}")]
    Rules(#[from] crate::Error),
    /// No proxy acknowledged the pod.
    #[error(transparent)]
    Proxy(#[from] zds::Error),
    /// The runtime ends.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl Error {
    /// Whether the same call may succeed later without anybody changing the machine's configuration.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Rules(error) => error.is_retryable(),
            Self::Proxy(error) => error.is_retryable(),
            Self::Stopped(_) => false,
        }
    }
}

/// The state of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is outside the mesh: its connections are not redirected, and no proxy serves it.
    Released,
    /// A proxy serves it, but its new connections are not redirected: not yet, or no longer.
    Announced,
    /// Its connections are redirected to a proxy's ports, but no proxy is known to serve it: they wait, or are refused.
    /// It is also possible that only some of the rules are in place, because installing them failed or was given up.
    Captured,
    /// A proxy has acknowledged it, and its connections are redirected to the proxy.
    Enrolled,
}

/// The enrollment of one pod. Each step may be given up (by dropping the future) and repeated, or followed by any
/// other. Dropping the enrollment leaves rules and announcement as they are.
#[derive(Debug)]
pub struct Enrollment {
    agent: Agent,
    namespace: NetworkNamespace,
    info: PodInfo,
    options: PodRules,
    work: Work,
    rules: Rules,
    /// Whether a proxy has acknowledged it.
    announced: bool,
}

/// Changes of one pod's rules. A change continues after it was given up, and the next one waits for it.
#[derive(Debug, Clone)]
struct Work {
    gate: Gate,
    turn: Arc<Mutex<()>>,
}

impl Work {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> crate::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let in_turn = move || {
            let _turn = turn;
            work()
        };
        Ok(self.gate.run(in_turn).await??)
    }
}

/// What is known about the rules in a pod's namespace.
#[derive(Debug)]
enum Rules {
    /// No rule that redirects a new connection.
    Absent,
    /// They were being changed, and it is unknown how far that got.
    Uncertain,
    /// All of them. The task adapts the rules for waiting connections to whether there is a proxy.
    Installed(JoinSet<()>),
}

impl Enrollment {
    /// For the pod of this namespace. Nothing is done yet. `info` has the identity of its connections, and `options`
    /// say what is captured. `agent` informs the node's proxies, and `gate` limits how many pods' rules are changed at
    /// a time.
    #[must_use]
    pub fn new(namespace: NetworkNamespace, info: PodInfo, options: PodRules, agent: Agent, gate: Gate) -> Self {
        Self {
            agent,
            namespace,
            info,
            options,
            work: Work { gate, turn: Arc::default() },
            rules: Rules::Absent,
            announced: false,
        }
    }

    /// The state of the pod.
    #[must_use]
    pub fn state(&self) -> State {
        match (&self.rules, self.announced) {
            (Rules::Absent, false) => State::Released,
            (Rules::Absent, true) => State::Announced,
            (Rules::Installed(_), true) => State::Enrolled,
            (Rules::Installed(_), false) | (Rules::Uncertain, _) => State::Captured,
        }
    }

    /// For a pod that has no process yet: the rules first, so that nothing can bypass them.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn capture_and_announce(&mut self) -> Result<State, Error> {
        self.capture().await?;
        self.announce().await?;
        Ok(self.state())
    }

    /// For a running pod: the proxy first, so that no connection is refused.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn announce_and_capture(&mut self) -> Result<State, Error> {
        self.announce().await?;
        self.capture().await?;
        Ok(self.state())
    }

    /// For a running pod whose peers no longer send HBONE. New connections bypass the proxy; those through the proxy
    /// keep the rules they need. Call [`Self::withdraw`] afterwards. The other rules stay permanently: they change
    /// nothing for connections outside the mesh, and without them a last packet of a cut connection would leave in
    /// plaintext.
    ///
    /// # Errors
    /// As [`Error`] says; then the pod is still in the mesh.
    pub async fn release(&mut self) -> Result<State, Error> {
        self.let_go().await;
        let both = |namespace: &NetworkNamespace, _: &PodRules| {
            pod_rules::remove_redirect(namespace).and_then(|()| pod_hold::remove(namespace))
        };
        self.blocking(both).await?;
        self.rules = Rules::Absent;
        Ok(self.state())
    }

    /// For an enrolled pod that was never started: undoes everything.
    pub async fn abandon(&mut self) {
        if !matches!(self.rules, Rules::Absent) {
            self.let_go().await;
            let both = |namespace: &NetworkNamespace, _: &PodRules| {
                pod_rules::remove(namespace).and_then(|()| pod_hold::remove(namespace))
            };
            if let Err(reason) = self.blocking(both).await {
                tracing::debug!(pod = self.info.name, %reason, "rules of a pod that is not enrolled stay in its namespace");
            }
            self.rules = Rules::Absent;
        }
        self.withdraw().await;
    }

    /// Makes the proxies drop the pod. The rules of a pod without processes go with its namespace.
    pub async fn withdraw(&mut self) {
        if matches!(self.rules, Rules::Absent)
            && let Err(reason) = self.blocking(|namespace, _| pod_rules::release_dns(namespace)).await
        {
            tracing::debug!(pod = self.info.name, %reason, "DNS queries from known ports may be refused for a while");
        }
        // Also after a failed announcement, because the agent may have kept the pod for later.
        self.agent.remove(&self.info.uid).await;
        self.announced = false;
    }

    /// Resolves when a proxy has connected or left.
    pub async fn proxy_changed(&self) {
        let mut proxies = self.agent.proxies();
        proxies.borrow_and_update();
        if proxies.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// For a pod that is in the mesh: puts right what somebody else changed in its rules, and returns what that was. Without
    /// the rules, its connections would bypass the proxy.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn repair_rules(&mut self) -> Result<Vec<Problem>, Error> {
        if !matches!(self.rules, Rules::Installed(_)) {
            return Ok(Vec::new());
        }
        let (namespace, options) = (self.namespace.clone(), self.options.clone());
        let proxies = self.agent.proxies();
        let work = move || {
            let mut problems = pod_rules::check(&namespace, &options)?;
            if !problems.is_empty() {
                pod_rules::install(&namespace, &options)?;
            }
            // Without a proxy, only the task that waits for the next one knows whether connections are to be held.
            if *proxies.borrow() > 0 && !pod_hold::is_installed(&namespace)? {
                pod_hold::install(&namespace)?;
                problems.push(Problem::Missing("the rules that hold connections until the next proxy".to_owned()));
            }
            Ok(problems)
        };
        self.work.run(work).await
    }

    /// For a pod that is in the mesh: whether no proxy listens in it, although one acknowledged it and is connected.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn lacks_listeners(&self) -> Result<bool, Error> {
        if !self.announced || *self.agent.proxies().borrow() == 0 {
            return Ok(false);
        }
        let namespace = self.namespace.clone();
        let ports = [pod_rules::OUTBOUND_PORT, pod_rules::INBOUND_PORT, pod_rules::TUNNEL_PORT].into();
        self.work.run(move || Ok(!others_listen(&namespace, &ports, &BTreeSet::new())?)).await
    }

    /// Makes the proxies drop the pod and take it again, so that its listeners are opened anew.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn announce_again(&mut self) -> Result<State, Error> {
        self.agent.remove(&self.info.uid).await;
        self.announced = false;
        self.announce().await?;
        Ok(self.state())
    }

    async fn capture(&mut self) -> Result<(), Error> {
        if !matches!(self.rules, Rules::Installed(_)) {
            // The work continues if this is given up.
            self.rules = Rules::Uncertain;
            let both = |namespace: &NetworkNamespace, options: &PodRules| {
                pod_rules::install(namespace, options).and_then(|()| pod_hold::install(namespace))
            };
            self.blocking(both).await?;
            let mut holding = JoinSet::new();
            holding.spawn(hold(self.agent.proxies(), self.namespace.clone(), self.work.clone()));
            self.rules = Rules::Installed(holding);
        }
        Ok(())
    }

    /// Makes sure that only the caller changes the rules.
    async fn let_go(&mut self) {
        if let Rules::Installed(holding) = &mut self.rules {
            holding.shutdown().await;
        }
        self.rules = Rules::Uncertain;
    }

    async fn announce(&mut self) -> Result<(), Error> {
        if !self.announced {
            self.agent.add(self.info.clone(), self.namespace.clone(), PATIENCE).await?;
            self.announced = true;
        }
        Ok(())
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&NetworkNamespace, &PodRules) -> crate::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let (namespace, options) = (self.namespace.clone(), self.options.clone());
        self.work.run(move || work(&namespace, &options)).await
    }
}

/// Lets a pod's new connections wait while a proxy is there or may be back soon, and refuses them when none comes.
async fn hold(mut proxies: watch::Receiver<usize>, namespace: NetworkNamespace, work: Work) {
    let set = async |held: bool| {
        let namespace = namespace.clone();
        let change = move || if held { pod_hold::install(&namespace) } else { pod_hold::remove(&namespace) };
        if let Err(reason) = work.run(change).await {
            tracing::debug!(%reason, held, "a pod's connections wait for a proxy, or don't, against the agent's will");
        }
    };
    loop {
        if proxies.wait_for(|count| *count == 0).await.is_err() {
            return;
        }
        match tokio::time::timeout(HOLD, proxies.wait_for(|count| *count > 0)).await.map(|found| found.is_ok()) {
            Ok(true) => continue,
            Ok(false) => return,
            Err(_) => set(false).await,
        }
        if proxies.wait_for(|count| *count > 0).await.is_err() {
            return;
        }
        set(true).await;
    }
}

#[cfg(test)]
#[path = "enroll_tests.rs"]
mod tests;
