//! A pod on its way into the mesh and out of it: captured, announced, acknowledged, released.
//!
//! Two things make a pod part of the mesh: the rules inside its network namespace ([`crate::pod_rules`]), and a proxy of its
//! node that has acknowledged it ([`crate::zds`]). Their order is what keeps traffic safe and whole, and it is decided here, for
//! whoever makes pods: [`Enrollment`] is told which namespace is whose, and knows nothing else of what a pod is.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::gate::{Gate, Stopped};
use crate::netns::NetworkNamespace;
use crate::pod_rules::PodRules;
use crate::zds::{self, Agent, PodInfo};
use crate::{pod_hold, pod_rules};

/// How long one attempt waits for a proxy before the caller is told that none is there.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a pod's new connections wait for the next proxy before they are refused: longer than one takes to be started, also
/// on a busy machine, and a program should hear soon that there is none.
const HOLD: Duration = Duration::from_secs(10);

/// What a step of an enrollment failed with. The step can be taken again; what had been done stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the rules.
    #[error("rules in the pod: {0}")]
    Rules(#[from] crate::Error),
    /// No proxy acknowledged the pod.
    #[error(transparent)]
    Proxy(#[from] zds::Error),
    /// The process ends.
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

/// Where a pod stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its connections go where they would without a mesh, and no proxy serves it.
    Released,
    /// A proxy serves it, but its new connections don't go there: not yet, or no longer.
    Announced,
    /// Its connections go to a proxy's ports, where none that serves it has been heard of: they wait, or are refused. It may also
    /// be that only a part of its rules is there, because putting them in place failed or was given up.
    Captured,
    /// A proxy has acknowledged it and its connections go there.
    Enrolled,
}

/// One pod's enrollment. Each of its steps may be given up (the future dropped) and taken again, or followed by any other.
/// Dropping it leaves rules and announcement as they are.
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

/// Changes of one pod's rules: each goes on when it is given up, and the next one waits for it.
#[derive(Debug, Clone)]
struct Work {
    gate: Gate,
    turn: Arc<Mutex<()>>,
}

impl Work {
    async fn run(&self, work: impl FnOnce() -> crate::Result<()> + Send + 'static) -> Result<(), Error> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let in_turn = move || {
            let _turn = turn;
            work()
        };
        Ok(self.gate.run(in_turn).await??)
    }
}

/// What is known of the rules in a pod's namespace.
#[derive(Debug)]
enum Rules {
    /// None that catches a new connection.
    Absent,
    /// They were being changed, and nothing says how far that came.
    Uncertain,
    /// All of them; the task keeps what is held in step with whether there is a proxy.
    Installed(JoinSet<()>),
}

impl Enrollment {
    /// For the pod of this namespace. Nothing is done yet. `info` says whose identity its connections have, `options` what is
    /// captured; `agent` tells the node's proxies, and `gate` bounds how many pods' rules are changed at a time.
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

    /// Where the pod stands.
    #[must_use]
    pub fn state(&self) -> State {
        match (&self.rules, self.announced) {
            (Rules::Absent, false) => State::Released,
            (Rules::Absent, true) => State::Announced,
            (Rules::Installed(_), true) => State::Enrolled,
            (Rules::Installed(_), false) | (Rules::Uncertain, _) => State::Captured,
        }
    }

    /// For a pod that has no process yet: rules first, so that nothing can slip out.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn capture_and_announce(&mut self) -> Result<State, Error> {
        self.capture().await?;
        self.announce().await?;
        Ok(self.state())
    }

    /// For a running pod: the proxy first, so that no connection finds the door shut.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn announce_and_capture(&mut self) -> Result<State, Error> {
        self.announce().await?;
        self.capture().await?;
        Ok(self.state())
    }

    /// For a running pod whose peers no longer send HBONE: new connections bypass the proxy, those
    /// that run through it keep the rules they need. To be followed by [`Self::withdraw`]. The rest
    /// of the rules stays for good: it changes nothing for connections outside the mesh, and
    /// without it a last word of a cut connection would leave in the clear.
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

    /// For a pod that was never started enrolled: as if nothing had been.
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

    /// Has the proxies let go of the pod. The rules of one whose processes are gone go with its
    /// namespace.
    pub async fn withdraw(&mut self) {
        if matches!(self.rules, Rules::Absent)
            && let Err(reason) = self.blocking(|namespace, _| pod_rules::release_dns(namespace)).await
        {
            tracing::debug!(pod = self.info.name, %reason, "DNS queries from known ports may be refused for a while");
        }
        // Also after a failed announcement: the agent may have kept the pod for later.
        self.agent.remove(&self.info.uid).await;
        self.announced = false;
    }

    /// Resolves when a proxy connected or left.
    pub async fn proxy_changed(&self) {
        let mut proxies = self.agent.proxies();
        proxies.borrow_and_update();
        if proxies.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn capture(&mut self) -> Result<(), Error> {
        if !matches!(self.rules, Rules::Installed(_)) {
            // The work goes on when this is given up.
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

    /// Has nobody but the caller change the rules.
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

/// Has a pod's new connections wait while a proxy is there or may be back soon, and be refused once none comes.
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
