use super::*;
use crate::{Action, Rule, Scope, TunnelProtocol, Visibility};

fn pod(name: &str, ip: &str) -> Workload {
    let mut w = Workload::new(format!("Kubernetes//Pod/ns/{name}"), "ns", name);
    w.addresses = vec![ip.parse().expect("ip")];
    w.node = "node-1".into();
    w
}

fn network() -> Name {
    "".into()
}

fn service(namespace: &str, hostname: &str, vip: &str) -> Service {
    let mut s = Service::new(namespace, "s", hostname);
    s.addresses = vec![NetworkAddress { network: network(), address: vip.parse().expect("ip") }];
    s
}

#[test]
fn a_replaced_workload_leaves_no_trace_of_its_old_addresses() {
    let mut mesh = Mesh::default();
    mesh.upsert_workload(Arc::new(pod("a", "10.0.0.1")));
    mesh.upsert_workload(Arc::new(pod("a", "10.0.0.2")));
    assert!(mesh.workload_by_address(&network(), "10.0.0.1".parse().expect("ip")).is_none());
    assert!(mesh.workload_by_address(&network(), "10.0.0.2".parse().expect("ip")).is_some());
    assert_eq!(mesh.workloads().count(), 1);

    let now = pod("a", "10.0.0.2");
    for moved in [
        Workload { addresses: Vec::new(), ..now.clone() },
        Workload { network_mode: NetworkMode::HostNetwork, ..now.clone() },
        Workload { network: "east".into(), ..now.clone() },
    ] {
        mesh.upsert_workload(Arc::new(moved));
        assert!(mesh.workload_by_address(&network(), "10.0.0.2".parse().expect("ip")).is_none());
        mesh.upsert_workload(Arc::new(now.clone()));
        assert!(mesh.workload_by_address(&network(), "10.0.0.2".parse().expect("ip")).is_some());
    }
    let found = |mesh: &Mesh, node, account| mesh.workload_on_node(node, "ns", "a", account).is_some();
    assert!(found(&mesh, "node-1", "default"));
    mesh.upsert_workload(Arc::new(Workload { node: "node-2".into(), ..now.clone() }));
    assert_eq!([found(&mesh, "node-1", "default"), found(&mesh, "node-2", "default")], [false, true]);
    mesh.upsert_workload(Arc::new(Workload { service_account: "other".into(), ..now.clone() }));
    assert_eq!([found(&mesh, "node-1", "default"), found(&mesh, "node-1", "other")], [false, true]);
    mesh.upsert_workload(Arc::new(Workload { node: "".into(), ..now }));
    assert_eq!([found(&mesh, "node-1", "default"), found(&mesh, "", "default")], [false, true]);
}

#[test]
fn a_new_version_that_stays_where_it_was_is_seen_from_everywhere() {
    let id = ServiceName { namespace: "ns".into(), hostname: "s".into() };
    let version = |capacity, ports: Vec<Port>| {
        let mut workload = Workload { capacity, ..pod("a", "10.0.0.1") };
        workload.services.insert(id.clone(), ports);
        Arc::new(workload)
    };
    let mut mesh = Mesh::default();
    for (capacity, ports) in [(1, vec![]), (2, vec![Port::tcp(80, 1)]), (3, vec![Port::tcp(80, 2)]), (4, vec![])] {
        mesh.upsert_workload(version(capacity, ports.clone()));
        let by_address = mesh.workload_by_address(&network(), "10.0.0.1".parse().expect("ip"));
        let by_pod = mesh.workload_on_node("node-1", "ns", "a", "default");
        let by_uid = mesh.workload("Kubernetes//Pod/ns/a");
        let by_service = mesh.endpoints(&id).next();
        assert_eq!(by_service.map(|endpoint| endpoint.ports.to_vec()), Some(ports));
        for found in [by_address, by_pod, by_uid, by_service.map(|endpoint| &endpoint.workload)] {
            assert_eq!(found.map(|workload| workload.capacity), Some(capacity));
        }
        assert_eq!((mesh.workloads().count(), mesh.endpoints(&id).count()), (1, 1));
    }
}

