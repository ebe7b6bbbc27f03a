//! Roots that the control plane pushes, so that a new one is trusted before anybody shows a certificate
//! of it, and not only with the proxy's own next certificate.

use bytes::Bytes;
use leno_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};

/// Takes an encoded [`TrustBundle`](leno_proto::TrustBundle); the answer is why it can't.
pub(crate) type Trust = Box<dyn FnMut(Bytes) -> Result<(), String> + Send>;

/// Hands over what a response says and makes the ACK or NACK for it. Names don't count: Istio's
/// control plane gives its one resource none. Nor does a removal: a proxy that trusts nobody
/// carries nothing.
pub(crate) fn answer(response: DeltaDiscoveryResponse, trust: &mut Trust) -> DeltaDiscoveryRequest {
    let bodies = response.resources.into_iter().filter_map(|resource| resource.resource);
    let outcome = bodies.map(|body| trust(body.value.into())).last().unwrap_or(Ok(()));
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
