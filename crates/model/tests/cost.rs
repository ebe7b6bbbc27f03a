//! What a change and a workload cost, counted: whatever the size of the mesh, a change touches as
//! much, and what is kept of a workload is little. Alone in its process, for it counts what that allocates.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../testkit/src/counting.rs"]
mod counting;

use std::sync::Arc;

use counting::{allocated, live};
use leno_model::{Health, Mesh, Names, Port, ServiceName, TunnelProtocol, Workload};

/// As a control plane tells of a pod: each name its own.
fn pod(n: usize) -> Workload {
    let (service, namespace) = (n / 25, format!("ns-{}", n / 25 % 50));
    let name = format!("svc-{service}-6d4cf56db6-{n:05}");
    let mut pod = Workload::new(format!("Kubernetes//Pod/{namespace}/{name}"), &*namespace, name);
    pod.addresses.push([10, (n >> 16) as u8, (n >> 8) as u8, n as u8].into());
    pod.tunnel_protocol = TunnelProtocol::Hbone;
    pod.node = format!("node-{}", n % 500).into();
    pod.service_account = format!("svc-{service}").into();
    pod.canonical_name = format!("svc-{service}").into();
    pod.canonical_revision = "latest".into();
    pod.workload_name = format!("svc-{service}").into();
    pod.locality.zone = format!("zone-{}", n % 3).into();
    let hostname = format!("svc-{service}.{namespace}.svc.cluster.local").into();
    let ports = vec![Port::tcp(80, 8080)];
    pod.services.insert(ServiceName { namespace: namespace.into(), hostname }, ports);
    pod
}

struct Cost {
    /// Bytes kept of a workload.
    workload: usize,
    /// Bytes allocated for a change of one, besides what it brings itself.
    change: usize,
}

fn cost(size: usize) -> Cost {
    let before = live();
    let (mut mesh, mut names) = (Mesh::default(), Names::default());
    let mut tell = |mesh: &mut Mesh, mut workload: Workload| {
        names.settle_workload(&mut workload);
        mesh.upsert_workload(Arc::new(workload));
    };
    (0..size).for_each(|n| tell(&mut mesh, pod(n)));
    let workload = (live() - before) / size;
    const CHANGES: usize = 200;
    let mut change = 0;
    for n in 0..CHANGES {
        let published = mesh.clone();
        let changed = Arc::new(Workload { health: Health::Unhealthy, ..pod(n * 7919 % size) });
        let before = allocated();
        mesh.upsert_workload(changed);
        change += allocated() - before;
        drop(published);
    }
    Cost { workload, change: change / CHANGES }
}

#[test]
fn a_change_costs_what_it_touches_and_a_workload_little() {
    let (small, large) = (cost(500), cost(5_000));
    println!(
        "bytes a workload: {} and {}; a change: {} and {}",
        small.workload, large.workload, small.change, large.change
    );
    assert!(large.change * 2 <= small.change * 3, "{} bytes of 5 000, {} of 500", large.change, small.change);
    assert!(large.workload <= 760, "{} bytes for each workload", large.workload);
}
