use std::collections::BTreeMap;
use std::time::Duration;

use leno_model::Identity;
use leno_objects::Kind;
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE};
use leno_tls::{CaOptions, CertificateAuthority, Issuer, RootSource, certificate_request};
use leno_xds::ca_client::CaClient;
use leno_xds::client::{Client, Handler, NodeInfo, Rejection, Update};
use leno_xds::{ChannelConfig, TokenSource};
use tokio::sync::{oneshot, watch};

use super::*;
use crate::Feed;
use crate::authentication::StaticTokens;
use crate::certificates::CertificatePolicy;
use crate::testing::{load, upserts};
use crate::translate::Options;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(10);

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1, serviceAccountName: web, containers: [{name: c}]}
status: {podIP: 10.0.0.1}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {selector: {matchLabels: {app: web}}}
";

/// What the proxy holds, in the order it came.
#[derive(Default)]
struct Held {
    log: Vec<(String, String)>,
    names: BTreeMap<String, Vec<String>>,
}

struct Recorder(watch::Sender<Held>);

impl Handler for Recorder {
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection> {
        self.0.send_modify(|held| {
            for update in updates {
                let names = held.names.entry(type_url.to_owned()).or_default();
                match update {
                    Update::Unreadable { name, reason } => panic!("{name}: {reason}"),
                    Update::Upsert { name, .. } => {
                        names.retain(|held| **held != *name);
                        names.push(name.to_string());
                        held.log.push((format!("+{name}"), type_url.to_owned()));
                    }
                    Update::Remove { name } => {
                        names.retain(|held| **held != *name);
                        held.log.push((format!("-{name}"), type_url.to_owned()));
                    }
                }
            }
        });
        Vec::new()
    }
}

struct Stage {
    plane: ControlPlane,
    authority: Arc<CertificateAuthority>,
    config: ChannelConfig,
    stop: oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<()>,
}

/// A control plane on a port of its own, whose feed has said nothing yet.
async fn stage() -> Stage {
    let controller = Controller::new(Options::default());
    let authority =
        Arc::new(CertificateAuthority::ephemeral("cluster.local", CaOptions::default()).expect("keys can be made"));
    let tokens = StaticTokens::parse(&format!("{TOKEN} leno-system/leno-node node-1")).expect("sound");
    let signer = CertificatePolicy::new(controller.clone(), authority.clone()).with_patience(Duration::ZERO);
    let plane = ControlPlane::new(controller.clone(), Arc::new(tokens), Arc::new(signer));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let config = ChannelConfig {
        address: format!("https://{address}").parse().expect("a URI"),
        root: RootSource::Pem(authority.root_pem()),
        alt_hostname: None,
        token: Some(TokenSource::Literal(TOKEN.to_owned())),
        cluster_id: "Kubernetes".to_owned(),
        headers: Vec::new(),
    };
    let acceptor =
        ControlAcceptor::from_authority(authority.clone(), Vec::new(), vec![address.ip()]).expect("a certificate");
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn({
        let plane = plane.clone();
        async move {
            let shutdown = async { drop(stopped.await) };
            tokio::select! {
                () = plane.serve(listener, acceptor, shutdown) => {}
                () = controller.run() => {}
            }
        }
    });
    Stage { plane, authority, config, stop, serving }
}

fn proxy(config: &ChannelConfig) -> (watch::Receiver<Held>, tokio::task::JoinHandle<()>) {
    let (held, watching) = watch::channel(Held::default());
    let node = NodeInfo {
        pod_name: "node-1-proxy".to_owned(),
        pod_namespace: "leno-system".to_owned(),
        node_name: "node-1".to_owned(),
        ..NodeInfo::default()
    };
    let client = Client::new(config.clone(), node);
    (watching, tokio::spawn(client.run(Recorder(held))))
}

async fn until(held: &mut watch::Receiver<Held>, is: impl FnMut(&Held) -> bool) {
    drop(tokio::time::timeout(PATIENCE, held.wait_for(is)).await.expect("in time").expect("the proxy runs"));
}

