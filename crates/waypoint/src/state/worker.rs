//! The data-path threads as the waypoint uses them, with what each holds.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use leno_proxy::peers::{Failure, TunnelKey};
use leno_proxy::threads::Worker;
use leno_tunnel::Pool;

use crate::balance::Clusters;
use crate::pool::HttpPool;
use crate::state::open_list::Open;
use crate::state::request_metrics::Series;
use crate::transport::h2_budget::Common;

/// One data-path thread. A request stays on the thread of the tunnel that it came by.
pub(crate) struct Lane {
    pub(crate) worker: Worker,
    /// The tunnels opened on this thread.
    pub(crate) tunnels: Pool<TunnelKey, Failure>,
    /// The HTTP connections opened on this thread.
    pub(crate) http: HttpPool,
    /// The endpoints of services that it has used.
    pub(crate) clusters: Clusters,
    /// The metrics of the requests that it has carried.
    pub(crate) series: Series,
    /// What is open on this thread.
    pub(crate) open: Arc<Open>,
    /// How fast its clients' frames without use are taken.
    pub(crate) pace: Arc<Common>,
    /// The number of peers' tunnels that it serves.
    pub(crate) served: Arc<AtomicUsize>,
}

/// The lanes of `workers`, in their order.
pub(crate) fn lanes(workers: &[Worker], tunnel: &leno_tunnel::Settings) -> Vec<Lane> {
    let of = |worker: &Worker| Lane {
        worker: worker.clone(),
        tunnels: Pool::new(tunnel.clone()),
        http: HttpPool::default(),
        clusters: Clusters::default(),
        series: Series::default(),
        open: Arc::default(),
        pace: Arc::default(),
        served: Arc::default(),
    };
    workers.iter().map(of).collect()
}
