//! The proxies of a node that drain beside the one that serves.

use std::collections::VecDeque;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::settings::ProxySettings;
use super::{end, told};
use crate::stage::killed::Memory;
use crate::stage::spawn::Spawned;

/// Most that may drain beside the one that serves. When another begins to, the drain of the oldest is cut short: what is
/// new must not wait for what is old, however often a proxy is restarted.
pub(super) const DRAINING: usize = 4;

/// The proxies that drain.
#[derive(Default)]
pub(super) struct Draining {
    tasks: JoinSet<()>,
    /// Of each, the oldest first: its process, and what ends it.
    oldest_first: VecDeque<(i32, oneshot::Sender<()>)>,
}

impl Draining {
    pub(super) fn add(
        &mut self,
        proxy: Spawned,
        memory: Memory,
        settings: &ProxySettings,
        stop: &watch::Receiver<bool>,
    ) {
        let node = settings.node.as_str();
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|(_, cut)| !cut.is_closed());
        while self.oldest_first.len() >= DRAINING
            && let Some((pid, cut)) = self.oldest_first.pop_front()
        {
            tracing::warn!(
                node,
                pid,
                "{DRAINING} proxies drain already and another begins to; the oldest is ended, and the connections that it \
                 still has are cut. A proxy that is restarted less often keeps them until its drain ends"
            );
            settings.journal.note(format_args!(
                "node {node}: the proxy that drains (pid {pid}) is ended: {DRAINING} drain already"
            ));
            // One that has ended meanwhile needs no telling.
            let _ = cut.send(());
        }
        let (cut, is_cut) = oneshot::channel();
        self.oldest_first.push_back((proxy.pid, cut));
        self.tasks.spawn(see_off(proxy, memory, settings.clone(), stop.clone(), is_cut));
    }

    /// Waits until all of them have ended.
    pub(super) async fn end(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Waits for the end of a proxy that drains, or ends it with the stage or when it is told to.
async fn see_off(
    mut proxy: Spawned,
    memory: Memory,
    settings: ProxySettings,
    mut stop: watch::Receiver<bool>,
    cut: oneshot::Receiver<()>,
) {
    let pid = proxy.pid;
    let code = tokio::select! {
        code = &mut proxy.ended => Some(code.unwrap_or(1)),
        _ = stop.wait_for(|stop| *stop) => None,
        Ok(()) = cut => None,
    };
    match code {
        Some(code) => {
            // One that is killed may look for a moment as if it drained.
            let (node, how) = (&settings.node, told(code) + &memory.reason_of(code));
            settings.journal.note(format_args!("node {node}: the proxy that drained (pid {pid}) ended with {how}"));
        }
        None => end(proxy).await,
    }
}