#[test]
fn a_policy_that_is_named_again_is_not_kept_beside() {
    let policy = deny("p", Scope::WorkloadSelector);
    let without = Arc::new(pod("a", "10.0.0.1"));
    let naming = Arc::new(Workload { authorization_policies: vec![policy.id.clone()], ..Workload::clone(&without) });
    let mut mesh = Mesh::default();
    mesh.upsert_policy(policy);
    mesh.upsert_workload(naming.clone());
    assert_eq!(mesh.update_workload(without.clone()).len(), 1);
    assert_eq!((mesh.kept_policies().count(), mesh.policies_for(&without).count()), (1, 1));
    assert_eq!(mesh.update_workload(naming.clone()).len(), 0);
    assert_eq!((mesh.kept_policies().count(), mesh.policies_for(&naming).count()), (0, 1));
}

#[test]
fn a_peer_on_a_node_is_one_of_the_mesh_with_that_account() {
    let peer = Workload { tunnel_protocol: TunnelProtocol::Hbone, ..pod("a", "10.0.0.1") };
    let found = |workload: Workload| {
        let mut mesh = Mesh::default();
        mesh.upsert_workload(Arc::new(workload));
        mesh.peer_on_node("node-1", "ns", "default").is_some()
    };
    assert!(found(peer.clone()));
    for other in [
        Workload { node: "node-2".into(), ..peer.clone() },
        Workload { namespace: "other".into(), ..peer.clone() },
        Workload { service_account: "other".into(), ..peer.clone() },
        Workload { tunnel_protocol: TunnelProtocol::None, ..peer.clone() },
        Workload { not_understood: Some("new".into()), ..peer.clone() },
    ] {
        assert!(!found(other.clone()), "{other:?}");
    }
}

#[test]
fn an_endpoints_own_port_wins_over_the_services() {
    let udp = |service_port, target| Port { transport: crate::Transport::Udp, ..Port::tcp(service_port, target) };
    let own = [udp(80, 1), Port::tcp(81, 2), Port::tcp(80, 3), Port::tcp(82, 0)];
    let endpoint = |ports: &[Port]| Endpoint { workload: Arc::new(pod("a", "10.0.0.1")), ports: ports.into() };
    for (port, with_own, without) in [
        (Port::tcp(80, 8080), Some(3), Some(8080)),
        (udp(80, 8080), Some(1), Some(8080)),
        (Port::tcp(81, 0), Some(2), None),
        (Port::tcp(82, 8082), None, Some(8082)),
        (Port::tcp(83, 8083), Some(8083), Some(8083)),
    ] {
        assert_eq!(endpoint(&own).target_port(&port), with_own, "{port:?}");
        assert_eq!(endpoint(&[]).target_port(&port), without, "{port:?}");
    }
}

#[test]
fn an_address_that_two_claim_goes_to_the_enrolled_pod_and_back() {
    let mut mesh = Mesh::default();
    mesh.upsert_workload(Arc::new(pod("old", "10.0.0.1")));
    let mut new = pod("new", "10.0.0.1");
    new.tunnel_protocol = TunnelProtocol::Hbone;
    mesh.upsert_workload(Arc::new(new));
    let owner = |m: &Mesh| m.workload_by_address(&network(), "10.0.0.1".parse().expect("ip")).map(|w| w.name.clone());
    assert_eq!(owner(&mesh).as_deref(), Some("new"));
    mesh.remove_workload("Kubernetes//Pod/ns/new");
    assert_eq!(owner(&mesh).as_deref(), Some("old"));
}

#[test]
fn host_network_workloads_are_endpoints_but_own_no_address() {
    let mut mesh = Mesh::default();
    let mut w = pod("a", "10.0.0.1");
    w.network_mode = NetworkMode::HostNetwork;
    let id = ServiceName { namespace: "ns".into(), hostname: "s".into() };
    w.services.insert(id.clone(), vec![]);
    mesh.upsert_workload(Arc::new(w));
    assert!(mesh.workload_by_address(&network(), "10.0.0.1".parse().expect("ip")).is_none());
    assert_eq!(mesh.endpoints(&id).count(), 1);
}

