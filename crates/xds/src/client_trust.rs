//! Roots that the control plane pushes, so that a new one is trusted before anybody shows a certificate
//! of it, and not only with the proxy's own next certificate.

use leno_proto::TrustBundle;
use leno_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};
use prost::Message;

/// Takes the roots, in PEM; the answer is why it can't.
pub(crate) type Trust = Box<dyn FnMut(&str) -> Result<(), String> + Send>;

/// Hands over what a response says and makes the ACK or NACK for it. Names don't count: Istio's
/// control plane gives its one resource none. What is no longer said stays trusted: a proxy that
/// trusts nobody carries nothing, and its certificates bring roots of their own.
pub(crate) fn answer(response: DeltaDiscoveryResponse, trust: &mut Trust) -> DeltaDiscoveryRequest {
    let mut outcome = Ok(());
    for body in response.resources.into_iter().filter_map(|resource| resource.resource) {
        let roots = TrustBundle::decode(&*body.value).map(|bundle| bundle.ca_certificates_pem.join("\n"));
        outcome = match roots {
            Ok(roots) if roots.is_empty() => Ok(()),
            Ok(roots) => trust(&roots),
            Err(error) => Err(format!("not a ProxyConfig ({error})")),
        };
    }
    if let Err(reason) = &outcome {
        tracing::warn!(%reason, "discovery: refused the roots that the control plane sent; those before stay trusted");
    }
    DeltaDiscoveryRequest {
        type_url: response.type_url,
        response_nonce: response.nonce,
        error_detail: outcome.err().map(|message| Status { message, ..Status::default() }),
        ..Default::default()
    }
}
