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

impl TrustBundle {
    /// All roots of an encoded one, as one PEM bundle; empty if it says nothing about roots.
    ///
    /// # Errors
    /// If it is no `ProxyConfig`.
    pub fn read(body: &[u8]) -> Result<String, prost::DecodeError> {
        <Self as prost::Message>::decode(body).map(|bundle| bundle.ca_certificates_pem.join("\n"))
    }
}
