//! What is built on a proxy: the part that carries something.

use std::future::Future;

use leno_telemetry::access_log::Record;
use serde::ser::SerializeMap;
use serde_json::{Map, Value};

/// Carries something from one place to another: a node's pods' connections, a waypoint's requests.
/// Everything else a proxy does is done for it ([`crate::run`]).
///
/// All of it is called on the control thread, but for [`Self::open`].
pub trait Carrier: Send + Sync + 'static {
    /// What Istio calls such a proxy, in metrics.
    const COMPONENT: &'static str;

    /// What it carries at one moment.
    type Carried: Carried;

    /// Takes up its work. The proxy's own endpoints are open, and discovery is being asked.
    fn begin(&self);

    /// The first thing to do when the proxy is to end: gives up what the next proxy needs to begin.
    fn make_way(&self);

    /// Takes nothing new once somebody else does, and resolves when everything has ended that is carried, or the
    /// drain deadline has passed.
    fn wind_down(&self) -> impl Future<Output = ()>;

    /// Ends everything at once.
    fn cut(&self) -> impl Future<Output = ()>;

    /// For the configuration dump.
    fn carried(&self) -> Self::Carried;

    /// What it carries at this moment, one by one: each connection or request as it would stand in the access log. Called
    /// on a thread that may wait, not on the control thread.
    fn open(&self) -> Box<dyn Iterator<Item = Record>>;

    /// Its own settings in force, for the configuration dump.
    fn settings(&self) -> Map<String, Value>;
}

/// What a proxy carries at one moment, as members of its configuration dump.
pub trait Carried: Send + 'static {
    /// Adds the members, each written down only when it is its turn.
    ///
    /// # Errors
    /// Whatever the writer says.
    fn members<M: SerializeMap>(&self, dump: &mut M) -> Result<(), M::Error>;
}
