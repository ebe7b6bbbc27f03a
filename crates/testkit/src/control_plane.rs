//! A control plane that publishes and signs what a test wants.

#![allow(clippy::unwrap_used, reason = "test code: a broken control plane shall stop the test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::http::Route;
use leno_model::{Authorization, Identity, PolicyName, Service, Workload};
use leno_proto::{
    ADDRESS_TYPE, AUTHORIZATION_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, REQUEST_POLICY_TYPE, ROUTE_TYPE,
    TRUST_BUNDLE_TYPE, TrustBundle, authorization_to_proto, endpoint_policy_to_proto, request_defaults_to_proto,
    request_policy_to_proto, route_resource_name, route_to_proto, service_to_address, workload_to_address,
};
use leno_tls::{CaOptions, CertificateAuthority, Clock, ControlAcceptor};
use leno_xds::server::{self, AuthError, Authenticator, CaService, Caller, Limits, Services, SignError, Signer};
use leno_xds::{Resource, Resources};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::certs::TestCa;

/// The name in the control plane's certificate.
pub const HOST_NAME: &str = "control.test";
/// The only token that it accepts.
pub const TOKEN: &str = "test";

const PATIENCE: Duration = Duration::from_secs(20);

/// A running control plane, on loopback of the caller's namespace. Ends when dropped.
pub struct ControlPlane {
    authority: Arc<CertificateAuthority>,
    /// An authority that the whole mesh trusts beside the real one. It signs anything.
    pub lax_authority: TestCa,
    resources: watch::Sender<Arc<Resources>>,
    service: server::Service,
    signer: Arc<TestSigner>,
    address: SocketAddr,
    task: AbortHandle,
}

impl ControlPlane {
    /// Starts one that publishes nothing yet.
    pub async fn start() -> Self {
        Self::start_for("").await
    }

    /// As [`Self::start`], for proxies that run in this namespace.
    pub async fn start_for(namespace: &str) -> Self {
        Self::start_with(namespace, Clock::system(), Limits::default()).await
    }

    /// As [`Self::start`], with these limits for its clients.
    pub async fn start_within(limits: Limits) -> Self {
        Self::start_with("", Clock::system(), limits).await
    }

    /// As [`Self::start`], with an authority that signs by this clock.
    pub async fn start_by(clock: Clock) -> Self {
        Self::start_with("", clock, Limits::default()).await
    }

