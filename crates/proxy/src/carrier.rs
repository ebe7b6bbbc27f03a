//! The interface of the part of a proxy that carries traffic.

use std::future::Future;

use leno_telemetry::access_log::Record;
use serde::ser::SerializeMap;
use serde_json::{Map, Value};

/// Carries something from one place to another: a node's pods' connections, a waypoint's requests.
/// Everything else a proxy does is done for it ([`crate::run`]).
///
/// All of it is called on the control thread, but for [`Self::open`], [`Self::volume`] and [`Self::untold`].
pub trait Carrier: Send + Sync + 'static {
    /// Istio's name for this kind of proxy, used in metrics.
    const COMPONENT: &'static str;

    /// Whether it carries pods of its node, so that their certificates are asked for ahead of their first connection.
    const SERVES_NODE: bool;

    /// Whether it needs to know of HTTP routes and of policies about requests.
    const FOLLOWS_ROUTES: bool = false;

    /// The traffic at one moment.
    type Carried: Carried;

    /// Starts work. The proxy's own endpoints are open by then, and discovery has been asked.
    fn begin(&self);

    /// Called first when the proxy is to end: gives up whatever the next proxy needs in order to start.
    fn make_way(&self);

    /// Stops accepting as soon as another proxy does, and returns when all traffic has ended or the drain deadline has
    /// passed.
    fn wind_down(&self) -> impl Future<Output = ()>;

    /// Ends all traffic at once.
    fn cut(&self) -> impl Future<Output = ()>;

    /// The traffic at this moment, for the configuration dump.
    fn carried(&self) -> Self::Carried;

    /// How much it carries at this moment, for `/status`. May be called on any thread.
    fn volume(&self) -> Volume;

    /// The workloads that it serves although the control plane has told of everything but them, as `namespace/name`, for `/status`.
    /// May be called on any thread.
    fn untold(&self) -> Vec<String> {
        Vec::new()
    }

    /// What it carries at this moment, one by one: each connection or request as it would stand in the access log. Called
    /// on a thread that may wait, not on the control thread.
    fn open(&self) -> Box<dyn Iterator<Item = Record>>;

    /// The carrier's own settings in force, for the configuration dump.
    fn settings(&self) -> Map<String, Value>;
}

/// How much a proxy carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    /// Workloads that it serves: of a node proxy, the captured pods.
    pub workloads: usize,
    /// Workloads that were handed to it and can't be served yet.
    pub pending: usize,
    /// Connections or requests that stand.
    pub connections: usize,
}

/// The traffic of a proxy at one moment, as members of its configuration dump.
pub trait Carried: Send + 'static {
    /// Adds the members. Each is created only when it is written.
    ///
    /// # Errors
    /// If the writer fails.
    fn members<M: SerializeMap>(&self, dump: &mut M) -> Result<(), M::Error>;
}
