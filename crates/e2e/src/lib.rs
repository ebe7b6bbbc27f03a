//! What the tests on a real Kubernetes cluster share: finding the cluster, kubectl, namespaces that go away, and pods that
//! ask one another.
//!
//! The cluster is the one that `LENO_KUBECONFIG` names, else the one that `cargo xtask cluster up` started. Where there is
//! neither, the tests are skipped by name.

mod capture;
mod cluster;
mod error;
mod hands;
mod hosts;
mod kubectl;
mod leno;
mod load;
mod namespace;
mod snapshot;
mod toolbox;

pub use capture::Capture;
pub use cluster::{Cluster, Found};
pub use error::Error;
pub use hands::Hands;
pub use hosts::Hosts;
pub use kubectl::Kubectl;
pub use leno::{Leno, Ran};
pub use load::Load;
pub use namespace::Namespace;
pub use snapshot::Snapshot;
pub use toolbox::{Answer, Pod, TOOLBOX_IMAGE, read};
