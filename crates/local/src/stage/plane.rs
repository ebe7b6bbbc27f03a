//! The stage's own control plane: `leno-control` inside the supervisor, listening inside the
//! fabric's namespace.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leno_control::explained::explained;
use leno_control::status::{Findings, Status};
use leno_control::translate::Options;
use leno_control::{CertificatePolicy, ControlPlane, Controller, Endpoints, Feed, StaticTokens, lookup};
use leno_model::{Mesh, ports};
use leno_objects::{Kind, Object, ObjectKey};
use leno_telemetry::Readiness;
use leno_tls::{CaOptions, CertificateAuthority, ControlAcceptor};
use leno_xds::server::{Caller, Limits};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Error;
use crate::cluster::addresses::control_plane;
use crate::files::mesh_config;
use crate::run_dir::write_file;
use crate::stage::explained::passed_over_for;
use crate::stage::listing::PassedOverListing;
use crate::stage::network::Named;
use crate::stage::options::StageOptions;
use crate::stage::tasks::Tasks;
use leno_policy::explain_request::Asked;

/// File in the run directory with the root certificates that proxies trust.
pub(crate) const ROOT_CERT: &str = "root-cert.pem";

const CANNOT_START: &str = "cannot start the control plane";

/// A stage has 64 nodes at most, a proxy two connections, and a node two proxies while one takes
/// over from the other. The descriptors are for pods.
const LIMITS: Limits =
    Limits { unproven: 128, unproven_per_address: 32, proven: 512, first_request: Duration::from_secs(10) };

/// The answer to "what would happen to a connection?".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The answer in words.
    pub text: String,
    /// The same for programs.
    pub json: serde_json::Value,
    /// What is in the manifests about these pods and not in force.
    #[serde(default)]
    pub passed_over: Vec<PassedOverListing>,
}

/// Controller, authority and server of one stage.
pub(crate) struct Plane {
    controller: Controller,
    feed: Feed,
    found: Arc<Findings>,
    server: ControlPlane,
    tokens: Arc<StaticTokens>,
}

impl Plane {
    /// Makes a certificate authority that lives as long as the stage, and starts to serve.
    ///
    /// # Errors
    /// If keys can't be made or the address can't be bound.
    pub(crate) fn start(
        options: &StageOptions,
        fabric: &Named,
        run_dir: &Path,
        ipv6: bool,
        tasks: &mut Tasks,
    ) -> Result<Self, Error> {
        let what = CANNOT_START;
        let meaning = Options {
            trust_domain: options.trust_domain.as_str().into(),
            cluster_domain: options.cluster_domain.as_str().into(),
            ..Options::default()
        };
        let found = Arc::new(Findings::default());
        let controller = Controller::telling(meaning, found.clone());
        let feed = Feed::announce(controller.clone(), &Kind::of_files());
        let authority = CertificateAuthority::ephemeral(options.trust_domain.as_str(), CaOptions::default())
            .map_err(Error::control(what))?;
        let authority = Arc::new(authority);
        write_file(&run_dir.join(ROOT_CERT), authority.root_pem().as_bytes(), 0o644)?;
        let tokens = Arc::new(StaticTokens::new());
        let policy = Arc::new(CertificatePolicy::new(controller.clone(), authority.clone()));
        let server = ControlPlane::new(controller.clone(), tokens.clone(), policy).with_limits(LIMITS);

        let (v4, v6) = control_plane();
        let names = vec!["istiod.istio-system.svc".to_owned(), "localhost".to_owned()];
        let acceptor = ControlAcceptor::from_authority(authority.clone(), names, vec![v4.into(), v6.into()])
            .map_err(Error::control(what))?;
        let mut addresses = vec![IpAddr::from(v4)];
        if ipv6 {
            addresses.push(v6.into());
        }
        for address in addresses {
            let listener = listen(fabric, SocketAddr::new(address, ports::CONTROL))?;
            let (server, acceptor) = (server.clone(), acceptor.clone());
            tasks.spawn(async move { server.serve(listener, acceptor, std::future::pending()).await });
        }
        let everywhere = if ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        let endpoints = Endpoints {
            metrics: listen(fabric, SocketAddr::new(everywhere, ports::METRICS))?,
            readiness: listen(fabric, SocketAddr::new(everywhere, ports::READINESS))?,
        };
        let told = server.clone();
        tasks.spawn(async move {
            endpoints.serve(&told, authority, Readiness::default(), std::future::pending()).await;
        });
        let publishing = controller.clone();
        tasks.spawn(async move { publishing.run().await });
        Ok(Self { controller, feed, found, server, tokens })
    }

