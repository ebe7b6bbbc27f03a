//! Finds out who is calling the control plane.

use std::sync::Arc;

use http::{Extensions, HeaderMap};
use tonic::{Code, Status};

use super::caller::{Authenticator, Caller};
use super::places::Place;

/// Finds out who sent a request. After a good token, its connection keeps its place.
pub(crate) async fn authenticate(
    authenticator: &Arc<dyn Authenticator>,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Caller, Status> {
    let caller = caller_of(authenticator, headers).await?;
    if let Some(place) = extensions.get::<Arc<Place>>() {
        place.prove(&caller).map_err(|refusal| Status::resource_exhausted(refusal.to_string()))?;
    }
    Ok(caller)
}

async fn caller_of(authenticator: &Arc<dyn Authenticator>, headers: &HeaderMap) -> Result<Caller, Status> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let token = text("authorization").and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(|| {
        Status::unauthenticated("no token: send `authorization: Bearer <service account token>`; is the token mounted?")
    })?;
    let cluster_id = text("clusterid").unwrap_or_default();
    authenticator.authenticate(token.trim(), cluster_id).await.map_err(|error| {
        let code = if error.is_retryable() { Code::Unavailable } else { Code::Unauthenticated };
        Status::new(code, error.to_string())
    })
}