#[tokio::test]
async fn a_proxy_is_served_what_changes_mean() {
    let stage = stage().await;
    let (mut held, client) = proxy(&stage.config);
    // The feed is silent: the proxy is told nothing, not "nothing".
    assert!(tokio::time::timeout(Duration::from_millis(100), held.changed()).await.is_err());
    assert!(stage.plane.proxies().is_empty());

    let controller = stage.plane.controller();
    let feed = Feed::announce(controller.clone(), Kind::ALL);
    feed.replace(load(OBJECTS));
    let count = |held: &Held, type_url: &str| held.names.get(type_url).map_or(0, Vec::len);
    until(&mut held, |held| count(held, ADDRESS_TYPE) == 1 && count(held, AUTHORIZATION_TYPE) == 1).await;
    let order: Vec<String> = held.borrow().log.iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(order, ["+shop/p", "+Kubernetes//Pod/shop/web-1"], "policies come before the workloads that name them");

    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: s, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n";
    feed.apply(upserts(strict));
    tokio::time::timeout(PATIENCE, stage.plane.settled()).await.expect("in time");
    assert_eq!(count(&held.borrow(), AUTHORIZATION_TYPE), 2, "settled means that the proxy has it");
    let proxies = stage.plane.proxies();
    assert_eq!(proxies.len(), 1);
    assert_eq!(proxies[0].node.as_deref(), Some("node-1"));
    assert_eq!(proxies[0].account, "leno-system/leno-node");
    assert_eq!(proxies[0].generation, Some(controller.generation()));

    feed.replace(Vec::<leno_objects::Object>::new());
    tokio::time::timeout(PATIENCE, stage.plane.settled()).await.expect("in time");
    assert_eq!((count(&held.borrow(), ADDRESS_TYPE), count(&held.borrow(), AUTHORIZATION_TYPE)), (0, 0));
    let removals: Vec<String> =
        held.borrow().log.iter().map(|(what, _)| what.clone()).filter(|what| what.starts_with('-')).collect();
    assert_eq!(removals[0], "-Kubernetes//Pod/shop/web-1", "policies go after the workloads that name them");

    client.abort();
    stage.stop.send(()).expect("it runs");
    tokio::time::timeout(PATIENCE, stage.serving).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn certificates_for_pods_of_the_callers_node() {
    let stage = stage().await;
    Feed::announce(stage.plane.controller().clone(), Kind::ALL).replace(load(OBJECTS));
    let issuer = CaClient::new(stage.config.clone());
    let ask = async |issuer: &CaClient, uri: &str| {
        let identity: Identity = uri.parse().expect("sound");
        let (_, request) = certificate_request(&identity).expect("a key");
        issuer.issue(&identity, request, Duration::from_secs(3600)).await
    };
    let chain = ask(&issuer, "spiffe://cluster.local/ns/shop/sa/web").await.expect("granted");
    assert_eq!(chain.len(), 3, "leaf, intermediate, root");
    let refused = ask(&issuer, "spiffe://cluster.local/ns/shop/sa/db").await.expect_err("no such pod");
    assert!(refused.message.contains("no pod with service account shop/db runs there"), "{}", refused.message);

    let stranger = ChannelConfig { token: Some(TokenSource::Literal("wrong".to_owned())), ..stage.config.clone() };
    let refused = ask(&CaClient::new(stranger), "spiffe://cluster.local/ns/shop/sa/web").await.expect_err("no token");
    assert!(refused.message.contains("token"), "{}", refused.message);
    drop(stage.stop);
}

#[tokio::test]
async fn a_new_root_signs_once_every_proxy_trusts_it() {
    let stage = stage().await;
    let (plane, authority) = (stage.plane.clone(), stage.authority.clone());
    Feed::announce(plane.controller().clone(), Kind::ALL).replace(load(OBJECTS));
    let following = tokio::spawn(crate::roots::follow(plane.clone(), authority.clone(), Duration::ZERO));
    let info = NodeInfo { pod_namespace: "leno-system".to_owned(), ..NodeInfo::default() };
    let (heard, mut hearing) = watch::channel(String::new());
    let hears = move |body: prost::bytes::Bytes| {
        let roots = leno_proto::TrustBundle::read(&body).expect("sound");
        if roots.matches("BEGIN").count() == 4 {
            return Err("that is too much".to_owned());
        }
        heard.send_replace(roots);
        Ok(())
    };
    let modern = Client::new(stage.config.clone(), info).trusting(hears);
    let modern = tokio::spawn(modern.run(Recorder(watch::Sender::default())));
    let count = |roots: &String| roots.matches("BEGIN").count();
    tokio::time::timeout(PATIENCE, hearing.wait_for(|roots| count(roots) == 1))
        .await
        .expect("in time")
        .expect("it runs");
    // Something that keeps the old root: else it would go at once.
    let identity: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().expect("sound");
    let sign = || {
        let (_, csr) = certificate_request(&identity).expect("a key");
        authority.sign(&csr, &identity, Duration::from_secs(3600)).expect("signed")
    };
    let intermediate = |chain: Vec<String>| chain[1].clone();
    let signs = async |authority: &CertificateAuthority| {
        let mut trust = authority.trust();
        while authority.announces_a_root() {
            trust.changed().await.expect("it lives");
        }
    };
    let old = intermediate(sign());
    authority.rotate_root().expect("keys can be made");
    tokio::time::timeout(PATIENCE, signs(&authority)).await.expect("in time");
    assert_eq!(count(&hearing.borrow()), 2, "trusted first");
    let new = intermediate(sign());
    assert_ne!(old, new);

    // A proxy that has no ear for roots, as a ztunnel: nobody knows whether it trusts the next one.
    let config = ChannelConfig { root: RootSource::Pem(authority.root_pem()), ..stage.config.clone() };
    let (mut held, deaf) = proxy(&config);
    until(&mut held, |held| !held.names.is_empty()).await;
    authority.rotate_root().expect("keys can be made");
    tokio::time::timeout(PATIENCE, hearing.wait_for(|roots| count(roots) == 3))
        .await
        .expect("in time")
        .expect("it runs");
    tokio::time::timeout(PATIENCE, plane.settled()).await.expect("in time");
    assert!(authority.announces_a_root() && intermediate(sign()) == new);
    deaf.abort();
    tokio::time::timeout(PATIENCE, signs(&authority)).await.expect("in time");
    let third = intermediate(sign());
    assert_ne!(third, new);

    // One that refuses it.
    authority.rotate_root().expect("keys can be made");
    let nack = async {
        let mut changes = plane.proxy_changes();
        while !plane.proxies().iter().any(|proxy| proxy.types.iter().any(|of_type| of_type.last_nack.is_some())) {
            changes.changed().await.expect("it lives");
        }
    };
    tokio::time::timeout(PATIENCE, nack).await.expect("in time");
    assert!(authority.announces_a_root() && intermediate(sign()) == third);
    modern.abort();
    following.abort();
    drop(stage.stop);
}

/// The value of the sample that begins with `name`, which has all its labels; 0 if there is none.
fn sample(page: &Page, name: &str) -> f64 {
    let text = page.encode().expect("memory");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    line.map_or(0.0, |value| value.parse().expect("a number"))
}

/// Refuses all workloads.
struct Refuses;

impl Handler for Refuses {
    fn apply(&mut self, type_url: &str, updates: Vec<Update>) -> Vec<Rejection> {
        let refused = updates.into_iter().filter(|_| type_url == ADDRESS_TYPE);
        refused
            .filter_map(|update| match update {
                Update::Upsert { name, .. } => Some(Rejection { name, reason: "no".to_owned() }),
                _ => None,
            })
            .collect()
    }
}

#[tokio::test]
async fn metrics_tell_of_proxies_pushes_and_refusals() {
    let stage = stage().await;
    let page = stage.plane.metrics(stage.authority.clone());
    let feed = Feed::announce(stage.plane.controller().clone(), Kind::ALL);
    feed.replace(load(OBJECTS));
    let (mut held, client) = proxy(&stage.config);
    until(&mut held, |held| held.names.contains_key(ADDRESS_TYPE)).await;
    tokio::time::timeout(PATIENCE, stage.plane.settled()).await.expect("in time");
    assert_eq!(sample(&page, "pilot_xds"), 1.0);
    assert_eq!(sample(&page, "leno_control_connections{state=\"authenticated\"}"), 1.0);
    assert_eq!((sample(&page, "leno_workloads"), sample(&page, "leno_policies")), (1.0, 1.0));
    let pushed = sample(&page, "pilot_xds_pushes{type=\"wds\"}");
    assert!(pushed >= 1.0);
    assert_eq!(sample(&page, "pilot_proxy_convergence_time_count"), 0.0, "the first state is no change");

    // A change: it is pushed, and how long that took is known once the proxy has answered.
    let published = sample(&page, "leno_published_versions_total");
    feed.apply(upserts(&OBJECTS.replace("10.0.0.1", "10.0.0.2")));
    tokio::time::timeout(PATIENCE, stage.plane.settled()).await.expect("in time");
    assert_eq!(sample(&page, "pilot_xds_pushes{type=\"wds\"}"), pushed + 1.0);
    assert_eq!(sample(&page, "leno_published_versions_total"), published + 1.0);
    assert_eq!(sample(&page, "leno_proxies_behind"), 0.0);
    assert_eq!(sample(&page, "pilot_proxy_convergence_time_count"), 1.0);
    let took = sample(&page, "pilot_proxy_convergence_time_sum");
    assert!(took > 0.0 && took < PATIENCE.as_secs_f64(), "{took}");

    let info = NodeInfo { pod_namespace: "leno-system".to_owned(), ..NodeInfo::default() };
    let refusing = Client::new(stage.config.clone(), info);
    let refusing = tokio::spawn(refusing.run(Refuses));
    let mut changes = stage.plane.proxy_changes();
    let nack = async {
        while sample(&page, "pilot_total_xds_rejects{type=\"wds\"}") == 0.0 {
            changes.changed().await.expect("it lives");
        }
    };
    tokio::time::timeout(PATIENCE, nack).await.expect("in time");
    let followers = stage.plane.followers().proxies;
    let [following, refuses] = &followers[..] else { panic!("{followers:?}") };
    assert!(following.in_sync && following.refused.is_empty(), "{following:?}");
    assert!(!refuses.in_sync && refuses.refused.iter().any(|why| why.contains("no")), "{refuses:?}");

    client.abort();
    refusing.abort();
    let gone = async {
        while sample(&page, "pilot_xds") > 0.0 {
            changes.changed().await.expect("it lives");
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("in time");
    drop(stage.stop);
}

#[tokio::test]
async fn metrics_tell_of_certificates() {
    let stage = stage().await;
    let page = stage.plane.metrics(stage.authority.clone());
    Feed::announce(stage.plane.controller().clone(), Kind::ALL).replace(load(OBJECTS));
    let ask = async |token: &str, account: &str, request: Option<&str>| {
        let token = Some(TokenSource::Literal(token.to_owned()));
        let issuer = CaClient::new(ChannelConfig { token, ..stage.config.clone() });
        let identity: Identity = format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().expect("sound");
        let (_, good) = certificate_request(&identity).expect("a key");
        let request = request.map_or(good, str::to_owned);
        issuer.issue(&identity, request, Duration::from_secs(3600)).await.is_ok()
    };
    assert!(ask(TOKEN, "web", None).await);
    assert!(!ask(TOKEN, "db", None).await, "no such pod");
    assert!(!ask("another token, and as long as a good one", "web", None).await);
    assert!(!ask(TOKEN, "web", Some("no request")).await);
    for (name, expected) in [
        ("citadel_server_csr_count", 4.0),
        ("citadel_server_success_cert_issuance_count", 1.0),
        ("citadel_server_authentication_failure_count", 2.0),
        ("citadel_server_csr_parsing_err_count", 1.0),
        ("citadel_server_csr_sign_err_count", 0.0),
    ] {
        assert_eq!(sample(&page, name), expected, "{name}");
    }
    let year = 365.0 * 24.0 * 3600.0;
    assert!(sample(&page, "citadel_server_root_cert_expiry_seconds") > 9.0 * year);
    let signing = sample(&page, "citadel_server_cert_chain_expiry_seconds");
    assert!(signing > 0.9 * year && signing < 1.1 * year, "{signing}");
    drop(stage.stop);
}

#[tokio::test]
async fn it_is_ready_when_the_first_state_is_published() {
    let stage = stage().await;
    let readiness = leno_telemetry::Readiness::default();
    let listen = || TcpListener::bind("127.0.0.1:0");
    let endpoints =
        crate::Endpoints { metrics: listen().await.expect("a port"), readiness: listen().await.expect("a port") };
    let (plane, authority, waits) = (stage.plane.clone(), stage.authority.clone(), readiness.clone());
    let serving = tokio::spawn(async move { endpoints.serve(&plane, authority, waits, std::future::pending()).await });
    while readiness.is_ready() {
        tokio::task::yield_now().await;
    }
    assert_eq!(readiness.pending()[0].0, "objects");
    Feed::announce(stage.plane.controller().clone(), Kind::ALL).replace(load(OBJECTS));
    let becomes_ready = async {
        while !readiness.is_ready() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, becomes_ready).await.expect("in time");
    serving.abort();
    drop(stage.stop);
}
