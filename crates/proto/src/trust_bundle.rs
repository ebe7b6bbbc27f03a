//! The roots of the mesh's certificates, as Istio's control plane pushes them to proxies: the one field
//! of its `istio.mesh.v1alpha1.ProxyConfig` that is used here.

/// Type URL of [`TrustBundle`].
pub const TRUST_BUNDLE_TYPE: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";

/// `istio.mesh.v1alpha1.ProxyConfig`, of which other fields are not read.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TrustBundle {
    /// Roots for connections between workloads, each in PEM.
    #[prost(string, repeated, tag = "34")]
    pub ca_certificates_pem: Vec<String>,
}
