//! Requests certificates from a control plane: `istio.v1.auth.IstioCertificateService`.

use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::Identity;
use leno_proto::ca::IstioCertificateRequest;
use leno_proto::ca::istio_certificate_service_client::IstioCertificateServiceClient;
use leno_tls::{IssueError, Issuer};
use parking_lot::Mutex;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tonic::transport::Channel;

use crate::{ChannelConfig, Error};

/// Metadata key by which a node proxy names the pod's identity that it asks for.
pub(crate) const IMPERSONATED_IDENTITY: &str = "ImpersonatedIdentity";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// An [`Issuer`] at the other end of a channel. It requests certificates on behalf of the identity handed to it
/// (Istio's impersonation): the token says which node is asking, and the server checks that a pod with that identity
/// runs there.
#[derive(Debug)]
pub struct CaClient {
    config: ChannelConfig,
    // Created at first use, because it must be created on a runtime.
    channel: Mutex<Option<Channel>>,
}

impl CaClient {
    /// A client that connects at its first request.
    pub fn new(config: ChannelConfig) -> Self {
        Self { config, channel: Mutex::new(None) }
    }

    fn channel(&self) -> Result<Channel, Error> {
        let mut slot = self.channel.lock();
        if let Some(channel) = &*slot {
            return Ok(channel.clone());
        }
        let channel = self.config.lazy()?;
        *slot = Some(channel.clone());
        Ok(channel)
    }

    async fn create(&self, identity: Identity, csr: String, ttl: Duration) -> Result<Vec<String>, Error> {
        let impersonated = Value { kind: Some(Kind::StringValue(identity.to_string())) };
        let mut request = tonic::Request::new(IstioCertificateRequest {
            csr,
            validity_duration: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            metadata: Some(Struct { fields: [(IMPERSONATED_IDENTITY.to_owned(), impersonated)].into() }),
        });
        self.config.identify(request.metadata_mut())?;
        request.set_timeout(REQUEST_TIMEOUT);
        let mut client = IstioCertificateServiceClient::new(self.channel()?);
        let asking = client.create_certificate(request);
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, asking).await {
            Err(_) => {
                return Err(Error::ConnectTimeout { address: self.config.authority(), after: REQUEST_TIMEOUT });
            }
            Ok(answer) => answer.map_err(|status| self.config.status_error(&status))?,
        };
        Ok(answer.into_inner().cert_chain)
    }
}

impl Issuer for CaClient {
    fn issue(
        &self,
        identity: &Identity,
        csr_pem: String,
        ttl: Duration,
    ) -> BoxFuture<'_, Result<Vec<String>, IssueError>> {
        let identity = identity.clone();
        Box::pin(async move {
            self.create(identity, csr_pem, ttl)
                .await
                .map_err(|error| IssueError { message: error.to_string(), retryable: error.is_retryable() })
        })
    }
}
