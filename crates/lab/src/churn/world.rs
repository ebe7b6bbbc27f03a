//! The interface to whatever control plane is measured, together with the cluster that it serves.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

use super::phase::Kind;
use super::process::Process;
use super::state::Watched;
use crate::Error;

/// A control plane as a process, and the cluster that it serves.
pub(crate) trait World {
    /// The control plane's process.
    fn process(&self) -> &Process;

    /// Gives the process back, to be stopped.
    fn into_process(self) -> Process;

    /// Where proxies find it.
    ///
    /// # Errors
    /// If it does not listen yet.
    fn listening(&self) -> Result<Listening, Error>;

    /// The tokens of the proxies.
    fn tokens(&self) -> &[String];

    /// What proxies must know of the cluster as it is now.
    fn inventory(&self) -> Inventory;

    /// The number of the next change.
    fn next(&self) -> u32;

    /// Gives the control plane the whole cluster, and waits until it can serve it.
    async fn begin(&mut self) -> Result<(), Error>;

    /// Changes the cluster. `watched` is told the change's number and the time of its last event.
    async fn change(&mut self, kind: Kind, watched: &Watched) -> Result<Made, Error>;

    /// The same, and waits until the control plane has published the change.
    async fn change_and_publish(&mut self, kind: Kind, watched: &Watched) -> Result<Made, Error>;
}

/// The address of a control plane, and how to verify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    /// The name that its certificate must have.
    pub(crate) name: String,
    /// Its root certificate, PEM.
    pub(crate) root: String,
}

/// What every proxy must know.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    /// All pods, by the names of their workloads.
    pub(crate) workloads: HashMap<String, Expected>,
    /// The names of all services, as control planes write them.
    pub(crate) services: Vec<String>,
}

impl Inventory {
    /// The numbers of services and pods.
    pub(crate) fn resources(&self) -> usize {
        self.services.len() + self.workloads.len()
    }
}

/// What a proxy must know about a pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) revision: String,
    pub(crate) node: String,
    pub(crate) service_account: String,
    /// Its service: namespace and host name.
    pub(crate) service: String,
}

/// The changes made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) changes: usize,
    /// Pods that they touched, together.
    pub(crate) touched: usize,
}

impl std::ops::AddAssign for Made {
    fn add_assign(&mut self, other: Self) {
        self.changes += other.changes;
        self.touched += other.touched;
    }
}