#[test]
fn endpoints_may_come_before_their_service_and_outlive_it() {
    let mut mesh = Mesh::default();
    let s = service("ns", "s.ns.svc.cluster.local", "10.96.0.1");
    let mut w = pod("a", "10.0.0.1");
    w.services.insert(s.id.clone(), vec![]);
    mesh.upsert_workload(Arc::new(w));
    mesh.upsert_service(Arc::new(s.clone()));
    assert_eq!(mesh.endpoints(&s.id).count(), 1);
    assert!(mesh.remove_service(&s.id));
    assert_eq!(mesh.endpoints(&s.id).count(), 1);
    mesh.remove_workload("Kubernetes//Pod/ns/a");
    assert_eq!(mesh.endpoints(&s.id).count(), 0);
}

#[test]
fn ties_go_to_the_clients_namespace_then_to_canonical_and_never_to_hidden_services() {
    let mut mesh = Mesh::default();
    let mut hidden = service("hidden", "s", "10.96.0.1");
    hidden.visibility = Visibility::Namespace;
    mesh.upsert_service(Arc::new(hidden));
    mesh.upsert_service(Arc::new(service("a", "s", "10.96.0.1")));
    let mut canonical = service("b", "s", "10.96.0.1");
    canonical.canonical = true;
    mesh.upsert_service(Arc::new(canonical));
    for (client, expected) in [("a", "a"), ("b", "b"), ("c", "b"), ("hidden", "hidden")] {
        let by_name = mesh.service_by_hostname("s", client).map(|s| s.id.namespace.clone());
        let by_vip = mesh.service_by_vip(&network(), "10.96.0.1".parse().expect("ip"), client);
        assert_eq!(by_name.as_deref(), Some(expected), "{client}");
        assert_eq!(by_vip.map(|s| &*s.id.namespace), Some(expected), "{client}");
    }
}

#[test]
fn an_exact_address_beats_a_range_and_a_long_range_a_short_one() {
    let mut mesh = Mesh::default();
    for (host, range) in [("wide", "10.0.0.0/8"), ("narrow", "10.1.0.0/16")] {
        let mut s = Service::new("ns", host, host);
        s.ranges = vec![(network(), range.parse().expect("net"))];
        mesh.upsert_service(Arc::new(s));
    }
    mesh.upsert_service(Arc::new(service("ns", "exact", "10.1.0.1")));
    for (ip, expected) in [("10.1.0.1", "exact"), ("10.1.0.2", "narrow"), ("10.2.0.1", "wide")] {
        let found = mesh.service_by_vip(&network(), ip.parse().expect("ip"), "x");
        assert_eq!(found.map(|s| &*s.id.hostname == expected), Some(true), "{ip}");
    }
}

#[test]
fn of_equal_ranges_the_clients_own_wins_and_another_networks_none() {
    let mut mesh = Mesh::default();
    for (namespace, range_network, canonical) in [("a", "", true), ("b", "", false), ("c", "east", false)] {
        let mut s = Service { canonical, ..Service::new(namespace, "s", "s") };
        s.ranges = vec![(range_network.into(), "10.0.0.0/8".parse().expect("net"))];
        mesh.upsert_service(Arc::new(s));
    }
    let found = |network: &str, client| {
        let found = mesh.service_by_vip(&network.into(), "10.1.2.3".parse().expect("ip"), client);
        found.map(|s| s.id.namespace.to_string())
    };
    for (client, expected) in [("a", "a"), ("b", "b"), ("c", "a"), ("x", "a")] {
        assert_eq!(found("", client).as_deref(), Some(expected), "{client}");
    }
    assert_eq!((found("east", "a").as_deref(), found("west", "a")), (Some("c"), None));
}

