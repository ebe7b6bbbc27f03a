//! The data-path threads as pods use them, with the tunnels of each.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use leno_proxy::peers::{Failure, TunnelKey};
use leno_proxy::threads::Worker;
use leno_tunnel::Pool;

/// One data-path thread as pods use it.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) worker: Worker,
    /// Whether it takes connections that programs open.
    pub(crate) outbound: bool,
    /// The tunnels opened on this thread, for all pods. Their keys tell the pods apart.
    pub(crate) tunnels: Pool<TunnelKey, Failure>,
    /// The number of peers' tunnels that it serves, for all pods.
    pub(crate) served: Arc<AtomicUsize>,
    /// The number of spread bulk connections that it carries, for all pods.
    pub(crate) bulk: Arc<AtomicUsize>,
}

/// The lanes of `workers`. All of them accept incoming connections. Every second one, rounded up, also takes those that
/// programs open: these cost less (no policy, no connect to a program), and the more of them share one tunnel, the more
/// leaves in one record (lab/results/experiments.md). Bulk is spread over all ([`crate::outbound::places`]).
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
