//! The environment variables that more than one part of the mesh reads, and what they are by default. They are Istio's.

/// Port of the metrics.
pub const STATS_PORT: &str = "STATS_PORT";
/// Port of readiness.
pub const READINESS_PORT: &str = "READINESS_PORT";
/// Id of the cluster.
pub const CLUSTER_ID: &str = "CLUSTER_ID";
/// DNS suffix of the cluster's services.
pub const CLUSTER_DOMAIN: &str = "CLUSTER_DOMAIN";
/// Name of the pod that a component runs as.
pub const POD_NAME: &str = "POD_NAME";
/// Namespace of the pod that a component runs as.
pub const POD_NAMESPACE: &str = "POD_NAMESPACE";
/// Whether a waypoint tells programs who calls.
pub const FORWARD_CLIENT_CERT: &str = "LENO_FORWARD_CLIENT_CERT";

/// The default of [`CLUSTER_ID`].
pub const DEFAULT_CLUSTER_ID: &str = "Kubernetes";
/// The default of [`CLUSTER_DOMAIN`].
pub const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";
