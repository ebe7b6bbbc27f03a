//! The root certificates of the mesh as Istio's control plane sends them to proxies: the one field of
//! `istio.mesh.v1alpha1.ProxyConfig` that is used here.

/// Type URL of [`TrustBundle`].
pub const TRUST_BUNDLE_TYPE: &str = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig";

/// `istio.mesh.v1alpha1.ProxyConfig`. Other fields are not read.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TrustBundle {
    /// Root certificates for connections between workloads, each in PEM.
    #[prost(string, repeated, tag = "34")]
    pub ca_certificates_pem: Vec<String>,
}

impl TrustBundle {
    /// All root certificates of an encoded `ProxyConfig` as one PEM bundle; empty if it has none.
    ///
    /// # Errors
    /// If `body` is not a `ProxyConfig`.
    pub fn read(body: &[u8]) -> Result<String, prost::DecodeError> {
        <Self as prost::Message>::decode(body).map(|bundle| bundle.ca_certificates_pem.join("\n"))
    }
}
