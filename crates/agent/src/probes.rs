//! Keeps the node's rules for the kubelet's health checks, for the pods that are captured.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use leno_capture::probe_rules::{self, ProbeRules};
use leno_capture::{Gate, NetworkNamespace, RuleWatch};
use leno_telemetry::ReadyTask;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::metrics::AgentMetrics;

/// A pod's start waits so long for the rules at most: health checks are tried again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Others change the node's rules often and many at a time; so long they are waited for before ours are looked at.
const CALM: Duration = Duration::from_millis(200);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The pods whose health checks are let through. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Probes {
    wanted: watch::Sender<Wanted>,
    applied: watch::Sender<u64>,
}

#[derive(Debug, Clone, Default)]
struct Wanted {
    version: u64,
    /// Nobody keeps the rules any more.
    stopped: bool,
    /// The pod that has each address. An address may have gone to another pod before its last owner is known to be gone.
    owners: BTreeMap<IpAddr, String>,
}

impl Probes {
    pub(crate) fn new() -> Self {
        Self { wanted: watch::Sender::default(), applied: watch::Sender::default() }
    }

    /// Lets health checks of this pod through; returns when it is so, or when that takes long.
    pub(crate) async fn set(&self, uid: &str, addresses: &[IpAddr]) {
        self.change(|owners| {
            owners.retain(|address, owner| owner != uid || addresses.contains(address));
            owners.extend(addresses.iter().map(|address| (*address, uid.to_owned())));
        });
        let version = self.wanted.borrow().version;
        let mut applied = self.applied.subscribe();
        let _ = timeout(PATIENCE, applied.wait_for(|applied| *applied >= version)).await;
    }

    /// The opposite. Nobody waits.
    pub(crate) fn unset(&self, uid: &str) {
        self.change(|owners| owners.retain(|_, owner| owner != uid));
    }

    /// Ends [`Self::keep`] when what it is doing is done.
    pub(crate) fn stop(&self) {
        self.wanted.send_modify(|wanted| wanted.stopped = true);
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<IpAddr, String>)) {
        self.wanted.send_if_modified(|wanted| {
            let before = wanted.owners.clone();
            change(&mut wanted.owners);
            let changed = before != wanted.owners;
            wanted.version += u64::from(changed);
            changed
        });
    }

    /// Keeps the rules until [`Self::stop`].
    pub(crate) async fn keep(
        &self,
        node: NetworkNamespace,
        rules: ProbeRules,
        gate: Gate,
        metrics: AgentMetrics,
        mut ready: ReadyTask,
    ) {
        let mut wanted = self.wanted.subscribe();
        let watch = RuleWatch::new(&node)
            .inspect_err(|error| tracing::warn!(%error, "changes of the node's rules by others are noticed late"))
            .ok();
        let mut installed = None;
        loop {
            let now = wanted.borrow_and_update().clone();
            if now.stopped {
                return;
            }
            let addresses: BTreeSet<IpAddr> = now.owners.into_keys().collect();
            let known = installed.as_ref() == Some(&addresses);
            let (node, rules, put) = (node.clone(), rules.clone(), addresses.clone());
            let work = move || -> leno_capture::Result<_> {
                let problems = if known { probe_rules::check(&node, &rules, &put)? } else { Vec::new() };
                if !known || !problems.is_empty() {
                    probe_rules::install(&node, &rules, &put)?;
                }
                Ok(problems)
            };
            match gate.run(work).await {
                Ok(Ok(problems)) => {
                    if let Some(first) = problems.first() {
                        metrics.repaired("probes");
                        tracing::warn!("somebody changed the node's rules for health checks; they are back ({first})");
                    }
                    installed = Some(addresses);
                    self.applied.send_replace(now.version);
                    ready.ready();
                }
                Ok(Err(error)) => {
                    installed = None;
                    ready.not_ready(error.to_string());
                    sleep(RETRY).await;
                    continue;
                }
                Err(_) => return,
            }
            let changed_by_others = async {
                match &watch {
                    Some(watch) => watch.changed().await,
                    None => sleep(RETRY).await,
                }
                sleep(CALM).await;
            };
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = changed_by_others => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_belongs_to_who_got_it_last() {
        let probes = Probes::new();
        let owners = || probes.wanted.borrow().owners.clone();
        probes.set("old", &[ip("10.0.0.4"), ip("fd00::4")]).await;
        probes.set("new", &[ip("10.0.0.4")]).await;
        probes.unset("old");
        assert_eq!(owners(), [(ip("10.0.0.4"), "new".to_owned())].into());
        probes.set("new", &[ip("10.0.0.5")]).await;
        assert_eq!(owners(), [(ip("10.0.0.5"), "new".to_owned())].into());
    }
}
