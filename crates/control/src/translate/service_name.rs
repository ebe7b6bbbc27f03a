//! What is a Kubernetes Service called in the mesh?

use leno_model::ServiceName;

use super::Options;

/// The mesh name of the service `name` in `namespace`.
pub(super) fn service_name(options: &Options, namespace: &str, name: &str) -> ServiceName {
    ServiceName {
        namespace: namespace.into(),
        hostname: format!("{name}.{namespace}.svc.{}", options.cluster_domain).into(),
    }
}