#[test]
fn a_policy_a_workload_names_but_the_mesh_lacks_is_an_error() {
    let mut mesh = Mesh::default();
    let id = PolicyName { namespace: "ns".into(), name: "p".into() };
    let mut w = pod("a", "10.0.0.1");
    w.authorization_policies = vec![id.clone()];
    assert!(matches!(mesh.policies_for(&w).next(), Some(Err(missing)) if *missing == id));
    mesh.upsert_policy(Arc::new(Authorization {
        id: id.clone(),
        scope: Scope::WorkloadSelector,
        action: Action::Deny,
        rules: vec![Rule::default()],
        dry_run: false,
        not_understood: None,
    }));
    assert!(matches!(mesh.policies_for(&w).next(), Some(Ok(_))));
    assert_eq!(mesh.policy(&id).map(|policy| &policy.id), Some(&id));
}

fn deny(name: &str, scope: Scope) -> Arc<Authorization> {
    Arc::new(Authorization {
        id: PolicyName { namespace: "ns".into(), name: name.into() },
        scope,
        action: Action::Deny,
        rules: vec![Rule::default()],
        dry_run: false,
        not_understood: None,
    })
}

#[test]
fn a_retired_policy_counts_for_whom_it_did_until_they_change_and_is_let_go_then() {
    // For how many workloads a policy is kept.
    let kept = |mesh: &Mesh| {
        let named = |kept| match kept {
            KeptFor::Naming(workloads) => workloads.len(),
            KeptFor::NotYetNaming(_) | KeptFor::NamedBefore(_) => panic!("{kept:?}"),
        };
        mesh.kept_policies().map(|(_, whom)| named(whom)).sum::<usize>()
    };
    let old = deny("p", Scope::WorkloadSelector);
    let named =
        |name: &str| Arc::new(Workload { authorization_policies: vec![old.id.clone()], ..pod(name, "10.0.0.1") });
    let (a, b, late) = (named("a"), named("b"), named("late"));
    let retired = || {
        let mut mesh = Mesh::default();
        mesh.upsert_policy(old.clone());
        mesh.upsert_workload(a.clone());
        mesh.upsert_workload(b.clone());
        mesh.change_policies(std::slice::from_ref(&old.id), vec![]);
        // Told a second time, as after a reconnect.
        mesh.change_policies(std::slice::from_ref(&old.id), vec![]);
        mesh.upsert_workload(late.clone());
        assert_eq!((kept(&mesh), mesh.policies().count()), (2, 0));
        mesh
    };
    let of = |mesh: &Mesh, workload: &Workload| mesh.policies_for(workload).next().map(|found| found.ok().cloned());
    let mut mesh = retired();
    assert_eq!(of(&mesh, &a), Some(Some(old.clone())));
    assert_eq!(of(&mesh, &late), Some(None), "what it will be when it comes back is not known");
    // Changed, but not in this.
    mesh.upsert_workload(Arc::new(Workload { health: crate::Health::Unhealthy, ..Workload::clone(&a) }));
    assert_eq!(of(&mesh, &a), Some(Some(old.clone())));
    mesh.upsert_workload(Arc::new(pod("a", "10.0.0.1")));
    mesh.upsert_workload(a.clone());
    assert_eq!(of(&mesh, &a), Some(None), "it had ceased to name it");
    assert_eq!((of(&mesh, &b), kept(&mesh)), (Some(Some(old.clone())), 1));
    mesh.remove_workload(&b.uid);
    assert_eq!(kept(&mesh), 0);

    let mut mesh = retired();
    let new = Arc::new(Authorization { action: Action::Allow, ..Authorization::clone(&old) });
    mesh.upsert_policy(new.clone());
    assert_eq!((of(&mesh, &a), of(&mesh, &late), kept(&mesh)), (Some(Some(new.clone())), Some(Some(new)), 0));

    // By scope it ends at once; for those that name it as well, when they change.
    for scope in [Scope::Global, Scope::Namespace] {
        let wide = deny("p", scope);
        let mut mesh = Mesh::default();
        mesh.upsert_policy(wide.clone());
        mesh.upsert_workload(a.clone());
        mesh.change_policies(std::slice::from_ref(&wide.id), vec![]);
        assert_eq!((of(&mesh, &pod("other", "10.0.0.2")), of(&mesh, &a)), (None, Some(Some(wide))));
    }
}

