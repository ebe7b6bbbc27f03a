//! A pod that is bound to a node: what is known of it before it runs, and does not change.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::enroll;
use leno_capture::zds::PodInfo;

use crate::stage::context::Context;
use crate::stage::node::Node;
use crate::stage::pod::environment::{Facts, variables};

/// How the first start of a pod differs from another's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// How long it waits, and why, for the operator.
    pub after: Option<(Duration, String)>,
    /// How often a container is started again that fails; `None` for as often as it does.
    pub most_restarts: Option<u32>,
}

/// A pod that is bound to a node.
pub(crate) struct PodPlan {
    pub pod: leno_objects::Pod,
    pub uid: String,
    pub node: Arc<Node>,
    pub slot: u8,
    pub ips: Vec<IpAddr>,
    /// Logs and scratch directory.
    pub dir: PathBuf,
    pub start: Start,
}

impl PodPlan {
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.pod.metadata.namespace, self.pod.metadata.name)
    }

    /// The identity that its connections have.
    pub(crate) fn info(&self) -> PodInfo {
        let metadata = &self.pod.metadata;
        PodInfo {
            uid: self.uid.clone(),
            name: metadata.name.to_string(),
            namespace: metadata.namespace.to_string(),
            service_account: self.pod.spec.account().to_owned(),
        }
    }

    /// Why it is not enrolled, for the operator; whose proxy is meant is said.
    pub(crate) fn told(&self, reason: &enroll::Error) -> String {
        match reason {
            enroll::Error::Proxy(reason) => format!("{}: {reason}", self.node.name),
            reason => reason.to_string(),
        }
    }

    /// Environment of a container, also for what is run in it later.
    pub(crate) fn environment(
        &self,
        container: &leno_objects::Container,
        ctx: &Context,
    ) -> Result<Vec<(String, String)>, String> {
        let facts = Facts {
            metadata: &self.pod.metadata,
            uid: &self.uid,
            spec: &self.pod.spec,
            node: &self.node.name,
            node_ip: self.node.addresses.fabric_v4().into(),
            ips: &self.ips,
            config: &ctx.config(),
        };
        variables(container, &facts, &ctx.programs, |name| std::env::var(name).ok())
    }

    /// Directory a container starts in: its own scratch directory unless it says otherwise, so
    /// that what programs drop there doesn't litter the machine.
    pub(crate) fn directory(&self, container: &leno_objects::Container, ctx: &Context) -> PathBuf {
        if container.working_dir.is_empty() {
            self.dir.join("work")
        } else {
            ctx.started_in.join(&container.working_dir)
        }
    }

    /// Log of a container.
    pub(crate) fn log(&self, container: &str) -> PathBuf {
        self.dir.join(format!("{container}.log"))
    }
}
