//! Root certificates that the control plane pushes. A new root is trusted before any peer shows a certificate of it,
//! not only with the proxy's own next certificate.

use bytes::Bytes;
use leno_proto::discovery::{DeltaDiscoveryRequest, Status};
use prost::Message as _;

use super::response::{Resource, Response};

/// Takes an encoded [`TrustBundle`](leno_proto::TrustBundle). Returns the reason if it is refused.
pub(crate) type Trust = Box<dyn FnMut(Bytes) -> Result<(), String> + Send>;

/// Hands a response's roots over and makes the ACK or NACK for it. It ignores names, because Istio's control plane gives
/// its one resource none. It ignores removals, because a proxy that trusts nobody carries nothing.
pub(crate) fn answer(response: Response, trust: &mut Trust) -> DeltaDiscoveryRequest {
    let outcomes = response.resources.into_iter().filter_map(|resource| match Resource::decode(resource) {
        Ok(resource) => resource.resource.map(|body| trust(body.value)),
        Err(error) => Some(Err(error.to_string())),
    });
    let outcome = outcomes.last().unwrap_or(Ok(()));
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