#[test]
fn the_old_version_of_a_narrowed_policy_counts_for_those_that_do_not_name_it_until_it_is_ended() {
    let of = |mesh: &Mesh, workload: &Workload| {
        mesh.policies_for(workload).map(|found| found.cloned().expect("known")).collect::<Vec<_>>()
    };
    let (bystander, mut elsewhere) = (pod("a", "10.0.0.1"), pod("b", "10.0.0.2"));
    elsewhere.namespace = "other".into();
    let mut chosen = pod("c", "10.0.0.3");
    let new = deny("p", Scope::WorkloadSelector);
    chosen.authorization_policies = vec![new.id.clone()];
    for (scope, reaches_elsewhere) in [(Scope::Namespace, false), (Scope::Global, true)] {
        let mut mesh = Mesh::default();
        let old = deny("p", scope);
        mesh.upsert_policy(old.clone());
        let change = mesh.change_policies(&[], vec![new.clone()]);
        let [kept] = &change.kept[..] else { panic!("{change:?}") };
        assert_eq!((of(&mesh, &bystander), of(&mesh, &chosen)), (vec![old.clone()], vec![new.clone()]));
        assert_eq!(of(&mesh, &elsewhere).is_empty(), !reaches_elsewhere);
        // Told again with other content: what counts on is the version that applied by scope.
        let newer = Arc::new(Authorization { dry_run: true, ..Authorization::clone(&new) });
        assert!(mesh.change_policies(&[], vec![newer.clone()]).kept.is_empty(), "it ends when it was to");
        assert_eq!((of(&mesh, &bystander), of(&mesh, &chosen)), (vec![old.clone()], vec![newer.clone()]));
        assert!(!mesh.end(&Kept::Replaced(deny("p", scope))), "that is not the one");
        assert!(mesh.end(kept) && !mesh.end(kept));
        assert_eq!((of(&mesh, &bystander), of(&mesh, &chosen)), (vec![], vec![newer.clone()]));
        // One that reached nobody by scope leaves nothing behind.
        assert!(mesh.change_policies(&[], vec![new.clone()]).kept.is_empty());
        // Removed or wide again, it has no old version any more, and whom that covered is looked at again.
        for (removed, told) in [(vec![new.id.clone()], vec![]), (vec![], vec![deny("p", Scope::Global)])] {
            mesh.upsert_policy(old.clone());
            mesh.change_policies(&[], vec![new.clone()]);
            let change = mesh.change_policies(&removed, told);
            assert_eq!(mesh.kept_policies().count(), 0);
            assert!(change.policies.contains(&(new.id.clone(), scope)), "{change:?}");
        }
    }
}