    async fn start_with(namespace: &str, clock: Clock, limits: Limits) -> Self {
        let tokens = Arc::new(OneToken(namespace.to_owned()));
        let options = CaOptions { clock, ..CaOptions::default() };
        let authority = Arc::new(CertificateAuthority::ephemeral("cluster.local", options).unwrap());
        let lax_authority = TestCa::root("lax");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor =
            ControlAcceptor::from_authority(authority.clone(), vec![HOST_NAME.to_owned()], Vec::new()).unwrap();
        let (resources, watched) = watch::channel(Arc::new(Resources::default()));
        let service = server::Service::new(watched, tokens.clone());
        let signer = Arc::new(TestSigner {
            authority: authority.clone(),
            lax_root: lax_authority.root_pem().to_owned(),
            orders: Mutex::default(),
            signed: watch::Sender::default(),
        });
        let services = Services { discovery: service.clone(), certificates: CaService::new(tokens, signer.clone()) };
        let task =
            tokio::spawn(server::serve(listener, acceptor, services, limits, std::future::pending())).abort_handle();
        Self { authority, lax_authority, resources, service, signer, address, task }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The root its own certificate chains to.
    pub fn root_pem(&self) -> String {
        self.authority.root_pem()
    }

    /// Gives the authority a new root, which signs once `proxies` proxies trust it. Certificates of the old root stay
    /// valid.
    pub async fn rotate_root(&self, proxies: usize) {
        self.authority.rotate_root().unwrap();
        self.publish_roots();
        self.synced(proxies).await;
        self.authority.all_trust_it();
        self.publish_roots();
    }

    /// The number of trusted roots, after removal of those that are no longer needed.
    pub fn roots(&self) -> usize {
        let before = self.authority.root_pem();
        self.authority.tick();
        let now = self.authority.root_pem();
        if now != before {
            self.publish_roots();
        }
        now.matches("BEGIN CERTIFICATE").count()
    }

    fn publish_roots(&self) {
        let bundle = TrustBundle { ca_certificates_pem: vec![self.authority.root_pem()] };
        self.change(|r| r.upsert(TRUST_BUNDLE_TYPE, "", Resource::new(bundle.encode_to_vec())));
    }

    /// Refuses every certificate from now on, for this reason.
    pub fn refuse_certificates(&self, reason: &str) {
        self.signer.orders.lock().refusal = Some(reason.to_owned());
    }

    /// Signs for at most this long from now on, whatever is asked for.
    pub fn limit_certificates(&self, ttl: Duration) {
        self.signer.orders.lock().ttl = Some(ttl);
    }

    /// Counts certificates signed.
    pub fn signed(&self) -> watch::Receiver<u64> {
        self.signer.signed.subscribe()
    }

    /// Publishes a workload, or a change of it.
    pub fn publish_workload(&self, workload: &Workload) {
        let body = workload_to_address(workload).encode_to_vec();
        self.change(|r| r.upsert(ADDRESS_TYPE, workload.uid.clone(), Resource::new(body)));
    }

    /// Publishes many workloads at once.
    pub fn publish_workloads(&self, workloads: &[Workload]) {
        self.change(|r| {
            for workload in workloads {
                let body = workload_to_address(workload).encode_to_vec();
                r.upsert(ADDRESS_TYPE, workload.uid.clone(), Resource::new(body));
            }
            true
        });
    }

    /// Publishes an address resource in any form, for instance one of a later version.
    pub fn publish_address(&self, name: &str, address: &leno_proto::workload::Address) {
        let body = address.encode_to_vec();
        self.change(|r| r.upsert(ADDRESS_TYPE, name.to_owned(), Resource::new(body)));
    }

    /// Removes a workload.
    pub fn remove_workload(&self, uid: &str) {
        self.change(|r| r.remove(ADDRESS_TYPE, uid));
    }

    /// Publishes a service, or a change of it.
    pub fn publish_service(&self, service: &Service) {
        let body = service_to_address(service).encode_to_vec();
        self.change(|r| r.upsert(ADDRESS_TYPE, service.id.to_string(), Resource::new(body)));
    }

    /// Removes a service.
    pub fn remove_service(&self, service: &Service) {
        self.change(|r| r.remove(ADDRESS_TYPE, &service.id.to_string()));
    }

    /// Publishes an HTTP route, or a change of it.
    pub fn publish_route(&self, route: &Route) {
        let body = route_to_proto(route).encode_to_vec();
        self.change(|r| r.upsert(ROUTE_TYPE, route_resource_name(&route.id), Resource::new(body)));
    }

    /// Publishes a policy about requests, or a change of it.
    pub fn publish_request_policy(&self, policy: &leno_model::http::Policy) {
        let body = request_policy_to_proto(policy).encode_to_vec();
        self.change(|r| r.upsert(REQUEST_POLICY_TYPE, policy.id.to_string(), Resource::new(body)));
    }

    /// Publishes what is said of services' endpoints, or a change of it.
    pub fn publish_endpoint_policy(&self, policy: &leno_model::http::EndpointPolicy) {
        let body = endpoint_policy_to_proto(policy).encode_to_vec();
        self.change(|r| r.upsert(ENDPOINT_POLICY_TYPE, policy.id.to_string(), Resource::new(body)));
    }

    /// Publishes what happens to requests without a route, or a change of it.
    pub fn publish_request_defaults(&self, defaults: &leno_model::http::RequestDefaults) {
        let body = request_defaults_to_proto(defaults).encode_to_vec();
        self.change(|r| r.upsert(REQUEST_DEFAULTS_TYPE, defaults.id.to_string(), Resource::new(body)));
    }

    /// Publishes a resource as it is, such as one that this version does not understand.
    pub fn publish_raw(&self, type_url: &str, name: &str, body: Vec<u8>) {
        self.change(|r| r.upsert(type_url, name, Resource::new(body)));
    }

    /// Removes a policy about requests.
    pub fn remove_request_policy(&self, id: &PolicyName) {
        self.change(|r| r.remove(REQUEST_POLICY_TYPE, &id.to_string()));
    }

    /// Publishes a policy, or a change of it.
    pub fn publish_policy(&self, policy: &Authorization) {
        let body = authorization_to_proto(policy).encode_to_vec();
        self.change(|r| r.upsert(AUTHORIZATION_TYPE, policy.id.to_string(), Resource::new(body)));
    }

    /// Removes a policy.
    pub fn remove_policy(&self, id: &PolicyName) {
        self.change(|r| r.remove(AUTHORIZATION_TYPE, &id.to_string()));
    }

    fn change(&self, change: impl FnOnce(&mut Resources) -> bool) {
        self.resources.send_modify(|resources| {
            let mut next = Resources::clone(resources);
            next.set_generation(next.generation() + 1);
            change(&mut next);
            *resources = Arc::new(next);
        });
    }

    /// Returns once `proxies` proxies are connected and each has acknowledged the latest version of every type.
    ///
    /// # Panics
    /// If they don't in time.
    pub async fn synced(&self, proxies: usize) {
        let mut changes = self.service.sync_changes();
        let wanted = self.resources.borrow().generation();
        let done = async {
            loop {
                changes.borrow_and_update();
                let status = self.service.sync_status();
                if status.iter().filter(|proxy| proxy.generation.is_some_and(|g| g >= wanted)).count() >= proxies {
                    return;
                }
                let _ = changes.changed().await;
            }
        };
        if tokio::time::timeout(PATIENCE, done).await.is_err() {
            panic!("{proxies} proxies do not reach generation {wanted}: {:#?}", self.service.sync_status());
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The namespace of all callers.
struct OneToken(String);

impl Authenticator for OneToken {
    fn authenticate<'a>(&'a self, token: &'a str, cluster_id: &'a str) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(async move {
            if token == TOKEN {
                Ok(Caller { cluster_id: cluster_id.to_owned(), namespace: self.0.clone(), ..Caller::default() })
            } else {
                Err(AuthError::Invalid("not the test's token".to_owned()))
            }
        })
    }
}

struct TestSigner {
    authority: Arc<CertificateAuthority>,
    lax_root: String,
    orders: Mutex<Orders>,
    signed: watch::Sender<u64>,
}

#[derive(Default)]
struct Orders {
    refusal: Option<String>,
    ttl: Option<Duration>,
}

impl Signer for TestSigner {
    fn sign<'a>(
        &'a self,
        _: &'a Caller,
        csr_pem: &'a str,
        impersonated: Option<Identity>,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>, SignError>> {
        let (refusal, limit) = {
            let orders = self.orders.lock();
            (orders.refusal.clone(), orders.ttl)
        };
        Box::pin(async move {
            if let Some(refusal) = refusal {
                return Err(SignError::Denied(refusal));
            }
            let identity = impersonated.ok_or_else(|| SignError::Invalid("no identity".to_owned()))?;
            let signed = self.authority.sign(csr_pem, &identity, limit.map_or(ttl, |limit| ttl.min(limit)));
            let mut chain = signed.map_err(|error| SignError::Invalid(error.to_string()))?;
            // In the answer, the root bundle comes last.
            chain.last_mut().unwrap().push_str(&self.lax_root);
            self.signed.send_modify(|count| *count += 1);
            Ok(chain)
        })
    }
}
