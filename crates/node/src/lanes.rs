//! The data-path threads as pods see them, and the tunnels that are opened on each.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use leno_proxy::peers::{Failure, TunnelKey};
use leno_proxy::threads::Worker;
use leno_tunnel::Pool;

/// One data-path thread as a pod sees it.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) worker: Worker,
    /// Whether it takes connections that programs open.
    pub(crate) outbound: bool,
    /// The tunnels opened on this thread, for all pods: the key tells them apart.
    pub(crate) tunnels: Pool<TunnelKey, Failure>,
    /// How many of peers' tunnels it serves, of all pods.
    pub(crate) served: Arc<AtomicUsize>,
    /// How many connections it carries that were spread over all workers, of all pods.
    pub(crate) bulk: Arc<AtomicUsize>,
}

/// Those of `workers`. All of them take connections in; every second one, rounded up, also
/// those that programs open. That costs less (no policy, no connect to a program), and the more of
/// it goes by one tunnel, the more leaves in one record (lab/results/experiments.md). Bulk is spread
/// ([`crate::outbound::places`]).
pub(crate) fn lanes(workers: &[Worker], tunnel: &leno_tunnel::Settings) -> Vec<Lane> {
    let of = |(index, worker): (usize, &Worker)| Lane {
        worker: worker.clone(),
        outbound: index % 2 == 0,
        tunnels: Pool::new(tunnel.clone()),
        served: Arc::default(),
        bulk: Arc::default(),
    };
    workers.iter().enumerate().map(of).collect()
}
