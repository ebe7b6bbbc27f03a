//! What a changed pod costs a proxy that knows a large mesh, in instructions: as much as with a tenth of it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::{Health, Identity, Name, Port, ServiceName, TunnelProtocol, Workload};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE, workload_to_address};
use leno_proxy::mesh::{Feed, MeshState};
use leno_testkit::{skips, steps};
use leno_tls::{CertificateManager, IssueError, Issuer, Options};
use leno_xds::client::{Handler, Update};
use prost::Message as _;

/// For the traced process: workloads it knows.
const SIZE: &str = "LENO_TEST_MESH_SIZE";
/// Changes that are counted.
const CHANGES: usize = 3;

/// Nothing here is on this node.
struct NoIssuer;

impl Issuer for NoIssuer {
    fn issue(&self, _: &Identity, _: String, _: Duration) -> BoxFuture<'_, Result<Vec<String>, IssueError>> {
        Box::pin(std::future::pending())
    }
}

/// As a control plane tells of a pod, in services of 100.
fn told(n: usize, health: Health) -> Update {
    let (service, namespace) = (n / 100, format!("ns-{}", n / 100 % 50));
    let name = format!("svc-{service}-6d4cf56db6-{n:05}");
    let uid: Name = format!("Kubernetes//Pod/{namespace}/{name}").into();
    let mut pod = Workload::new(uid.clone(), &*namespace, name);
    pod.addresses = vec![[10, (n >> 16) as u8, (n >> 8) as u8, n as u8].into()];
    pod.tunnel_protocol = TunnelProtocol::Hbone;
    pod.node = format!("node-{}", n % 500).into();
    pod.service_account = format!("svc-{service}").into();
    pod.canonical_name = pod.service_account.clone();
    pod.workload_name = pod.service_account.clone();
    pod.canonical_revision = "latest".into();
    pod.locality.zone = format!("zone-{}", n % 3).into();
    pod.health = health;
    let hostname = format!("svc-{service}.{namespace}.svc.cluster.local").into();
    let id = ServiceName { namespace: namespace.into(), hostname };
    pod.services.insert(id, vec![Port::tcp(80, 8080)]);
    Update::Upsert { name: uid, body: workload_to_address(&pod).encode_to_vec().into() }
}

/// What is counted, in the traced process.
fn change_pods(size: usize) {
    let state = Arc::new(MeshState::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let certificates = Arc::new(CertificateManager::new(Arc::new(NoIssuer), Options::default()));
    let mut feed = Feed::new(state.clone(), certificates, Some("elsewhere".to_owned()));
    for chunk in (0..size).collect::<Vec<_>>().chunks(1000) {
        let updates = chunk.iter().map(|n| told(*n, Health::Healthy)).collect();
        assert!(feed.apply(ADDRESS_TYPE, updates).is_empty());
    }
    feed.apply(AUTHORIZATION_TYPE, Vec::new());
    steps::wait_for_tracer().unwrap();
    for turn in 0..CHANGES {
        // Somebody goes on to read what was published before.
        let read = state.load();
        let updates = vec![told(turn * 7919 % size, Health::Unhealthy)];
        let rejected = steps::counted(|| feed.apply(ADDRESS_TYPE, updates));
        assert!(rejected.is_empty());
        let ill = |mesh: &leno_model::Mesh| mesh.workloads().filter(|pod| pod.health == Health::Unhealthy).count();
        assert_eq!((ill(&read), ill(&state.load())), (turn, turn + 1));
    }
}

#[test]
fn a_changed_pod_costs_as_much_whatever_the_size_of_the_mesh() {
    const NAME: &str = "a_changed_pod_costs_as_much_whatever_the_size_of_the_mesh";
    if steps::is_traced() {
        return change_pods(std::env::var(SIZE).unwrap().parse().unwrap());
    }
    let mut medians = Vec::new();
    for size in [5_000, 50_000] {
        let mut counts = match steps::instructions(NAME, &[(SIZE, size.to_string())]) {
            Ok(counts) => counts,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return skips::skip(NAME, "no process may be traced here");
            }
            Err(error) => panic!("{error}"),
        };
        println!("{size} workloads: {counts:?} instructions");
        assert_eq!(counts.len(), CHANGES);
        counts.sort_unstable();
        medians.push(counts[CHANGES / 2]);
    }
    let [small, large] = medians[..] else { panic!("two sizes") };
    assert!(large * 2 <= small * 3, "{large} instructions with 50 000 workloads, {small} with 5 000");
}
