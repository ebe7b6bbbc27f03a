//! Bringing a pod's traffic into the mesh and out of it: the rules inside its namespace, and the
//! node's proxy that serves it.

use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_capture::links;
use leno_capture::pod_rules::{self, PodRules};
use leno_capture::zds::{Agent, PodInfo};

use crate::pod::PodPlan;

/// How long one attempt waits for a proxy before the operator is told that none is there.
const PATIENCE: Duration = Duration::from_millis(500);

/// One pod's enrollment.
pub(crate) struct Enrollment {
    agent: Agent,
    namespace: NetworkNamespace,
    info: PodInfo,
    rules: PodRules,
    node: String,
    /// Whether rules were put in place, fully or not.
    closed: bool,
    announced: bool,
}

impl Enrollment {
    pub(crate) fn new(plan: &PodPlan, namespace: NetworkNamespace, ipv6: bool) -> Self {
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
            rules: PodRules { ipv6, ..PodRules::default() },
            node: plan.node.name.clone(),
            closed: false,
            announced: false,
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
    /// that run through it keep the rules they need. To be followed by [`Self::withdraw`].
    pub(crate) async fn open(&mut self) -> Result<(), String> {
        self.blocking(|namespace, _| pod_rules::remove_redirect(namespace)).await?;
        self.closed = false;
        Ok(())
    }

    /// For a pod that was never started enrolled: as if nothing had been.
    pub(crate) async fn abandon(&mut self) {
        if self.closed {
            let _ = self.blocking(|namespace, _| pod_rules::remove(namespace)).await;
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
            self.blocking(install).await.map_err(|reason| format!("rules in the pod: {reason}"))?;
            self.closed = true;
        }
        Ok(())
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
        // Also after a failed announcement: the agent may have kept the pod for later.
        self.agent.remove(&self.info.uid).await;
        self.announced = false;
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&NetworkNamespace, &PodRules) -> leno_capture::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let (namespace, rules) = (self.namespace.clone(), self.rules.clone());
        tokio::task::spawn_blocking(move || work(&namespace, &rules))
            .await
            .map_err(|reason| reason.to_string())?
            .map_err(|reason| reason.to_string())
    }
}

fn install(namespace: &NetworkNamespace, rules: &PodRules) -> leno_capture::Result<()> {
    // Connections that are older than the rules must stay as they are. By default the kernel
    // takes a packet from the middle of one for a new connection, which the rules would send to
    // the proxy, which would reset it. Best effort: not every kernel shows this setting to a
    // user namespace.
    if let Err(reason) = links::set_sysctl(namespace, "net.netfilter.nf_conntrack_tcp_loose", "0") {
        tracing::debug!(%reason, "connections older than a pod's enrollment may be reset");
    }
    pod_rules::install(namespace, rules)
}
