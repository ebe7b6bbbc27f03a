//! The phases of the control plane's measurement, in order.

use serde::{Deserialize, Serialize};

/// Pods of a namespace, rounded to whole services. Relabelling a namespace touches this many.
const PODS_OF_NAMESPACE: usize = 1000;

/// The size of the generated mesh, and how fast it changes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Services.
    pub services: usize,
    /// Pods of each service.
    pub pods: usize,
    /// Proxies, each with a node of its own.
    pub proxies: usize,
    /// Changes per second.
    pub changes: f64,
    /// Proxies that may be in their first sync at the same time.
    pub arriving: usize,
}

impl Shape {
    /// The size of the many-svc study.
    pub const FULL: Self = Self { services: 500, pods: 100, proxies: 1000, changes: 1.0, arriving: 32 };
    /// Enough to see whether everything works.
    pub const QUICK: Self = Self { services: 20, pods: 10, proxies: 10, changes: 5.0, arriving: 32 };

    /// The number of all pods.
    #[must_use]
    pub fn workloads(&self) -> usize {
        self.services * self.pods
    }

    /// Services of a namespace.
    #[must_use]
    pub fn services_per_namespace(&self) -> usize {
        (PODS_OF_NAMESPACE / self.pods.max(1)).clamp(1, self.services.max(1))
    }
}

/// The effect of one change on the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A pod is removed, and another takes its place.
    ReplacePod,
    /// A pod's label changes.
    RelabelPod,
    /// Every pod of a service is replaced.
    ReplaceService,
    /// Every pod of a namespace gets another label.
    RelabelNamespace,
    /// A service gets more pods, or fewer, step by step as a cluster does it.
    Rescale,
}

impl Kind {
    /// Whether changes come at fixed times. Other changes wait until all proxies have seen the one before.
    #[must_use]
    pub fn is_at_fixed_times(self) -> bool {
        matches!(self, Self::ReplacePod | Self::RelabelPod | Self::Rescale)
    }
}

/// A step of the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The control plane receives the mesh. No proxy is connected.
    Start,
    /// The control plane's program is started beside an API server that has the whole mesh. No proxy is connected.
    Ready,
    /// Changes while no proxy is connected.
    Alone(Kind),
    /// All proxies connect.
    FirstSync,
    /// All proxies are in sync, and nothing changes.
    Idle,
    /// Changes while all proxies are connected.
    Churn(Kind),
    /// All proxies connect again, after missing some changes.
    Reconnect,
}

impl Phase {
    /// Those of the scenario `churn`, in the order in which they are run.
    pub const CHURN: [Self; 12] = [
        Self::Start,
        Self::Alone(Kind::ReplacePod),
        Self::Alone(Kind::RelabelPod),
        Self::Alone(Kind::ReplaceService),
        Self::Alone(Kind::RelabelNamespace),
        Self::FirstSync,
        Self::Idle,
        Self::Churn(Kind::ReplacePod),
        Self::Churn(Kind::RelabelPod),
        Self::Churn(Kind::ReplaceService),
        Self::Churn(Kind::RelabelNamespace),
        Self::Reconnect,
    ];

    /// Those of the scenario `many-svc`, in the order in which they are run.
    pub const MANY_SVC: [Self; 5] =
        [Self::Ready, Self::FirstSync, Self::Idle, Self::Churn(Kind::Rescale), Self::Reconnect];

    /// Its name, which is also the step's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Ready => "ready",
            Self::Alone(Kind::ReplacePod) => "alone/replace-pod",
            Self::Alone(Kind::RelabelPod) => "alone/relabel-pod",
            Self::Alone(Kind::ReplaceService) => "alone/replace-service",
            Self::Alone(Kind::RelabelNamespace) => "alone/relabel-namespace",
            Self::Alone(Kind::Rescale) => "alone/rescale",
            Self::FirstSync => "first-sync",
            Self::Idle => "idle",
            Self::Churn(Kind::ReplacePod) => "churn/replace-pod",
            Self::Churn(Kind::RelabelPod) => "churn/relabel-pod",
            Self::Churn(Kind::ReplaceService) => "churn/replace-service",
            Self::Churn(Kind::RelabelNamespace) => "churn/relabel-namespace",
            Self::Churn(Kind::Rescale) => "churn/rescale",
            Self::Reconnect => "reconnect",
        }
    }

    /// What the phase shows.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Start => "the whole mesh is fed, no proxy is connected: processor time, and memory per workload",
            Self::Ready => {
                "the program starts beside an API server that has the whole cluster: time until it is ready, and \
                 processor time until it has come to rest"
            }
            Self::Alone(_) => "objects to published resources, no proxy is connected: processor time per change",
            Self::FirstSync => "all proxies connect, a few at a time: processor time, peak memory, memory per proxy",
            Self::Idle => "all proxies are in sync and nothing changes",
            Self::Churn(Kind::Rescale) => {
                "one service is rescaled a second and one namespace relabelled a minute: processor time, and the API \
                 server's last event to seen by each proxy"
            }
            Self::Churn(kind) if kind.is_at_fixed_times() => {
                "changes at fixed times, all proxies connected: processor time, and change fed to seen by each proxy"
            }
            Self::Churn(_) => "one change after the other has been seen by all: processor time, and fed to seen",
            Self::Reconnect => "all proxies connect again, having missed ten changes: bytes sent again, processor time",
        }
    }

    /// The phase of a step.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::CHURN.into_iter().chain(Self::MANY_SVC).find(|phase| phase.name() == name)
    }

    /// Whether the control plane is started for it.
    #[must_use]
    pub fn is_first(self) -> bool {
        matches!(self, Self::Start | Self::Ready)
    }

    /// Whether proxies must be connected.
    #[must_use]
    pub fn needs_proxies(self) -> bool {
        matches!(self, Self::Idle | Self::Churn(_) | Self::Reconnect)
    }
}
