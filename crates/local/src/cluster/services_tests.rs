use std::sync::Arc;

use leno_model::{Health, HealthPolicy, LoadBalancingMode, NetworkAddress, Port, RoutingScope, Service, Workload};

use super::*;

fn service(name: &str, address: &str) -> Service {
    let mut service = Service::new("shop", name, format!("{name}.shop.svc.cluster.local"));
    service.addresses.push(NetworkAddress { network: "".into(), address: address.parse().unwrap() });
    service.ports.push(Port::tcp(80, 8080));
    service
}

fn pod(mesh: &mut Mesh, service: &Service, name: &str, node: &str, addresses: &[&str], health: Health) {
    let mut pod = Workload::new(format!("c//Pod/shop/{name}"), "shop", name);
    pod.addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    pod.node = node.into();
    pod.health = health;
    pod.services.insert(service.id.clone(), Vec::new());
    mesh.upsert_workload(Arc::new(pod));
}

fn declared(service: &Service) -> DeclaredPorts {
    service.ports.iter().map(|port| (service.id.clone(), port.transport, port.service_port)).collect()
}

fn endpoints(rules: &[ServiceRule]) -> Vec<String> {
    rules.iter().flat_map(|rule| rule.endpoints.iter().map(ToString::to_string)).collect()
}

#[test]
fn ready_endpoints_of_the_right_family() {
    let mut mesh = Mesh::default();
    let web = service("web", "10.96.1.1");
    pod(&mut mesh, &web, "a", "node-1", &["10.244.1.10", "fd00:10:244:1::a"], Health::Healthy);
    pod(&mut mesh, &web, "b", "node-2", &["10.244.2.10"], Health::Unhealthy);
    let declared = declared(&web);
    mesh.upsert_service(Arc::new(web));
    let rules = plan(&mesh, &declared, "node-1");
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].address.to_string(), "10.96.1.1:80");
    assert_eq!(endpoints(&rules), ["10.244.1.10:8080"]);
}

#[test]
fn local_services_stay_on_the_node() {
    let mut mesh = Mesh::default();
    let mut web = service("web", "10.96.1.1");
    web.load_balancing.mode = LoadBalancingMode::Strict;
    web.load_balancing.routing_preference = vec![RoutingScope::Node];
    pod(&mut mesh, &web, "a", "node-1", &["10.244.1.10"], Health::Healthy);
    pod(&mut mesh, &web, "b", "node-2", &["10.244.2.10"], Health::Healthy);
    let declared = declared(&web);
    mesh.upsert_service(Arc::new(web));
    assert_eq!(endpoints(&plan(&mesh, &declared, "node-2")), ["10.244.2.10:8080"]);
    let elsewhere = plan(&mesh, &declared, "node-3");
    assert!(elsewhere.len() == 1 && elsewhere[0].endpoints.is_empty());
}

#[test]
fn unready_endpoints_count_where_published() {
    let mut mesh = Mesh::default();
    let mut web = service("web", "10.96.1.1");
    web.load_balancing.health_policy = HealthPolicy::AllowAll;
    pod(&mut mesh, &web, "a", "node-1", &["10.244.1.10"], Health::Unhealthy);
    let declared = declared(&web);
    mesh.upsert_service(Arc::new(web));
    assert_eq!(endpoints(&plan(&mesh, &declared, "node-1")), ["10.244.1.10:8080"]);
}

#[test]
fn rules_come_after_the_proxies_know_a_service_and_go_before() {
    let (mut mesh, mut all, mut first) = (Mesh::default(), DeclaredPorts::new(), DeclaredPorts::new());
    for (name, address) in [("old", "10.96.1.1"), ("new", "10.96.1.2")] {
        let service = service(name, address);
        all.extend(declared(&service));
        if name == "old" {
            first = declared(&service);
        }
        mesh.upsert_service(Arc::new(service));
    }
    let addresses = |rules: &[ServiceRule]| rules.iter().map(|rule| rule.address.to_string()).collect::<Vec<_>>();
    let both = plan(&mesh, &all, "node-1");
    assert_eq!(addresses(&both), ["10.96.1.1:80", "10.96.1.2:80"]);
    let old = plan(&mesh, &first, "node-1");
    assert_eq!(addresses(&old), ["10.96.1.1:80"], "the mesh still has both");
    assert_eq!(known(&both, &old), old);
    assert_eq!(known(&old, &both), old);
    assert!(known(&both, &[]).is_empty());
}

#[test]
fn ports_come_from_the_objects_and_rules_from_those_of_udp() {
    let manifests = crate::files::parse(
        "a.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: shop}\nspec:\n  ports:\n  - {name: a, port: 53, \
         protocol: UDP, targetPort: q}\n  - {name: b, port: 54, protocol: UDP}\n  - {name: c, port: 80}\n---\napiVersion: \
         v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {containers: [{name: c, ports: [{name: q, \
         containerPort: 5353, protocol: UDP}]}]}\n",
    )
    .unwrap();
    let objects: Vec<&Object> = manifests.objects.values().map(|sourced| &*sourced.object).collect();
    let declared = declared_ports(objects.iter().copied(), "cluster.local");
    let ports: Vec<_> = declared.iter().map(|(_, transport, port)| (*transport, *port)).collect();
    assert_eq!(ports, [(Transport::Tcp, 80), (Transport::Udp, 53), (Transport::Udp, 54)]);

    let mut mesh = Mesh::default();
    let mut dns = service("dns", "10.96.1.1");
    let udp = |port, target| Port { transport: Transport::Udp, ..Port::tcp(port, target) };
    // The first is what each pod calls by that name.
    dns.ports = vec![udp(53, 0), udp(54, 54)];
    pod(&mut mesh, &dns, "without", "node-1", &["10.244.1.11"], Health::Healthy);
    let mut named = (**mesh.workload("c//Pod/shop/without").unwrap()).clone();
    (named.uid, named.name) = ("c//Pod/shop/p".into(), "p".into());
    named.addresses = vec!["10.244.1.10".parse().unwrap()];
    // Of TCP it means another one.
    named.services.insert(dns.id.clone(), vec![Port::tcp(53, 1), udp(53, 5353)]);
    mesh.upsert_workload(Arc::new(named));
    mesh.upsert_service(Arc::new(dns));
    let rules = plan(&mesh, &declared, "node-1");
    assert!(rules.iter().all(|rule| rule.udp));
    assert_eq!(endpoints(&rules), ["10.244.1.10:5353", "10.244.1.10:54", "10.244.1.11:54"]);
}
