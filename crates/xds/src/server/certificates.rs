//! `istio.v1.auth.IstioCertificateService`: certificates for workloads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::Identity;
use leno_proto::ca::istio_certificate_service_server::IstioCertificateService;
use leno_proto::ca::{IstioCertificateRequest, IstioCertificateResponse};
use leno_telemetry::metrics::control::{ControlMetrics, RequestOutcome};
use prost_types::value::Kind;
use tonic::{Code, Request, Response, Status};

use super::auth::authenticate;
use super::caller::{Authenticator, Caller};
use crate::ca_client::IMPERSONATED_IDENTITY;

/// Lifetime of a certificate if the request names none. Istio's default.
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 3600);

/// Why a certificate was not signed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SignError {
    /// The caller may not have a certificate for that identity.
    #[error("{0}")]
    Denied(String),
    /// The request is not valid.
    #[error("{0}")]
    Invalid(String),
    /// It can't be signed now.
    #[error("{0}")]
    Unavailable(String),
}

impl SignError {
    /// Whether the same request can be granted later. That includes a denial: the pod may not be known yet.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Invalid(_))
    }
}

/// Decides who may have which certificate, and signs it.
pub trait Signer: Send + Sync + 'static {
    /// Signs `csr_pem` for `impersonated`, or for the caller itself if that is `None`. Returns the leaf, its
    /// intermediates, and last the root bundle.
    fn sign<'a>(
        &'a self,
        caller: &'a Caller,
        csr_pem: &'a str,
        impersonated: Option<Identity>,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>, SignError>>;
}

/// The gRPC service.
#[derive(Clone)]
pub struct CaService {
    authenticator: Arc<dyn Authenticator>,
    signer: Arc<dyn Signer>,
    metrics: ControlMetrics,
}

impl CaService {
    /// A service that checks callers with `authenticator` and lets `signer` decide.
    pub fn new(authenticator: Arc<dyn Authenticator>, signer: Arc<dyn Signer>) -> Self {
        Self { authenticator, signer, metrics: ControlMetrics::default() }
    }

    /// Counts in `metrics` what happens.
    #[must_use]
    pub fn counted_in(self, metrics: ControlMetrics) -> Self {
        Self { metrics, ..self }
    }

    async fn answer(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let caller = authenticate(&self.authenticator, request.metadata().as_ref(), request.extensions()).await?;
        let request = request.into_inner();
        let impersonated = impersonated(&request)?;
        let ttl = match u64::try_from(request.validity_duration) {
            Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
            _ => DEFAULT_TTL,
        };
        let who = impersonated.as_ref().map(ToString::to_string);
        match self.signer.sign(&caller, &request.csr, impersonated, ttl).await {
            Ok(cert_chain) => {
                tracing::info!(caller = %format_args!("{}/{}", caller.namespace, caller.service_account), identity = who, "signed a certificate");
                Ok(Response::new(IstioCertificateResponse { cert_chain }))
            }
            Err(error) => {
                tracing::warn!(caller = %format_args!("{}/{}", caller.namespace, caller.service_account), identity = who, %error, "refused a certificate");
                let code = match &error {
                    SignError::Denied(_) => Code::PermissionDenied,
                    SignError::Invalid(_) => Code::InvalidArgument,
                    SignError::Unavailable(_) => Code::Unavailable,
                };
                Err(Status::new(code, error.to_string()))
            }
        }
    }
}

impl fmt::Debug for CaService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaService").finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl IstioCertificateService for CaService {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        self.metrics.certificate_requested();
        let answer = self.answer(request).await;
        self.metrics.certificate_answered(match &answer {
            Ok(_) => RequestOutcome::Issued,
            Err(status) => match status.code() {
                Code::Unauthenticated | Code::PermissionDenied => RequestOutcome::Denied,
                Code::InvalidArgument => RequestOutcome::Malformed,
                _ => RequestOutcome::Failed,
            },
        });
        answer
    }
}

/// The identity that is requested, if it is not the caller's own.
fn impersonated(request: &IstioCertificateRequest) -> Result<Option<Identity>, Status> {
    let Some(value) = request.metadata.as_ref().and_then(|metadata| metadata.fields.get(IMPERSONATED_IDENTITY)) else {
        return Ok(None);
    };
    match &value.kind {
        Some(Kind::StringValue(uri)) => uri
            .parse()
            .map(Some)
            .map_err(|error: leno_model::IdentityError| Status::invalid_argument(error.to_string())),
        _ => Err(Status::invalid_argument(format!("{IMPERSONATED_IDENTITY} must be a string"))),
    }
}
