//! Bringing a pod's traffic into the mesh and out of it: the rules inside its namespace, and the
//! node's proxy that serves it.

use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_capture::pod_hold;
use leno_capture::pod_rules::{self, PodRules};
use leno_capture::zds::{Agent, PodInfo};
use tokio::sync::watch;

use crate::stage::context::Context;
use crate::stage::tasks::{Gate, Tasks};
use crate::stage::pod::plan::PodPlan;

/// How long one attempt waits for a proxy before the operator is told that none is there.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a pod's new connections wait for the next proxy before they are refused: longer than one takes to be started, also
/// on a busy machine, and a program should hear soon that there is none.
const HOLD: Duration = Duration::from_secs(10);

/// One pod's enrollment.
pub(crate) struct Enrollment {
    agent: Agent,
    namespace: NetworkNamespace,
    info: PodInfo,
    rules: PodRules,
    gate: Gate,
    node: String,
    /// Whether rules were put in place, fully or not.
    closed: bool,
    announced: bool,
    /// Keeps what is held in step with whether there is a proxy, while the rules are in place.
    hold: Option<Tasks>,
}

impl Enrollment {
    pub(crate) fn new(plan: &PodPlan, namespace: NetworkNamespace, ctx: &Context) -> Self {
        let metadata = &plan.pod.metadata;
        Self {
            agent: plan.node.agent.clone(),
            namespace,
            info: PodInfo {
                uid: plan.uid.clone(),
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                service_account: plan.pod.spec.account().to_owned(),
            },
            rules: PodRules { ipv6: ctx.networks.ipv6, ..PodRules::default() },
            gate: ctx.gate.clone(),
            node: plan.node.name.clone(),
            closed: false,
            announced: false,
            hold: None,
        }
    }

    /// For a pod that has no process yet: rules first, so that nothing can slip out.
    pub(crate) async fn close_and_announce(&mut self) -> Result<(), String> {
        self.close().await?;
        self.announce().await
    }

    /// For a running pod: the proxy first, so that no connection finds the door shut.
    pub(crate) async fn announce_and_close(&mut self) -> Result<(), String> {
        self.announce().await?;
        self.close().await
    }

    /// For a running pod whose peers no longer send HBONE: new connections bypass the proxy, those
    /// that run through it keep the rules they need. To be followed by [`Self::withdraw`]. The rest
    /// of the rules stays for good: it changes nothing for connections outside the mesh, and
    /// without it a last word of a cut connection would leave in the clear.
    pub(crate) async fn open(&mut self) -> Result<(), String> {
        self.let_go().await;
        self.blocking(|namespace, _| pod_rules::remove_redirect(namespace).and_then(|()| pod_hold::remove(namespace)))
            .await?;
        self.closed = false;
        Ok(())
    }

    /// For a pod that was never started enrolled: as if nothing had been.
    pub(crate) async fn abandon(&mut self) {
        if self.closed {
            self.let_go().await;
            let both = |namespace: &NetworkNamespace, _: &PodRules| {
                pod_rules::remove(namespace).and_then(|()| pod_hold::remove(namespace))
            };
            let _ = self.blocking(both).await;
            self.closed = false;
        }
        self.withdraw().await;
    }

    /// Resolves when a proxy connected or left.
    pub(crate) async fn proxy_changed(&self) {
        let mut proxies = self.agent.proxies();
        proxies.borrow_and_update();
        if proxies.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn close(&mut self) -> Result<(), String> {
        if !self.closed {
            let both = |namespace: &NetworkNamespace, rules: &PodRules| {
                pod_rules::install(namespace, rules).and_then(|()| pod_hold::install(namespace))
            };
            self.blocking(both).await.map_err(|reason| format!("rules in the pod: {reason}"))?;
            self.closed = true;
            let mut tasks = Tasks::default();
            tasks.spawn(hold(self.agent.proxies(), self.namespace.clone(), self.gate.clone()));
            self.hold = Some(tasks);
        }
        Ok(())
    }

    async fn let_go(&mut self) {
        if let Some(tasks) = self.hold.take() {
            tasks.end().await;
        }
    }

    async fn announce(&mut self) -> Result<(), String> {
        if self.announced {
            return Ok(());
        }
        self.agent
            .add(self.info.clone(), self.namespace.clone(), PATIENCE)
            .await
            .map_err(|reason| format!("{}: {reason}", self.node))?;
        self.announced = true;
        Ok(())
    }

    /// Has the proxy let go of the pod. The rules of one whose processes are gone go with its
    /// namespace.
    pub(crate) async fn withdraw(&mut self) {
        if !self.closed
            && let Err(reason) = self.blocking(|namespace, _| pod_rules::release_dns(namespace)).await
        {
            tracing::debug!(pod = self.info.name, reason, "DNS queries from known ports may be refused for a while");
        }
        // Also after a failed announcement: the agent may have kept the pod for later.
        self.agent.remove(&self.info.uid).await;
        self.announced = false;
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&NetworkNamespace, &PodRules) -> leno_capture::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let (namespace, rules) = (self.namespace.clone(), self.rules.clone());
        self.gate
            .run(move || work(&namespace, &rules))
            .await
            .map_err(|reason| reason.to_string())?
            .map_err(|reason| reason.to_string())
    }
}

/// Has a pod's new connections wait while a proxy is there or may be back soon, and be refused once none comes.
async fn hold(mut proxies: watch::Receiver<usize>, namespace: NetworkNamespace, gate: Gate) {
    let set = async |held: bool| {
        let namespace = namespace.clone();
        let work = move || if held { pod_hold::install(&namespace) } else { pod_hold::remove(&namespace) };
        if let Ok(Err(reason)) = gate.run(work).await {
            tracing::debug!(%reason, held, "a pod's connections wait for a proxy, or don't, against the stage's will");
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