    /// Makes a token for the proxy of a node and lets its bearer in.
    ///
    /// # Errors
    /// If the machine has no randomness.
    pub(crate) fn token(&self, node: &str) -> Result<String, Error> {
        self.token_of(Caller {
            namespace: "istio-system".to_owned(),
            service_account: "ztunnel".to_owned(),
            node: Some(node.to_owned()),
            ..Caller::default()
        })
    }

    /// Makes a token for whoever runs as a service account, such as a waypoint.
    ///
    /// # Errors
    /// As [`Self::token`].
    pub(crate) fn account_token(&self, namespace: &str, account: &str) -> Result<String, Error> {
        self.token_of(Caller {
            namespace: namespace.to_owned(),
            service_account: account.to_owned(),
            ..Caller::default()
        })
    }

    fn token_of(&self, caller: Caller) -> Result<String, Error> {
        let what = "cannot make a token";
        let mut random = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(Error::io(what))?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        self.tokens.insert(token.clone(), caller).map_err(Error::control(what))?;
        Ok(token)
    }

    /// Makes these objects all there are.
    pub(crate) fn publish(&self, objects: impl IntoIterator<Item = Object>) {
        self.feed.replace(objects.into_iter().map(|object| mesh_config(&object).unwrap_or(object)));
    }

    /// Warnings for the authors of objects: how they were understood, and what is valid but probably not meant.
    pub(crate) fn findings(&self) -> BTreeMap<ObjectKey, Status> {
        self.controller.lint();
        self.found.all()
    }

    /// The mesh as published last.
    pub(crate) fn mesh(&self) -> watch::Receiver<Arc<Mesh>> {
        self.controller.mesh()
    }

    /// The server for the proxies, for those that need only this.
    pub(crate) fn proxies(&self) -> ControlPlane {
        self.server.clone()
    }

    /// Publishes at once, and resolves when every connected proxy has accepted it.
    pub(crate) async fn settled(&self) {
        self.server.settled().await;
    }

    /// Explains a connection, and a request on it if one is asked about.
    ///
    /// # Errors
    /// [`Error::NotFound`] if source or destination mean nothing.
    pub(crate) fn explain(
        &self,
        source: &str,
        destination: &str,
        asked: Option<&Asked>,
        passed_over: &[PassedOverListing],
    ) -> Result<Explained, Error> {
        let mesh = self.mesh().borrow().clone();
        let answer = explained(&mesh, &self.findings(), source, destination, asked)
            .map_err(|reason: lookup::Error| Error::NotFound(reason.to_string()))?;
        let mut text = answer.text();
        let concerned = passed_over_for(&answer.explanations, passed_over);
        for one in &concerned {
            let about = one.pods.first().map_or("", String::as_str);
            let what = if one.field.is_empty() { "" } else { one.field.as_str() };
            let of = if what.is_empty() { "" } else { " of " };
            text.push_str(&format!(
                "not in force for {about}: {what}{of}{} ({}): {}\n",
                one.object, one.place, one.effect
            ));
        }
        text.push_str(&answer.not_in_force());
        let json =
            serde_json::to_value(&answer.explanations).map_err(Error::control("cannot write the explanation"))?;
        Ok(Explained { text, json, passed_over: concerned })
    }
}

/// Listens in the namespace of the link between the nodes.
fn listen(fabric: &Named, address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = fabric
        .namespace
        .run(|| std::net::TcpListener::bind(address))
        .map_err(Error::network(CANNOT_START))?
        .map_err(Error::io(format!("{CANNOT_START} on {address}")))?;
    bound.set_nonblocking(true).map_err(Error::io(CANNOT_START))?;
    TcpListener::from_std(bound).map_err(Error::io(CANNOT_START))
}