#[test]
fn a_policy_that_a_workload_names_no_more_counts_for_it_until_it_is_ended_or_changes() {
    let old = deny("p", Scope::WorkloadSelector);
    let other = deny("q", Scope::WorkloadSelector);
    let named =
        Arc::new(Workload { authorization_policies: vec![old.id.clone(), other.id.clone()], ..pod("a", "10.0.0.1") });
    let free = Arc::new(pod("a", "10.0.0.1"));
    let released = || {
        let mut mesh = Mesh::default();
        mesh.change_policies(&[], vec![old.clone(), other.clone()]);
        assert_eq!(mesh.update_workload(named.clone()).len(), 0);
        let kept = mesh.update_workload(free.clone());
        assert_eq!(kept.len(), 2);
        (mesh, kept)
    };
    let of = |mesh: &Mesh| {
        let found = mesh.policies_for(mesh.workload(&free.uid).expect("here"));
        found.map(|found| found.cloned().map_err(PolicyName::clone)).collect::<Vec<_>>()
    };
    let (mut mesh, kept) = released();
    assert_eq!(of(&mesh), [Ok(old.clone()), Ok(other.clone())]);
    assert!(mesh.end(&kept[0]) && !mesh.end(&kept[0]));
    assert_eq!(of(&mesh), [Ok(other.clone())]);
    assert!(mesh.end(&kept[1]));
    assert_eq!((of(&mesh), mesh.kept_policies().count()), (vec![], 0));

    // A change of one is the one that the workload was told ahead of, and it may bring what the others wait for.
    let wide = deny("p", Scope::Namespace);
    for (removed, told, expected) in
        [(vec![old.id.clone()], vec![], vec![]), (vec![], vec![wide.clone()], vec![Ok(wide)])]
    {
        let (mut mesh, kept) = released();
        let change = mesh.change_policies(&removed, told);
        assert_eq!((of(&mesh), mesh.kept_policies().count()), (expected, 0));
        assert_eq!(change.workloads, std::slice::from_ref(&free.uid), "its connections are looked at again");
        assert!(!kept.iter().any(|kept| mesh.end(kept)));
    }

    // One that applied by scope as well does, and of one that is gone nothing is kept.
    let mut mesh = Mesh::default();
    mesh.change_policies(&[], vec![deny("p", Scope::Namespace), other.clone()]);
    mesh.update_workload(named.clone());
    mesh.change_policies(std::slice::from_ref(&other.id), vec![]);
    assert_eq!(mesh.update_workload(free.clone()).len(), 0);
    assert_eq!(mesh.kept_policies().count(), 0);
    // That mutual TLS is required ends at once: it always is for those who name it.
    let strict = Arc::new(Authorization { id: PolicyName::static_strict("root".into()), ..Authorization::clone(&old) });
    let mut mesh = Mesh::default();
    mesh.upsert_policy(strict.clone());
    mesh.update_workload(Arc::new(Workload {
        authorization_policies: vec![strict.id.clone()],
        ..pod("a", "10.0.0.1")
    }));
    assert_eq!(mesh.update_workload(free.clone()).len(), 0);
    // Neither of a workload that is gone.
    let (mut mesh, _) = released();
    mesh.remove_workload(&free.uid);
    assert_eq!(mesh.kept_policies().count(), 0);
}

#[test]
fn the_service_behind_a_port_is_told_only_if_there_is_one() {
    let mut mesh = Mesh::default();
    let service = |name: &str, port: u16| {
        let mut service = Service::new("ns", name, format!("{name}.ns.svc.cluster.local"));
        service.ports = vec![Port::tcp(port, 8080)];
        Arc::new(service)
    };
    let (web, other) = (service("web", 80), service("other", 81));
    let mut w = pod("a", "10.0.0.1");
    w.services.extend([&web, &other].map(|s| (s.id.clone(), Vec::new())));
    mesh.upsert_workload(Arc::new(w.clone()));
    mesh.upsert_service(web.clone());
    assert_eq!(mesh.service_at(&w, 8080).map(|s| &s.id), Some(&web.id));
    assert!(mesh.service_at(&w, 80).is_none());
    mesh.upsert_service(other);
    assert!(mesh.service_at(&w, 8080).is_none(), "either could be meant");
}

#[test]
fn a_clone_does_not_see_later_writes() {
    let mut mesh = Mesh::default();
    mesh.upsert_workload(Arc::new(pod("a", "10.0.0.1")));
    let before = mesh.clone();
    mesh.remove_workload("Kubernetes//Pod/ns/a");
    assert_eq!((before.workloads().count(), mesh.workloads().count()), (1, 0));
}

#[test]
fn what_was_not_understood_owns_its_addresses_like_an_enrolled_pod() {
    let mut mesh = Mesh::default();
    mesh.upsert_workload(Arc::new(pod("plain", "10.0.0.1")));
    let mut closed = pod("closed", "10.0.0.1");
    closed.not_understood = Some("why".into());
    mesh.upsert_workload(Arc::new(closed));
    let owner = mesh.workload_by_address(&network(), "10.0.0.1".parse().expect("ip")).map(|w| w.name.clone());
    assert_eq!(owner.as_deref(), Some("closed"));
}
